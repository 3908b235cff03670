package timeq

import (
	"sync"
	"time"
)

// Runner calls a function when a time has come: the goroutine of a queue whose values are worked off as they fall due.
type Runner struct {
	wake chan struct{}
	stop chan struct{}
	done chan struct{} // closed when the goroutine has returned
	once sync.Once
}

// NewRunner starts a goroutine that calls work at each Wake, and when the time is over that work has returned; 0: it
// waits for Wake alone, and sets no timer, so that virtual time can stand still. The caller calls Stop in the end.
func NewRunner(work func() (next time.Duration)) *Runner {
	r := &Runner{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go r.run(work)
	return r
}

func (r *Runner) run(work func() time.Duration) {
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

// Wake lets the goroutine call its function once more, now: the head of the queue has changed. It does not sleep.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Stop ends the goroutine, and waits until its function has returned. It may be called more than once, and may sleep.
func (r *Runner) Stop() {
	r.once.Do(func() { close(r.stop) })
	<-r.done
}
