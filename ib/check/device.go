package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// checkedDevice is the checked state of one consumer's handle of a device.
type checkedDevice struct {
	callLeaver
	k      *checker
	dev    *ib.Device     // the shared handle
	root   *checkedDevice // subject of dev
	client *ib.Client     // nil: the handle that all clients share

	removed atomic.Pointer[[]uintptr] // stack of the call of Remove

	// The next fields belong to the shared handle.
	registered   []uintptr
	unregistered atomic.Pointer[[]uintptr]
	start        atomic.Pointer[observe.ObservationStart] // nil: not yet
	early        atomic.Int64                             // number of holds that may have begun before the checks
}

// ObserveDevice begins to check a device. Packets may arrive before that, and some holds may therefore begin
// unobserved. ObserveDevice counts the holds in progress. ObserveDevice then accepts the same number of ends without an
// observed beginning.
func (k *checker) ObserveDevice(d *ib.Device, root observe.Subject, cl *ib.Client) observe.Subject {
	if root != nil {
		r := root.(*checkedDevice)
		return &checkedDevice{k: k, dev: r.dev, root: r, client: cl}
	}
	r := &checkedDevice{k: k, dev: d, registered: callerPCs()}
	const many = 1 << 30 // until the number is known
	r.early.Store(many)
	r.root = r
	return r
}

func (d *checkedDevice) Enter(c *observe.Call) error {
	f := &frame{what: c.What, dev: d.dev}
	switch c.Kind {
	case observe.Register:
		f.kind, f.waits = inRegister, true
	case observe.Client:
		f.kind, f.what, f.client = inClient, fmt.Sprintf("%s of client %s", c.What, d.client.Name), d.client
	case observe.Atomic:
		f.kind = inAtomic
	default:
		f.kind, f.by = inMethod, d
		// deferred until the frame exists; then either checkNotUnregistered or Removed finds the call
		defer d.checkNotUnregistered(c.What)
	}
	return d.k.beginCall(c, f)
}

func (d *checkedDevice) RecordEvent(e observe.SubjectEvent, arg any) error {
	switch e {
	case observe.Started:
		start := arg.(observe.ObservationStart)
		d.start.Store(&start)
		d.early.Store(int64(start.Holds))
	case observe.HoldBegins:
		d.beginHold(arg.(*ib.Hold))
	case observe.HoldEnds:
		d.endHold(arg.(*ib.Hold))
	case observe.Removed: // the client has left no objects, and makes no further use of the device
		at, when := callerPCs(), fmt.Sprintf("%s of client %s", arg, d.client.Name)
		d.removed.Store(&at)
		if arg == "the failing Add" && observe.AddFailed != nil {
			observe.AddFailed()
		}
		inside := d.k.callsInProgress(observe.GoroutineID(), func(x *frame) bool { return x.by == d })
		d.k.reportCallsInside(RuleUseAfterRemove, d.dev, inside, when, at)
		d.reportUndestroyedObjects(d.client, when)
		d.reportIdleAbandonedObjects(when)
	case observe.Unregistered:
		at := callerPCs()
		d.unregistered.Store(&at)
		d.reportUndestroyedObjects(nil, "Core.Unregister")
		d.k.recordUnregister()
	case observe.Raised:
		return d.checkNotUnregistered("DeviceHandle.DispatchEvent")
	case observe.Freed:
		at := callerPCs()
		d.k.report(Violation{
			Rule: RuleFreeBeforeUnregister, What: "DeviceHandle.Dealloc called when Unregister had not returned",
			Stacks: []Stack{{"DeviceHandle.Dealloc", formatStack(at)}, {"registered at", formatStack(d.registered)}},
		}, d.dev, at)
	}
	return nil
}

// checkNotUnregistered reports the use of a device after Unregister, or by a client after the client's Remove. The call
// continues after the report.
func (d *checkedDevice) checkNotUnregistered(what string) error {
	at := d.root.unregistered.Load()
	if at == nil {
		d.checkUseAfterRemove(what)
		return nil
	}
	used := callerPCs()
	d.k.report(Violation{
		Rule: RuleUseAfterUnregister, What: what + " called when Unregister had returned",
		Stacks: []Stack{{what, formatStack(used)}, {"unregistered at", formatStack(*at)}},
	}, d.dev, used)
	return syscall.ENODEV
}

// checkUseAfterRemove reports the use of a device by a client after its Remove has returned.
func (d *checkedDevice) checkUseAfterRemove(what string) {
	at := d.removed.Load()
	if at == nil {
		return
	}
	used := callerPCs()
	d.k.report(Violation{
		Rule: RuleUseAfterRemove, What: fmt.Sprintf("%s called when Remove of client %s had returned",
			what, d.client.Name),
		Stacks: []Stack{{what, formatStack(used)}, {"removed at", formatStack(*at)}},
	}, d.dev, used)
}

// currentClient returns the client in whose Add or Remove of d the calling thread is, or nil.
func (d *checkedDevice) currentClient() *ib.Client {
	if d.client != nil {
		return d.client
	}
	k, id := d.k, observe.GoroutineID()
	k.mu.Lock()
	defer k.mu.Unlock()
	if th := k.threads[id]; th != nil {
		if f := th.findFrame(func(f *frame) bool { return f.kind == inClient }); f != nil && f.dev == d.dev {
			return f.client
		}
	}
	return nil
}

// reportUndestroyedObjects reports, once, the objects and event functions on d that cl should have destroyed. A nil cl
// means all clients. Event functions without a client may remain.
func (d *checkedDevice) reportUndestroyedObjects(cl *ib.Client, when string) {
	k := d.k
	k.mu.Lock()
	var left []*checkedObject
	for o := range k.live {
		mine := o.owner == cl
		if cl == nil {
			mine = o.kind != eventFunction
		}
		if mine && o.dev == d.dev {
			left = append(left, o)
			delete(k.live, o)
		}
	}
	k.mu.Unlock()
	d.reportObjects(left, fmt.Sprintf("objects left when %s returned", when), when)
}

// reportIdleAbandonedObjects reports, once, the client's abandoned objects at the end of its Remove. Abandon is allowed
// if a destruction, or another call of the client, is in progress.
func (d *checkedDevice) reportIdleAbandonedObjects(when string) {
	k, self := d.k, observe.GoroutineID()
	k.mu.Lock()
	var left []*checkedObject
	idle := true
	for o := range k.abandoned {
		if o.owner != d.client || o.dev != d.dev {
			continue
		}
		left = append(left, o)
		delete(k.abandoned, o)
		idle = idle && o.ends.Load() == nil
	}
	for id, th := range k.threads {
		idle = idle && (id == self || th.findFrame(func(x *frame) bool {
			return (x.kind == inMethod || x.kind == inAtomic) && x.dev == d.dev &&
				(x.by == d || x.obj != nil && x.obj.owner == d.client)
		}) == nil)
	}
	k.mu.Unlock()
	if idle {
		d.reportObjects(left, fmt.Sprintf("objects abandoned when %s returned, although no call on them was in progress",
			when),
			when)
	}
}

// RefusedAt ends the title of a stack of [RuleLeftBehind]. The stack is that of a failed destruction of the object. It
// follows the stack of the creation.
const RefusedAt = " not destroyed at"

// maxLeftStacks limits the stacks of a violation of [RuleLeftBehind].
const maxLeftStacks = 20

// reportObjects reports objects that a client has not destroyed.
func (d *checkedDevice) reportObjects(left []*checkedObject, what, when string) {
	if len(left) == 0 {
		return
	}
	slices.SortFunc(left, func(a, b *checkedObject) int { return cmp.Compare(a.order, b.order) })
	var kinds []string
	stacks := []Stack{{when, formatStack(callerPCs())}}
	for _, o := range left {
		kinds = append(kinds, o.kind)
		if len(stacks) >= maxLeftStacks {
			continue
		}
		stacks = append(stacks, Stack{o.kind + " made at", formatStack(o.made)})
		if at := o.refused.Load(); at != nil {
			stacks = append(stacks, Stack{o.kind + RefusedAt, formatStack(*at)})
		}
	}
	d.k.report(Violation{
		Rule: RuleLeftBehind, What: what + ": " + strings.Join(kinds, ", "), Stacks: stacks,
	}, d.dev, left[0].made)
}

// recordUnregister records that the calling thread's Unregister has removed the device from its clients.
func (k *checker) recordUnregister() {
	id := observe.GoroutineID()
	k.mu.Lock()
	defer k.mu.Unlock()
	if th := k.threads[id]; th != nil {
		if f := th.findFrame(func(f *frame) bool { return f.kind == inRegister }); f != nil {
			f.unregistered = true
		}
	}
}

// reportCallsAtUnregister reports the calls on the device that are in progress when Unregister, with frame f, is about
// to return.
func (k *checker) reportCallsAtUnregister(f *frame) {
	d := f.dev
	calls := k.callsInProgress(f.th.id, func(x *frame) bool {
		return (x.kind == inMethod || x.kind == inAtomic) && x.dev == d
	})
	maps.DeleteFunc(calls, func(_ int64, x *frame) bool {
		// the use after destruction is reported instead
		return x.obj != nil && (x.obj.abandoned.Load() || x.obj.destroyed.Load() != nil)
	})
	k.reportCallsInside(RuleInsideAtUnregister, d, calls, "Unregister", f.entry)
}

// callsInProgress returns the calls of other threads than but, by thread. kind selects the calls.
func (k *checker) callsInProgress(but int64, kind func(*frame) bool) map[int64]*frame {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls := map[int64]*frame{}
	for id, th := range k.threads {
		if x := th.findFrame(kind); x != nil && id != but {
			calls[id] = x
		}
	}
	return calls
}

// reportCallsInside reports the calls on d that are in progress when another call returns.
func (k *checker) reportCallsInside(rule Rule, d *ib.Device, calls map[int64]*frame, when string, at []uintptr) {
	if len(calls) == 0 {
		return
	}
	all := allGoroutines()
	for id, c := range calls {
		if all[id].trace == "" {
			continue // has just returned
		}
		k.report(Violation{
			Rule: rule, What: fmt.Sprintf("%s has not returned when %s returns", c.what, when),
			Stacks: []Stack{{c.what + ", still inside", all[id].trace}, {when, formatStack(at)}},
		}, d, c.entry)
	}
}
