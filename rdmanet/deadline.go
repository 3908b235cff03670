package rdmanet

import (
	"context"
	"os"
	"time"
)

// deadline ends the waits of one direction, either at a time limit or permanently. The caller of each method must hold
// the owner's lock.
type deadline struct {
	lock interface {
		Lock()
		Unlock()
	}
	timer *time.Timer
	sets  int   // number of calls of set; a timer of an earlier call has no effect
	err   error // the reason for the failure of waits; nil if waits are allowed
	final bool  // err is permanent

	ctx    context.Context // cancelled with err; nil if no wait has needed the context yet
	cancel context.CancelCauseFunc
}

// setTime makes t the deadline. A zero t means no deadline.
func (d *deadline) setTime(t time.Time) {
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

// failWaits makes all waits fail permanently with err.
func (d *deadline) failWaits(err error) {
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

// failureReason returns the reason for the failure of waits, or nil if waits are allowed.
func (d *deadline) failureReason() error {
	if d.err == nil && d.ctx != nil {
		return context.Cause(d.ctx)
	}
	return d.err
}

// waitContext returns a context that is cancelled when the waits end. The field err must be nil.
func (d *deadline) waitContext() context.Context {
	if d.ctx == nil {
		d.ctx, d.cancel = context.WithCancelCause(context.Background())
	}
	return d.ctx
}
