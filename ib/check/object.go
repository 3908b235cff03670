package check

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// object is the state that checked mode keeps for an object of package ib, or for a function for events.
type object struct {
	ending
	k     *checker
	self  any        // such as an *ib.MR
	dev   *ib.Device // everybody's
	by    *device    // by which it was made
	kind  string
	owner *ib.Client // of that Device, or in whose Add or Remove it, or what it is made of, was made; nil if that is not known
	made  []uintptr
	order uint64 // of the objects of the checker

	destroyed atomic.Pointer[[]uintptr] // where, once it is
	ends      atomic.Pointer[[]uintptr] // where that was called for
	abandoned atomic.Bool               // may be used after Unregister, to end
	user      bool                      // a queue of a user context, whose program may post and poll without a call

	// of a CQ
	cq       ib.DriverCQ
	requests atomic.Int64          // by ReqNotify, less the answers
	armings  atomic.Int64          // calls of ReqNotify
	probed   atomic.Pointer[rearm] // checked mode has armed the queue, the consumer has not
	rearm    atomic.Pointer[time.Timer]
	answers  atomic.Int64 // calls of Completed
	calls    atomic.Int64 // those of them that call the handler
	called   atomic.Int64 // calls when the handler began last
	polls    atomic.Int64
	pending  atomic.Int64 // work requests that may complete on it
	polling  atomic.Int32 // calls of Poll
	broken   atomic.Bool  // completions may have been lost

	mayOverrun bool // CQIgnoreOverrun
	deadMu     sync.Mutex
	dead       map[uint32]*work // by number: queue pairs that were destroyed, of which completions may be in it

	armed   atomic.Pointer[time.Timer]
	probing sync.Mutex // held while the driver is asked whether there are completions, and while it destroys the queue
	gone    bool       // under probing: the driver has destroyed the queue
	raised  atomic.Pointer[[]uintptr]
	handler atomic.Pointer[frame] // that runs now

	// of a QP or SRQ
	work     *work       // nil: its work requests are not followed
	stopping atomic.Bool // the driver destroys it, or has
}

// eventFunction is the kind of a function for events.
const eventFunction = "event function"

// Object notes where an object is made, and by whom.
func (k *checker) Object(self any, kind string, by, of observe.Subject) observe.Subject {
	d := by.(*device)
	o := &object{k: k, self: self, dev: d.dev, by: d, kind: kind, made: callers(), owner: d.client}
	if of != nil && o.owner == nil {
		o.owner = of.(*object).owner
	}
	if o.owner == nil {
		o.owner = d.owner()
	}
	return o
}

// objectOf returns the object of an object of package ib, nil if it is not checked.
func objectOf(x any) *object {
	o, _ := observe.Of(x).(*object)
	return o
}

// Enter begins a call on the object, or a callback of it.
func (o *object) Enter(c *observe.Call) error {
	f := &frame{kind: inMethod, what: c.What, obj: o, dev: o.dev}
	switch c.Kind {
	case observe.Handler:
		return o.handle(c, f)
	case observe.Callback:
		f.kind = inCallback
		if c.Arg == ib.EventQPLastWQEReached {
			o.work.lastWQE()
		}
		return o.k.begin(c, f)
	case observe.Atomic:
		f.kind = inAtomic
	case observe.Destroy:
		return o.destroy(c, f)
	case observe.Change:
		defer o.checkInFlight(c.What)
	}
	c.State = f
	return o.enter(f)
}

// enter enters a frame of a call on the object. An error says that the object does not exist any more, so that the driver is not to be
// called.
func (o *object) enter(f *frame) error {
	f.obj, f.dev = o, o.dev
	err := o.checkDestroyed(f.what)
	if err == nil && !o.abandoned.Load() {
		err = o.by.checkGone(f.what)
	}
	if o.k.enter(f) {
		err = syscall.EDEADLK
	}
	return err
}

// destroy begins the destruction, with EDEADLK from a callback that it would wait for. Other errors are those of the driver.
func (o *object) destroy(c *observe.Call, f *frame) error {
	f.waits = true
	if o.kind == eventFunction {
		return o.k.begin(c, f)
	}
	c.State = f
	if err := o.enter(f); err == syscall.EDEADLK {
		return err
	}
	o.ends.Store(&f.entry)
	o.checkInFlight(c.What)
	return nil
}

// handle begins a call of the completion handler.
func (o *object) handle(c *observe.Call, f *frame) error {
	f.kind, f.armings = inCallback, o.armings.Load()
	o.called.Store(o.calls.Load())
	if at := o.raised.Load(); at != nil {
		f.raised = *at
	}
	err := o.k.begin(c, f)
	if other := o.handler.Swap(f); other != nil {
		o.k.report(Violation{
			Rule: RuleOneHandler, What: "a second completion handler of a CQ started while the first was running",
			Stacks: []Stack{{"the second", trace(f.entry)}, {"the first", trace(other.entry)}, {"raised at", trace(f.raised)}},
		}, o.dev, f.entry)
	}
	return err
}

// handled ends it.
func (o *object) handled(f *frame, returned bool) {
	if returned && f.polled != nil && o.armings.Load() == f.armings {
		o.expectRearm(f.polled, f.batch)
	}
	if returned && f.blind != nil && f.batch {
		o.expectRest(f.blind)
	}
	o.handler.CompareAndSwap(f, nil)
}

// due reports whether a call of the handler is to come.
func (o *object) due() bool { return o.calls.Load() > o.called.Load() }

// Note notes an event of the object.
func (o *object) Note(e observe.Event, _ any) error {
	switch e {
	case observe.Born:
		o.born()
	case observe.Died:
		o.died()
	case observe.Abandoned:
		o.abandon()
	case observe.Raised:
		_ = o.checkDestroyed(o.kind + "Handle.Raise")
		o.broken.Store(true) // of a CQ
	case observe.Completed:
		return o.completed()
	}
	return nil
}

// checkDestroyed reports the use of an object that has been destroyed.
func (o *object) checkDestroyed(what string) error {
	return o.checkUse(what, "%s on a %v that was destroyed")
}

// checkUse is checkDestroyed with the format of the report, which gets what and the kind of the object.
func (o *object) checkUse(what, format string) error {
	at := o.destroyed.Load()
	if at == nil {
		return nil
	}
	used := callers()
	o.k.report(Violation{
		Rule: RuleUseAfterDestroy, What: fmt.Sprintf(format, what, o.kind),
		Stacks: []Stack{{what, trace(used)}, {"destroyed at", trace(*at)}, {"made at", trace(o.made)}},
	}, o.dev, used)
	return syscall.EINVAL
}

func (o *object) born() {
	o.k.mu.Lock()
	defer o.k.mu.Unlock()
	o.k.made++
	o.order = o.k.made
	o.k.live[o] = struct{}{}
}

func (o *object) died() {
	at := callers()
	if called := o.ends.Load(); called != nil {
		at = *called // perhaps by another goroutine
	}
	o.destroyed.Store(&at)
	o.work.gone(at)
	for _, t := range []*time.Timer{o.armed.Load(), o.rearm.Load()} {
		if t != nil {
			t.Stop()
		}
	}
	id := observe.Goroutine()
	o.k.mu.Lock()
	delete(o.k.live, o)
	var inside *frame
	for _, th := range o.k.threads {
		// One that waits for the end of the object, having called for it, is not inside it.
		if f := th.find(func(f *frame) bool { return f.obj == o && !f.waits }); f != nil && th.id != id {
			inside = f
		}
	}
	o.k.mu.Unlock()
	if inside == nil {
		return
	}
	o.k.report(Violation{
		Rule: RuleInUse, What: fmt.Sprintf("a thread was inside %s when the %v was destroyed", inside.what, o.kind),
		Stacks: []Stack{{inside.what + " called at", trace(inside.entry)}, {"destroyed at", trace(at)}, {"made at", trace(o.made)}},
	}, o.dev, at)
}

func (o *object) abandon() {
	o.abandoned.Store(true)
	o.k.mu.Lock()
	defer o.k.mu.Unlock()
	delete(o.k.live, o)
}

var errProbe = errors.New("checked mode has armed the queue, the consumer has not")

// completed checks that the driver's report is called for. An error says that it is of checked mode's own making.
func (o *object) completed() error {
	_ = o.checkDestroyed("CQHandle.Completed")
	at := callers()
	o.raised.Store(&at)
	o.answers.Add(1)
	if o.requests.Add(-1) < 0 {
		o.requests.Add(1)
		o.k.report(Violation{
			Rule: RuleNotifyOnce, What: "CQHandle.Completed called more often than ReqNotify",
			Stacks: []Stack{{"CQHandle.Completed", trace(at)}, {"the CQ made at", trace(o.made)}},
		}, o.dev, at)
	}
	if o.ownProbe() {
		return errProbe
	}
	o.calls.Add(1)
	return nil
}
