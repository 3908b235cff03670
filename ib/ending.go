package ib

import (
	"context"
	"errors"
	"fmt"
	"syscall"
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

// object.uses is the state of an object: how many others refer to it while it is alive, and one of these.
//
//	alive --end--> destroying --done--> destroyed
//	  ^                |
//	  +----refused-----+
const (
	destroying int32 = -1 - iota
	destroyed
)

// live is nil while the object is alive.
func (o *object) live() error {
	if o.uses.Load() < 0 {
		return fmt.Errorf("%v was destroyed, or is being: %w", o.kind, syscall.EINVAL)
	}
	return nil
}

// end destroys the object if nothing uses it, or joins the call that is doing so: destroy is the driver's, which may refuse, and
// after follows. ctx ends the wait alone.
func (o *object) end(ctx context.Context, what string, destroy func() error, after func()) error {
	o.ends.Lock()
	if !o.uses.CompareAndSwap(0, destroying) {
		n, e := o.uses.Load(), o.ending
		o.ends.Unlock()
		switch {
		case n == destroying && e != nil:
			return e.wait(ctx)
		case n < 0:
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
	if !o.uses.CompareAndSwap(0, destroying) {
		n := o.uses.Load()
		if n < 0 {
			return syscall.EINVAL
		}
		return inUse(n)
	}
	return o.finish(destroy())
}

// inUse returns the error for an object that n others refer to.
func inUse(n int32) error {
	if n < 1 { // they were destroyed meanwhile
		return syscall.EBUSY
	}
	return fmt.Errorf("%d other objects refer to it: %w", n, syscall.EBUSY)
}

// finish is called in state destroying, with what the driver's method has returned.
func (o *object) finish(err error) error {
	if err != nil {
		o.uses.Store(0)
		return err
	}
	o.uses.Store(destroyed)
	if o.counted.Swap(false) {
		o.dev.objects[o.kind].Add(-1)
	}
	if o.check != nil {
		o.check.died()
	}
	return nil
}
