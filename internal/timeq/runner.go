package timeq

import (
	"sync"
	"time"
)

// Runner calls a function at given times. A Runner is the goroutine of a queue that processes values as they become
// due.
type Runner struct {
	wake chan struct{}
	stop chan struct{}
	done chan struct{} // closed when the goroutine has returned
	once sync.Once
}

// NewRunner starts a goroutine that calls work at each Wake, and after the duration that work has returned. After a
// duration of 0, the goroutine waits only for Wake and sets no timer, so that virtual time can stand still. The
// caller must call Stop at the end.
func NewRunner(work func() (next time.Duration)) *Runner {
	r := &Runner{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go r.runLoop(work)
	return r
}

func (r *Runner) runLoop(work func() time.Duration) {
	defer close(r.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timer.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-r.wake:
		case <-timer.C:
		}
		if next := work(); next > 0 {
			timer.Reset(next)
		}
	}
}

// Wake makes the goroutine call its function now, because the head of the queue has changed. Wake does not sleep.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Stop ends the goroutine, and waits until its function has returned. Stop may be called more than once, and may
// sleep.
func (r *Runner) Stop() {
	r.once.Do(func() { close(r.stop) })
	<-r.done
}
