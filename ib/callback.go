package ib

import (
	"sync"
	"sync/atomic"
)

// callbacks is the device's queue of callbacks that are due. A callback never runs in the callchain of the
// method that raised it: it is queued here and run by a thread that holds nothing, either one that announced
// itself with HoldCallbacks or the worker goroutine, which exists only while there is work.
type callbacks struct {
	mu      sync.Mutex
	idle    sync.Cond // on mu; a callback has returned
	due     []callback
	head    int // due[:head] has been taken
	runners int
	worker  bool
	running int
}

// callback is one call that is due: a completion handler (cq), an event of a completion queue (cqEvent), of a
// queue pair (qp), or of the device (on).
type callback struct {
	cq      *CQ
	cqEvent *CQ
	qp      *QP
	on      *eventHandlers
	ev      Event
}

func (c *callbacks) init() { c.idle.L = &c.mu }

// push may not sleep.
func (c *callbacks) push(cb callback) {
	c.mu.Lock()
	c.add(cb)
	start := c.runners == 0 && !c.worker
	if start {
		c.worker = true
	}
	c.mu.Unlock()
	if start {
		go c.work()
	}
}

// add is called with mu held. When the room runs out and half of it has been taken, that is used again.
func (c *callbacks) add(cb callback) {
	if len(c.due) == cap(c.due) && c.head > 0 && c.head >= len(c.due)/2 {
		n := copy(c.due, c.due[c.head:])
		clear(c.due[n:])
		c.due, c.head = c.due[:n], 0
	}
	c.due = append(c.due, cb)
}

func (c *callbacks) work() {
	c.mu.Lock()
	c.run()
	c.worker = false
	c.idle.Broadcast()
	c.mu.Unlock()
}

// run is called with mu held, and returns with it held when nothing is due.
func (c *callbacks) run() {
	for c.head < len(c.due) {
		cb := c.due[c.head]
		c.due[c.head] = callback{}
		c.head++
		c.running++
		c.mu.Unlock()
		again := cb.call()
		c.mu.Lock()
		c.running--
		c.idle.Broadcast()
		if again {
			c.add(cb)
		}
	}
	c.due, c.head = c.due[:0], 0
}

// drain returns when nothing is due or running.
func (c *callbacks) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.running > 0 || c.head < len(c.due) {
		c.idle.Wait()
	}
}

// waitFor returns when done, which is looked at each time a callback has returned.
func (c *callbacks) waitFor(done func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !done() {
		c.idle.Wait()
	}
}

// HoldCallbacks announces that the calling thread will soon call RunCallbacks: until then callbacks that come due
// wait for it instead of waking the worker, which saves a thread switch on the path from a doorbell or a packet
// to a completion handler. The caller must hold no lock that a callback could need when it calls RunCallbacks,
// and must not sleep in between. It may not be called from a consumer's call.
func (d *Device) HoldCallbacks() {
	c := &d.callbacks
	c.mu.Lock()
	c.runners++
	c.mu.Unlock()
}

// RunCallbacks runs what is due, and ends the hold of HoldCallbacks.
func (d *Device) RunCallbacks() {
	c := &d.callbacks
	c.mu.Lock()
	c.run()
	c.runners--
	c.mu.Unlock()
}

// notifyState serialises the completion handler of one CQ.
//
//	idle --Completed--> due --taken--> running --returned--> idle
//	                     ^                |
//	                     |            Completed
//	                     |                v
//	                     +--returned-- rerun
type notifyState int32

const (
	notifyIdle notifyState = iota
	notifyDue
	notifyRunning
	notifyRerun
)

type notifier struct {
	state  atomic.Int32 // notifyState
	events atomic.Int32 // asynchronous events that are due
	dead   atomic.Bool  // no handler is to start any more
}

func (n *notifier) swap(from, to notifyState) bool {
	return n.state.CompareAndSwap(int32(from), int32(to))
}

// raise reports whether the handler has to be queued.
func (n *notifier) raise() bool {
	for {
		switch notifyState(n.state.Load()) {
		case notifyIdle:
			if n.swap(notifyIdle, notifyDue) {
				return true
			}
		case notifyRunning:
			if n.swap(notifyRunning, notifyRerun) {
				return false
			}
		default:
			return false
		}
	}
}

// call runs the callback and reports whether it is due again.
func (cb *callback) call() (again bool) {
	switch {
	case cb.cq != nil:
		n := &cb.cq.notify
		n.state.Store(int32(notifyRunning))
		if !n.dead.Load() {
			cb.cq.handler(cb.cq)
		}
		if n.swap(notifyRunning, notifyIdle) {
			return false
		}
		n.state.Store(int32(notifyDue))
		return true
	case cb.cqEvent != nil:
		if !cb.cqEvent.notify.dead.Load() {
			cb.cqEvent.event(cb.cqEvent, cb.ev.Type)
		}
		cb.cqEvent.notify.events.Add(-1)
	case cb.qp != nil:
		if !cb.qp.dead.Load() && cb.qp.event != nil {
			cb.qp.event(cb.qp, cb.ev.Type)
		}
		cb.qp.pending.Add(-1)
	case cb.on != nil:
		cb.on.call(cb.ev)
	}
	return false
}
