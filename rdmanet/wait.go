package rdmanet

import (
	"context"

	"verbena/internal/sched"
)

// spinPolls is the number of polls of a waiting goroutine before it sleeps, as in CQ.Wait of package verbs. The
// goroutine yields between polls.
const spinPolls = 32

// waiter is the wait state of one operation. Only one goroutine at a time uses a waiter.
type waiter struct {
	wake  chan struct{}
	ready func() bool // called with Conn.mu held

	waits bool // the goroutine waits for a signal on wake; protected by Conn.mu
}

func (w *waiter) init(ready func() bool) {
	w.wake, w.ready = make(chan struct{}, 1), ready
}

// signal makes the waiting goroutine check its condition again.
func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// waiterList holds the waiters of a connection. Conn.mu guards it.
type waiterList struct {
	list     []*waiter
	sleeping bool // one goroutine waits at the completion channel on behalf of all waiters
}

// wakeReadyWaiters wakes the goroutines that need not wait any longer.
func (l *waiterList) wakeReadyWaiters() {
	for _, w := range l.list {
		if w.waits && w.ready() {
			w.signal()
		}
	}
}

// awaitReady waits until w is ready. If d ends first, the error is the reason of d.
//
// First, each goroutine spins for itself. Then one goroutine of the connection sleeps at the completion channel and
// handles the completions of all waiters. The other goroutines sleep until this one wakes them.
func (c *Conn) awaitReady(w *waiter, d *deadline) error {
	for i := range spinPolls {
		c.mu.Lock()
		c.pollCompletions()
		over, err := isWaitOver(w, d)
		c.mu.Unlock()
		if over {
			return err
		}
		sched.Relax(i)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.pollCompletions()
		if over, err := isWaitOver(w, d); over {
			c.waiting.handOverChannel()
			return err
		}
		ctx := d.waitContext()
		if c.waiting.sleeping {
			w.waits = true
			c.mu.Unlock()
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
			c.mu.Lock()
			w.waits = false
			continue
		}
		c.waiting.sleeping = true
		c.mu.Unlock()
		err := c.sleepUntilCompletion(ctx, w)
		c.mu.Lock()
		c.waiting.sleeping = false
		if err != nil && ctx.Err() == nil {
			c.markDeviceUnusable(err)
		}
	}
}

// isWaitOver reports whether the wait of w has ended. If d has ended, the error is the reason of d. Conn.mu must be
// held.
func isWaitOver(w *waiter, d *deadline) (bool, error) {
	if err := d.failureReason(); err != nil {
		return true, err
	}
	return w.ready(), nil
}

// sleepUntilCompletion waits at the completion channel for the next completion.
func (c *Conn) sleepUntilCompletion(ctx context.Context, w *waiter) error {
	if err := c.cq.Arm(false); err != nil {
		return err
	}
	c.mu.Lock()
	c.pollCompletions() // the channel does not report completions that arrived before Arm
	ready := w.ready()
	c.mu.Unlock()
	if ready {
		return nil
	}
	_, err := c.cq.Channel().Wait(ctx)
	return err
}

// handOverChannel makes another waiting goroutine wait at the completion channel.
func (l *waiterList) handOverChannel() {
	if l.sleeping {
		return
	}
	for _, w := range l.list {
		if w.waits {
			w.signal()
			return
		}
	}
}
