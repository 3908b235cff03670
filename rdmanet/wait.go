package rdmanet

import (
	"context"

	"verbena/internal/sched"
)

// spins is how often a goroutine that waits polls, and lets others run in between, before it sleeps; as CQ.Wait of package verbs.
const spins = 32

// waiter is what one goroutine at a time waits for.
type waiter struct {
	wake  chan struct{}
	ready func() bool // called with Conn.mu held

	waits bool // for wake; under Conn.mu
}

func (w *waiter) init(ready func() bool) {
	w.wake, w.ready = make(chan struct{}, 1), ready
}

// signal makes the goroutine check again.
func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// notify wakes the goroutines that need not wait any more.
//
//verbena:held mu
func (c *Conn) notify() {
	for _, w := range c.waiters {
		if w.waits && w.ready() {
			w.signal()
		}
	}
}

// await waits until w is ready. The error is why d has ended.
//
// The goroutine polls for itself. When it has polled in vain for some time, one goroutine of the connection sleeps at
// the completion channel, and handles what comes for all; the others sleep until it wakes them.
func (c *Conn) await(w *waiter, d *deadline) error {
	for i := range spins {
		c.mu.Lock()
		c.poll()
		over, err := over(w, d)
		c.mu.Unlock()
		if over {
			return err
		}
		sched.Relax(i)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.poll()
		if over, err := over(w, d); over {
			c.succeed()
			return err
		}
		ctx := d.context()
		if c.sleeping {
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
		c.sleeping = true
		c.mu.Unlock()
		err := c.sleep(ctx, w)
		c.mu.Lock()
		c.sleeping = false
		if err != nil && ctx.Err() == nil {
			c.without(err)
		}
	}
}

// over reports whether w waits no more, and why d has ended if that is the reason. Conn.mu is held.
func over(w *waiter, d *deadline) (bool, error) {
	if err := d.reason(); err != nil {
		return true, err
	}
	return w.ready(), nil
}

// sleep waits at the completion channel until something has completed.
func (c *Conn) sleep(ctx context.Context, w *waiter) error {
	if err := c.cq.Arm(false); err != nil {
		return err
	}
	c.mu.Lock()
	c.poll() // what has come before is not reported
	ready := w.ready()
	c.mu.Unlock()
	if ready {
		return nil
	}
	_, err := c.cq.Channel().Wait(ctx)
	return err
}

// succeed leaves the completion channel to another goroutine that waits.
//
//verbena:held mu
func (c *Conn) succeed() {
	if c.sleeping {
		return
	}
	for _, w := range c.waiters {
		if w.waits {
			w.signal()
			return
		}
	}
}
