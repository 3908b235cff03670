package ib

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"verbena/ib/internal/observe"
	"verbena/internal/states"
)

// ending is the end of an object, a device or a client that is going on. Those who call for it meanwhile join it.
type ending struct {
	done chan struct{}
	err  error // once done is closed
}

var errUnfinished = errors.New("the call did not return")

func newEnding() *ending { return &ending{done: make(chan struct{}), err: errUnfinished} }

// over reports whether it has come to its end.
func (e *ending) over() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// wait returns the result, or when ctx ends why: the end itself goes on then.
func (e *ending) wait(ctx context.Context) error {
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("still going on: %w", context.Cause(ctx))
	}
}

// inContext runs f on the caller's goroutine if ctx cannot end, and else on one of its own, for which the caller waits no longer
// than ctx.
func inContext(ctx context.Context, f func() error) error {
	if ctx.Done() == nil {
		return f()
	}
	e := newEnding()
	go func() {
		defer close(e.done)
		e.err = f()
	}()
	return e.wait(ctx)
}

// now is what object.uses says.
func (o *object) now() states.Object { return states.Object(o.uses.Load()) }

// live is nil while the object is alive.
func (o *object) live() error {
	if !o.now().Alive() {
		return fmt.Errorf("%v was destroyed, or is being: %w", o.kind, syscall.EINVAL)
	}
	return nil
}

// end destroys the object if nothing uses it, or joins the call that is doing so: destroy is the driver's, which may refuse, and
// after follows. ctx ends the wait alone.
func (o *object) end(ctx context.Context, what string, destroy func() error, after func()) error {
	o.ends.Lock()
	if !states.Step(&o.uses, states.Object.End) {
		n, e := o.now(), o.ending
		o.ends.Unlock()
		switch {
		case n == states.ObjectEnding && e != nil:
			return e.wait(ctx)
		case !n.Alive():
			return syscall.EINVAL
		}
		return inUse(n)
	}
	e := newEnding()
	o.ending = e
	o.ends.Unlock()
	run := func() error {
		defer func() {
			o.ends.Lock()
			o.ending = nil
			o.ends.Unlock()
			close(e.done)
		}()
		if e.err = o.finish(destroy()); e.err == nil {
			after()
		}
		return e.err
	}
	if ctx.Done() == nil {
		return run()
	}
	go func() {
		defer o.sleeps(what).leave()
		_ = run()
	}()
	return e.wait(ctx)
}

// kill does the same where sleeping is not allowed: a second call fails instead of joining the first.
func (o *object) kill(destroy func() error) error {
	if !states.Step(&o.uses, states.Object.End) {
		n := o.now()
		if !n.Alive() {
			return syscall.EINVAL
		}
		return inUse(n)
	}
	return o.finish(destroy())
}

// inUse returns the error for an object that n others refer to.
func inUse(n states.Object) error {
	if n < 1 { // they were destroyed meanwhile
		return syscall.EBUSY
	}
	return fmt.Errorf("%d other objects refer to it: %w", n, syscall.EBUSY)
}

// finish is called in state destroying, with what the driver's method has returned.
func (o *object) finish(err error) error {
	if err != nil {
		states.Step(&o.uses, states.Object.Refused)
		return err
	}
	states.Step(&o.uses, states.Object.Ended)
	if o.counted.Swap(false) {
		o.dev.objects[o.kind].Add(-1)
	}
	note(o.subject, observe.Died, nil)
	return nil
}
