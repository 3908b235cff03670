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

// device is a device as one of its consumers sees it.
type device struct {
	ending
	k      *checker
	dev    *ib.Device // everybody's
	root   *device    // of dev
	client *ib.Client // nil: everybody's

	removed atomic.Pointer[[]uintptr] // where the client's Remove had returned

	// of everybody's
	registered   []uintptr
	unregistered atomic.Pointer[[]uintptr]
	start        atomic.Pointer[observe.Start] // nil: not yet
	early        atomic.Int64                  // holds that may have begun before the checks
}

// Device begins to check a device. Packets may arrive before, and the threads of those that end a hold afterwards have begun it unseen:
// so many as there are holds when it starts are let off.
func (k *checker) Device(d *ib.Device, root observe.Subject, cl *ib.Client) observe.Subject {
	if root != nil {
		r := root.(*device)
		return &device{k: k, dev: r.dev, root: r, client: cl}
	}
	r := &device{k: k, dev: d, registered: callers()}
	const many = 1 << 30 // until it is known
	r.early.Store(many)
	r.root = r
	return r
}

func (d *device) Enter(c *observe.Call) error {
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
		defer d.checkGone(c.What) // when the frame is there, so that either this or Removed finds the call
	}
	return d.k.begin(c, f)
}

func (d *device) Note(e observe.Event, arg any) error {
	switch e {
	case observe.Started:
		start := arg.(observe.Start)
		d.start.Store(&start)
		d.early.Store(int64(start.Holds))
	case observe.HoldBegins:
		d.hold(arg.(*ib.Hold))
	case observe.HoldEnds:
		d.endHold(arg.(*ib.Hold))
	case observe.Removed: // it has left nothing behind, and does not use the device any more
		at, when := callers(), fmt.Sprintf("%s of client %s", arg, d.client.Name)
		d.removed.Store(&at)
		inside := d.k.inside(observe.Goroutine(), func(x *frame) bool { return x.by == d })
		d.k.reportInside(RuleUseAfterRemove, d.dev, inside, when, at)
		d.leftBehind(d.client, when)
	case observe.Unregistered:
		at := callers()
		d.unregistered.Store(&at)
		d.leftBehind(nil, "Core.Unregister")
		d.k.unregistered()
	case observe.Raised:
		return d.checkGone("DeviceHandle.DispatchEvent")
	case observe.Freed:
		at := callers()
		d.k.report(Violation{
			Rule: RuleFreeBeforeUnregister, What: "DeviceHandle.Dealloc called when Unregister had not returned",
			Stacks: []Stack{{"DeviceHandle.Dealloc", trace(at)}, {"registered at", trace(d.registered)}},
		}, d.dev, at)
	}
	return nil
}

// checkGone reports the use of a device after Unregister, or by a client after its Remove; then the call goes on.
func (d *device) checkGone(what string) error {
	at := d.root.unregistered.Load()
	if at == nil {
		d.checkRemoved(what)
		return nil
	}
	used := callers()
	d.k.report(Violation{
		Rule: RuleUseAfterUnregister, What: what + " called when Unregister had returned",
		Stacks: []Stack{{what, trace(used)}, {"unregistered at", trace(*at)}},
	}, d.dev, used)
	return syscall.ENODEV
}

// checkRemoved reports the use of a device by a client that has been removed from it.
func (d *device) checkRemoved(what string) {
	at := d.removed.Load()
	if at == nil {
		return
	}
	used := callers()
	d.k.report(Violation{
		Rule: RuleUseAfterRemove, What: fmt.Sprintf("%s called when Remove of client %s had returned", what, d.client.Name),
		Stacks: []Stack{{what, trace(used)}, {"removed at", trace(*at)}},
	}, d.dev, used)
}

// owner is the client in whose Add or Remove of d the calling thread is, nil if it is in none.
func (d *device) owner() *ib.Client {
	if d.client != nil {
		return d.client
	}
	k, id := d.k, observe.Goroutine()
	k.mu.Lock()
	defer k.mu.Unlock()
	if th := k.threads[id]; th != nil {
		if f := th.find(func(f *frame) bool { return f.kind == inClient }); f != nil && f.dev == d.dev {
			return f.client
		}
	}
	return nil
}

// leftBehind reports, once, the objects and event functions on d that cl (nil: anybody) should have destroyed before now. Event functions
// that belong to no client may stay.
func (d *device) leftBehind(cl *ib.Client, when string) {
	k := d.k
	k.mu.Lock()
	var left []*object
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
	if len(left) == 0 {
		return
	}
	slices.SortFunc(left, func(a, b *object) int { return cmp.Compare(a.order, b.order) })
	var kinds []string
	stacks := []Stack{{when, trace(callers())}}
	for _, o := range left {
		kinds = append(kinds, o.kind)
		if len(stacks) < 10 {
			stacks = append(stacks, Stack{o.kind + " made at", trace(o.made)})
		}
	}
	k.report(Violation{
		Rule: RuleLeftBehind, What: fmt.Sprintf("objects left when %s returned: %s", when, strings.Join(kinds, ", ")),
		Stacks: stacks,
	}, d.dev, left[0].made)
}

// unregistered notes that the calling thread's Unregister has taken the device from its clients.
func (k *checker) unregistered() {
	id := observe.Goroutine()
	k.mu.Lock()
	defer k.mu.Unlock()
	if th := k.threads[id]; th != nil {
		if f := th.find(func(f *frame) bool { return f.kind == inRegister }); f != nil {
			f.unregistered = true
		}
	}
}

// stillInside reports the calls on the device that have not returned when Unregister, whose frame is f, is about to.
func (k *checker) stillInside(f *frame) {
	d := f.dev
	calls := k.inside(f.th.id, func(x *frame) bool { return (x.kind == inMethod || x.kind == inAtomic) && x.dev == d })
	maps.DeleteFunc(calls, func(_ int64, x *frame) bool {
		return x.obj != nil && (x.obj.abandoned.Load() || x.obj.destroyed.Load() != nil) // reported by itself
	})
	k.reportInside(RuleInsideAtUnregister, d, calls, "Unregister", f.entry)
}

// inside returns the calls of a kind that other threads than one are in, by the thread.
func (k *checker) inside(but int64, kind func(*frame) bool) map[int64]*frame {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls := map[int64]*frame{}
	for id, th := range k.threads {
		if x := th.find(kind); x != nil && id != but {
			calls[id] = x
		}
	}
	return calls
}

// reportInside reports calls on d that have not returned when another one does.
func (k *checker) reportInside(rule Rule, d *ib.Device, calls map[int64]*frame, when string, at []uintptr) {
	if len(calls) == 0 {
		return
	}
	all := goroutines()
	for id, c := range calls {
		if all[id].trace == "" {
			continue // it has just returned
		}
		k.report(Violation{
			Rule: rule, What: fmt.Sprintf("%s has not returned when %s returns", c.what, when),
			Stacks: []Stack{{c.what + ", still inside", all[id].trace}, {when, trace(at)}},
		}, d, c.entry)
	}
}
