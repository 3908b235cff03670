package ib

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"verbena/ib/internal/observe"
	"verbena/internal/states"
)

// pendingEnd is a destruction or unregistration in progress, of an object, a device or a client. Concurrent calls
// for the same destruction join it.
type pendingEnd struct {
	done chan struct{}
	err  error // valid when done is closed
	// abandoned is set if the caller has returned before the end, because its context ended. The next call then returns
	// the result, also after the end. The owner's lock guards abandoned.
	abandoned bool
}

var errCallDidNotReturn = errors.New("the call did not return")

func newPendingEnd() *pendingEnd {
	return &pendingEnd{done: make(chan struct{}), err: errCallDidNotReturn}
}

// isDone reports whether the ending is complete.
func (e *pendingEnd) isDone() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// wait returns the result of the ending. If ctx ends first, wait returns the cause, and the destruction continues.
func (e *pendingEnd) wait(ctx context.Context) error {
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("still in progress: %w", context.Cause(ctx))
	}
}

// runInContext runs f on the caller's goroutine if ctx cannot end. Otherwise it runs f on a new goroutine and waits
// until f returns or ctx ends.
func runInContext(ctx context.Context, f func() error) error {
	if ctx.Done() == nil {
		return f()
	}
	e := newPendingEnd()
	go func() {
		defer close(e.done)
		e.err = f()
	}()
	return e.wait(ctx)
}

// lifeState returns the state and use count of the object.
func (o *object) lifeState() states.Object { return states.Object(o.uses.Load()) }

// checkNotDestroyed returns nil while the object is alive.
func (o *object) checkNotDestroyed() error {
	if !o.lifeState().IsAlive() {
		return fmt.Errorf("%v is destroyed, or is being destroyed: %w", o.kind, syscall.EINVAL)
	}
	return nil
}

// destroyObject destroys the object like end, or joins a destruction that an earlier call has abandoned.
func (o *object) destroyObject(ctx context.Context, what string, destroy func() error, after func()) error {
	if err, joined := o.rejoinDestroy(ctx, what); joined {
		return err
	}
	f, err := o.enterDestroyCall(what)
	defer f.leave()
	if err != nil {
		return err
	}
	return o.destroyOrJoin(ctx, what, destroy, after)
}

// destroyOrJoin destroys the object if no other object uses it, or joins a destruction in progress. destroy is the
// driver's method and may fail. after runs if destroy has succeeded. ctx limits only the wait.
func (o *object) destroyOrJoin(ctx context.Context, what string, destroy func() error, after func()) error {
	o.ends.Lock()
	if !states.ApplyTransition(&o.uses, states.Object.BeginDestroy) {
		n, e := o.lifeState(), o.ending
		o.ends.Unlock()
		switch {
		case n == states.ObjectEnding && e != nil:
			return o.awaitDestroy(ctx, e)
		case !n.IsAlive():
			return syscall.EINVAL
		}
		return newInUseError(n)
	}
	e := newPendingEnd()
	o.ending = e
	o.ends.Unlock()
	run := func() error {
		defer func() {
			o.ends.Lock()
			defer o.ends.Unlock()
			if !e.abandoned || e.err != nil {
				o.ending = nil
			}
			close(e.done)
		}()
		if e.err = o.finishDestroy(destroy()); e.err == nil {
			after()
		}
		return e.err
	}
	if ctx.Done() == nil {
		return run()
	}
	go func() {
		defer o.enterSleeping(what).leave()
		_ = run()
	}()
	return o.awaitDestroy(ctx, e)
}

// awaitDestroy waits for the end of a destruction. If ctx ends first, a further call of rejoin returns the result.
func (o *object) awaitDestroy(ctx context.Context, e *pendingEnd) error {
	err := e.wait(ctx)
	o.ends.Lock()
	defer o.ends.Unlock()
	if e.isDone() {
		return e.err
	}
	e.abandoned = true
	return err
}

// rejoinDestroy waits for a destruction whose caller has returned before the end. It returns false if there is none, or
// if another call has returned the result.
func (o *object) rejoinDestroy(ctx context.Context, what string) (err error, ok bool) {
	o.ends.Lock()
	e := o.ending
	ok = e != nil && e.abandoned
	o.ends.Unlock()
	if !ok {
		return nil, false
	}
	defer o.dev.enterSleeping(what).leave() // the object may be destroyed already
	err = o.awaitDestroy(ctx, e)
	o.ends.Lock()
	defer o.ends.Unlock()
	if o.ending == e && e.isDone() {
		o.ending = nil
	}
	return err, true
}

// destroyWithoutSleep is end for callers that may not sleep. A second call fails and does not join the first one.
func (o *object) destroyWithoutSleep(destroy func() error) error {
	if !states.ApplyTransition(&o.uses, states.Object.BeginDestroy) {
		n := o.lifeState()
		if !n.IsAlive() {
			return syscall.EINVAL
		}
		return newInUseError(n)
	}
	return o.finishDestroy(destroy())
}

// newInUseError returns the error for an object to which n other objects refer.
func newInUseError(n states.Object) error {
	if n < 1 { // destroyed meanwhile
		return syscall.EBUSY
	}
	return fmt.Errorf("the object is in use by %d other objects: %w", n, syscall.EBUSY)
}

// finishDestroy records the result of the driver's destroy method. The object must be in the state destroying.
func (o *object) finishDestroy(err error) error {
	if err != nil {
		states.ApplyTransition(&o.uses, states.Object.Refused)
		return err
	}
	states.ApplyTransition(&o.uses, states.Object.FinishDestroy)
	if o.counted.Swap(false) {
		o.dev.objects[o.kind].Add(-1)
	}
	reportEvent(o.subject, observe.Died, nil)
	return nil
}
