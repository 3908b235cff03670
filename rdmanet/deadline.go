package rdmanet

import (
	"context"
	"os"
	"time"
)

// deadline ends the waiting of one direction: when its time comes, or when the direction ends for good. Its owner's
// lock is held for each method.
type deadline struct {
	lock interface {
		Lock()
		Unlock()
	}
	timer *time.Timer
	sets  int   // of set: a timer of an earlier one has no effect
	err   error // why nothing waits; nil: it may wait
	final bool  // err stays

	ctx    context.Context // ends with err; nil: none has waited yet
	cancel context.CancelCauseFunc
}

// set makes t the deadline; zero: there is none.
func (d *deadline) set(t time.Time) {
	if d.final {
		return
	}
	d.sets++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.err != nil {
		d.err, d.ctx, d.cancel = nil, nil, nil
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.expire(os.ErrDeadlineExceeded)
		return
	}
	number := d.sets
	d.timer = time.AfterFunc(left, func() {
		d.lock.Lock()
		defer d.lock.Unlock()
		if d.sets == number && !d.final {
			d.expire(os.ErrDeadlineExceeded)
		}
	})
}

// end ends the direction for good.
func (d *deadline) end(err error) {
	d.final = true
	if d.timer != nil {
		d.timer.Stop()
	}
	d.expire(err)
}

func (d *deadline) expire(err error) {
	d.err = err
	if d.cancel != nil {
		d.cancel(err)
	}
}

// reason returns why there is no more waiting; nil: it may wait.
func (d *deadline) reason() error {
	if d.err == nil && d.ctx != nil {
		return context.Cause(d.ctx)
	}
	return d.err
}

// context ends when there is no more waiting. err must be nil.
func (d *deadline) context() context.Context {
	if d.ctx == nil {
		d.ctx, d.cancel = context.WithCancelCause(context.Background())
	}
	return d.ctx
}
