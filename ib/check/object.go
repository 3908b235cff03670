package check

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// checkedObject is the checked state of an object of package ib, or of an event function.
type checkedObject struct {
	callLeaver
	k    *checker
	self any            // the object, such as an *ib.MR
	dev  *ib.Device     // the shared handle
	by   *checkedDevice // the handle that created the object
	kind string
	// owner is the client of the handle by. For the shared handle it is the client that, in Add or Remove, created the
	// object or the object's parent. owner is nil if unknown.
	owner *ib.Client
	made  []uintptr
	order uint64 // creation order among all objects of the checker

	destroyed atomic.Pointer[[]uintptr] // stack of the destruction
	ends      atomic.Pointer[[]uintptr] // stack of the call that started the destruction
	refused   atomic.Pointer[[]uintptr] // stack of the last destruction that has failed
	abandoned atomic.Bool               // may be used after Unregister, until its destruction
	program   bool                      // belongs to a user context
	// a queue of a user context, on which the program may post and poll without a call
	user bool

	// The next fields belong to a CQ.
	cq        ib.DriverCQ
	requests  atomic.Int64               // notifications requested by ReqNotify, minus the calls of Completed
	armings   atomic.Int64               // calls of ReqNotify
	probed    atomic.Pointer[rearmWatch] // set while only checked mode, but not the consumer, has armed the queue
	rearm     atomic.Pointer[time.Timer]
	answers   atomic.Int64 // calls of Completed
	calls     atomic.Int64 // calls of Completed that cause a handler call
	handlerAt atomic.Int64 // value of calls when the handler last began
	polls     atomic.Int64
	pending   atomic.Int64 // number of work requests that may complete on the CQ
	pollers   atomic.Int32 // number of calls of Poll
	broken    atomic.Bool  // completions may have been lost
	nameless  atomic.Int64 // polled completions that name no queue pair, although none was destroyed
	told      atomic.Bool  // nameless has been reported

	mayOverrun bool // CQIgnoreOverrun
	deadMu     sync.Mutex
	suspects   []reuseSuspect          // program; under deadMu
	dead       map[uint32]*workTracker // destroyed queue pairs, by number, that may have completions in the CQ

	armed atomic.Pointer[time.Timer]
	// held while the checker polls the driver for completions, and while the driver destroys the queue
	probeMu sync.Mutex
	gone    bool // the driver has destroyed the queue
	raised  atomic.Pointer[[]uintptr]
	handler atomic.Pointer[frame] // the handler call in progress

	region atomic.Pointer[memoryRegion] // MR

	// The next fields belong to a QP or SRQ.
	work     *workTracker // nil: the work requests of the queue are not tracked
	stopping atomic.Bool  // the driver has begun the destruction
}

// eventFunction is the kind of an object that represents an event function.
const eventFunction = "event function"

// ObserveObject records the creator of a new object and the place of its creation.
func (k *checker) ObserveObject(self any, kind string, by, of observe.Subject) observe.Subject {
	d := by.(*checkedDevice)
	o := &checkedObject{k: k, self: self, dev: d.dev, by: d, kind: kind, made: callerPCs(), owner: d.client}
	if of != nil {
		o.program = of.(*checkedObject).program
		o.owner = cmp.Or(o.owner, of.(*checkedObject).owner)
	}
	o.program = o.program || k.isInUserCall()
	if o.owner == nil {
		o.owner = d.currentClient()
	}
	return o
}

// isInUserCall reports whether the calling thread executes a call of a user context (ib.UserSide).
func (k *checker) isInUserCall() bool {
	id := observe.GoroutineID()
	k.mu.Lock()
	defer k.mu.Unlock()
	th := k.threads[id]
	return th != nil && th.findFrame(func(f *frame) bool { return strings.HasPrefix(f.what, "user.") }) != nil
}

// checkedObjectOf returns the checked state of an object of package ib, or nil if the object is not checked.
func checkedObjectOf(x any) *checkedObject {
	o, _ := observe.Of(x).(*checkedObject)
	return o
}

// Enter begins a call on the object, or one of its callbacks.
func (o *checkedObject) Enter(c *observe.Call) error {
	f := &frame{kind: inMethod, what: c.What, obj: o, dev: o.dev}
	switch c.Kind {
	case observe.Handler:
		return o.beginHandler(c, f)
	case observe.Callback:
		f.kind = inCallback
		if c.Arg == ib.EventQPLastWQEReached {
			o.work.recordLastWQEReached()
		}
		return o.k.beginCall(c, f)
	case observe.Atomic:
		f.kind = inAtomic
	case observe.Destroy:
		return o.beginDestroy(c, f)
	case observe.Change:
		o.endRegionComparisons()
		defer o.checkRegionNotInUse(c.What)
	}
	c.State = f
	return o.enterObjectCall(f)
}

// enterObjectCall enters the frame of a call on the object. enterObjectCall returns an error if the object has been
// destroyed. In that case the driver must not be called.
func (o *checkedObject) enterObjectCall(f *frame) error {
	f.obj, f.dev = o, o.dev
	err := o.checkNotDestroyed(f.what)
	if err == nil && !o.abandoned.Load() {
		err = o.by.checkNotUnregistered(f.what)
	}
	if o.k.pushFrame(f) {
		err = syscall.EDEADLK
	}
	return err
}

// beginDestroy records the start of a destruction. beginDestroy returns EDEADLK in a callback for whose end the
// destruction would wait. All other errors come from the driver.
func (o *checkedObject) beginDestroy(c *observe.Call, f *frame) error {
	f.waits = true
	if o.kind == eventFunction {
		return o.k.beginCall(c, f)
	}
	c.State = f
	if err := o.enterObjectCall(f); err == syscall.EDEADLK {
		return err
	}
	o.ends.Store(&f.entry)
	observe.Endings.Add(1)
	o.endRegionComparisons()
	o.checkRegionNotInUse(c.What)
	return nil
}

// beginHandler records the start of a call of the completion handler.
func (o *checkedObject) beginHandler(c *observe.Call, f *frame) error {
	f.kind, f.armings = inCallback, o.armings.Load()
	o.handlerAt.Store(o.calls.Load())
	if at := o.raised.Load(); at != nil {
		f.raised = *at
	}
	err := o.k.beginCall(c, f)
	if other := o.handler.Swap(f); other != nil {
		o.k.report(Violation{
			Rule: RuleOneHandler, What: "a second completion handler of a CQ started while the first was running",
			Stacks: []Stack{{"the second", formatStack(f.entry)}, {"the first", formatStack(other.entry)}, {"raised at",
				formatStack(f.raised)}},
		}, o.dev, f.entry)
	}
	return err
}

// recordHandlerReturn records the end of a call of the completion handler.
func (o *checkedObject) recordHandlerReturn(f *frame, returned bool) {
	if returned && f.polled != nil && o.armings.Load() == f.armings {
		o.expectRearm(f.polled, f.batch)
	}
	if returned && f.blind != nil && f.batch {
		o.expectPollOfRemaining(f.blind)
	}
	o.handler.CompareAndSwap(f, nil)
}

// isHandlerDue reports whether a handler call is due.
func (o *checkedObject) isHandlerDue() bool { return o.calls.Load() > o.handlerAt.Load() }

// RecordEvent records an event of the object.
func (o *checkedObject) RecordEvent(e observe.SubjectEvent, _ any) error {
	switch e {
	case observe.Born:
		o.addLiveObject()
		o.addRegion()
	case observe.Died:
		o.removeLiveObject()
	case observe.Abandoned:
		o.markAbandoned()
	case observe.Raised:
		_ = o.checkNotDestroyed(o.kind + "Handle.Raise")
		o.broken.Store(true) // for a CQ
	case observe.Completed:
		return o.checkCompletionArmed()
	}
	return nil
}

// checkNotDestroyed reports the use of a destroyed object.
func (o *checkedObject) checkNotDestroyed(what string) error {
	return o.checkNotDestroyedAs(what, "%s on a %v that was destroyed")
}

// checkNotDestroyedAs is checkNotDestroyed with a format for the report. The arguments of the format are what and the
// kind of the object.
func (o *checkedObject) checkNotDestroyedAs(what, format string) error {
	at := o.destroyed.Load()
	if at == nil {
		return nil
	}
	used := callerPCs()
	o.k.report(Violation{
		Rule: RuleUseAfterDestroy, What: fmt.Sprintf(format, what, o.kind),
		Stacks: []Stack{{what, formatStack(used)}, {"destroyed at", formatStack(*at)}, {"made at", formatStack(o.made)}},
	}, o.dev, used)
	return syscall.EINVAL
}

func (o *checkedObject) addLiveObject() {
	o.k.mu.Lock()
	defer o.k.mu.Unlock()
	o.k.made++
	o.order = o.k.made
	o.k.live[o] = struct{}{}
}

func (o *checkedObject) removeLiveObject() {
	at := callerPCs()
	if called := o.ends.Load(); called != nil {
		at = *called // the destruction may run on another goroutine
	}
	o.destroyed.Store(&at)
	observe.Endings.Add(1)
	o.work.recordDestroyedQueue(at)
	for _, t := range []*time.Timer{o.armed.Load(), o.rearm.Load()} {
		if t != nil {
			t.Stop()
		}
	}
	id := observe.GoroutineID()
	o.k.mu.Lock()
	delete(o.k.live, o)
	delete(o.k.abandoned, o)
	var inside *frame
	for _, th := range o.k.threads {
		// A thread that waits for its own destruction call is not inside the object.
		if f := th.findFrame(func(f *frame) bool { return f.obj == o && !f.waits }); f != nil && th.id != id {
			inside = f
		}
	}
	o.k.mu.Unlock()
	if inside == nil {
		return
	}
	o.k.report(Violation{
		Rule: RuleInUse, What: fmt.Sprintf("a thread was inside %s when the %v was destroyed", inside.what, o.kind),
		Stacks: []Stack{{inside.what + " called at", formatStack(inside.entry)}, {"destroyed at", formatStack(at)},
			{"made at", formatStack(o.made)}},
	}, o.dev, at)
}

func (o *checkedObject) markAbandoned() {
	o.abandoned.Store(true)
	o.k.mu.Lock()
	defer o.k.mu.Unlock()
	delete(o.k.live, o)
	if o.owner != nil && !o.program && o.destroyed.Load() == nil {
		o.k.abandoned[o] = struct{}{}
	}
}

var errArmedOnlyByCheck = errors.New("only checked mode has armed the queue")

// checkCompletionArmed checks that a ReqNotify preceded the driver's report. checkCompletionArmed returns an error if
// only checked mode had armed the queue.
func (o *checkedObject) checkCompletionArmed() error {
	_ = o.checkNotDestroyed("CQHandle.Completed")
	at := callerPCs()
	o.raised.Store(&at)
	o.answers.Add(1)
	if o.requests.Add(-1) < 0 {
		o.requests.Add(1)
		o.k.report(Violation{
			Rule: RuleNotifyOnce, What: "CQHandle.Completed called more often than ReqNotify",
			Stacks: []Stack{{"CQHandle.Completed", formatStack(at)}, {"the CQ made at", formatStack(o.made)}},
		}, o.dev, at)
	}
	if o.isArmedOnlyByChecker() {
		return errArmedOnlyByCheck
	}
	o.calls.Add(1)
	return nil
}
