package ib

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// callbacks is what a device's consumers are still to be told. A callback never runs in the callchain of the method
// that raised it: it is queued here and run by a thread that holds nothing, either one that announced itself with
// HoldCallbacks or a worker goroutine. Workers exist only while there is work. A further one is started only
// when a callback takes so long that another has waited for helpDelay: callbacks are short, and waking a thread for
// each would cost more than it gains.
//
// A thread that holds callbacks may be stopped in the memory of a program that does not answer. When for lateDelay nothing
// that is due has been run, the holds that there are count no more.
type callbacks struct {
	mu      sync.Mutex
	idle    sync.Cond      // on mu; a callback has returned
	due     fifo[*CQ]      // completion handlers, each queue at most once
	events  fifo[callback] // asynchronous events, delivered one after the other in this order
	inEvent bool           // one of them is being delivered
	holds   int            // threads that will run callbacks, or do
	workers int
	running int
	help    *time.Timer // starts a worker; nil: never needed yet
	helping bool        // it is set

	stale   int         // of the holds, those that are not relied on
	begun   uint64      // callbacks that were started
	late    *time.Timer // looks for holds that have become stale; nil: never needed yet
	looking bool        // it is set
	looked  uint64      // begun when it was set
}

const (
	helpDelay = 100 * time.Microsecond
	lateDelay = 10 * time.Millisecond
)

// callback is one asynchronous event that is due: of a completion queue (cq), of a queue pair (qp), of a shared
// receive queue (srq), or of the device (on).
type callback struct {
	cq  *CQ
	qp  *QP
	srq *SRQ
	on  *eventHandlers
	ev  Event
}

// fifo is a queue that forgets what has been taken. The zero fifo is empty.
type fifo[T any] struct {
	buf  []T
	head int // buf[:head] has been taken
}

func (q *fifo[T]) len() int { return len(q.buf) - q.head }

// push appends; when the room runs out and half of it has been taken, that is used again.
func (q *fifo[T]) push(v T) {
	if len(q.buf) == cap(q.buf) && q.head > 0 && q.head >= len(q.buf)/2 {
		n := copy(q.buf, q.buf[q.head:])
		clear(q.buf[n:])
		q.buf, q.head = q.buf[:n], 0
	}
	q.buf = append(q.buf, v)
}

func (q *fifo[T]) pop() (v T) {
	v, q.buf[q.head] = q.buf[q.head], v
	if q.head++; q.head == len(q.buf) {
		q.buf, q.head = q.buf[:0], 0
	}
	return v
}

func (c *callbacks) init() { c.idle.L = &c.mu }

// pushHandler queues a completion handler. It may not sleep.
func (c *callbacks) pushHandler(cq *CQ) {
	c.mu.Lock()
	c.due.push(cq)
	c.unlockAndServe()
}

// pushEvent queues an asynchronous event. It may not sleep.
func (c *callbacks) pushEvent(cb callback) {
	c.mu.Lock()
	c.events.push(cb)
	c.unlockAndServe()
}

// ready is called with mu held: there is something that a thread could run now.
func (c *callbacks) ready() bool { return c.due.len() > 0 || c.events.len() > 0 && !c.inEvent }

// unlockAndServe gives up mu, and sees to it that someone will run what is due.
func (c *callbacks) unlockAndServe() {
	start := c.ready() && c.helpers() == 0
	if start {
		c.workers++
	} else {
		c.callHelp()
		c.expect()
	}
	c.mu.Unlock()
	if start {
		go c.work()
	}
}

// helpers is called with mu held: the threads that run callbacks, or will soon.
func (c *callbacks) helpers() int { return c.holds - c.stale + c.workers }

// expect is called with mu held: what is due is to be begun within lateDelay.
func (c *callbacks) expect() {
	if c.looking || !c.ready() || c.workers > 0 {
		return
	}
	c.looking, c.looked = true, c.begun
	if c.late == nil {
		c.late = time.AfterFunc(lateDelay, c.isLate)
	} else {
		c.late.Reset(lateDelay)
	}
}

// isLate starts a worker when nothing has been begun since expect.
func (c *callbacks) isLate() {
	c.mu.Lock()
	c.looking = false
	if c.ready() && c.begun == c.looked {
		c.stale = c.holds
	}
	c.unlockAndServe()
}

// short is called with mu held: something is due, and everyone who could run it is busy with another callback.
func (c *callbacks) short() bool {
	return c.ready() && c.running >= c.helpers() && c.workers < max(2, runtime.GOMAXPROCS(0))
}

// callHelp is called with mu held.
func (c *callbacks) callHelp() {
	if c.helping || !c.short() {
		return
	}
	c.helping = true
	if c.help == nil {
		c.help = time.AfterFunc(helpDelay, c.helpOut)
	} else {
		c.help.Reset(helpDelay)
	}
}

func (c *callbacks) helpOut() {
	c.mu.Lock()
	c.helping = false
	start := c.short()
	if start {
		c.workers++
	}
	c.mu.Unlock()
	if start {
		c.work()
	}
}

func (c *callbacks) work() {
	c.mu.Lock()
	for c.ready() {
		c.runOne()
	}
	c.workers--
	c.idle.Broadcast()
	c.mu.Unlock()
}

// runOne is called with mu held and something ready, and returns with mu held.
func (c *callbacks) runOne() {
	c.running++
	c.begun++
	if c.events.len() > 0 && !c.inEvent {
		cb := c.events.pop()
		c.inEvent = true
		c.callHelp()
		c.mu.Unlock()
		cb.call()
		c.mu.Lock()
		c.inEvent = false
	} else {
		cq := c.due.pop()
		c.callHelp()
		c.mu.Unlock()
		again := cq.callHandler()
		c.mu.Lock()
		if again {
			c.due.push(cq)
		}
	}
	c.running--
	c.idle.Broadcast()
}

// drain returns when nothing is due or running.
func (c *callbacks) drain() {
	c.waitFor(func() bool { return c.running == 0 && c.due.len() == 0 && c.events.len() == 0 })
}

// waitFor returns when done, which is looked at each time a callback has returned, with mu held.
func (c *callbacks) waitFor(done func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !done() {
		c.idle.Wait()
	}
}

// runBatch is how many callbacks a thread runs, at most, before it goes on with its own work and leaves the rest to
// a worker: it may not be kept for ever by what others raise.
const runBatch = 256

// HoldCallbacks announces that the calling thread will soon call RunCallbacks: until then callbacks that come due
// wait for it instead of waking a worker, which saves a thread switch on the path from a doorbell or a packet to a
// completion handler. The caller must not sleep in between; callbacks that have waited for it for 10 ms are run by a worker
// all the same. It may not be called from a consumer's callback or from
// a driver's method. It may not sleep itself.
func (h *DeviceHandle) HoldCallbacks() {
	d := h.dev
	if k := d.check.Load(); k != nil {
		k.hold(d)
	}
	c := &d.callbacks
	c.mu.Lock()
	c.holds++
	c.mu.Unlock()
}

// RunCallbacks runs what is due, and ends the hold of HoldCallbacks. The caller must hold no lock that a callback
// could need, and must not be in the callchain of a consumer's call. It may not sleep; the callbacks may not either.
func (h *DeviceHandle) RunCallbacks() {
	d := h.dev
	if k := d.check.Load(); k != nil {
		k.endHold(d)
	}
	c := &d.callbacks
	c.mu.Lock()
	for n := 0; n < runBatch && c.ready(); n++ {
		c.runOne()
	}
	c.holds--
	c.stale = min(c.stale, c.holds)
	c.unlockAndServe()
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
	missed atomic.Bool  // one would have, since
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

// quiet reports that no handler is due or running.
func (n *notifier) quiet() bool {
	return notifyState(n.state.Load()) == notifyIdle && n.events.Load() == 0
}

// callHandler runs the completion handler and reports whether it is due again.
func (cq *CQ) callHandler() (again bool) {
	n := &cq.notify
	n.state.Store(int32(notifyRunning))
	if f := cq.dev.atHandler.Load(); f != nil && cq.dev.atHandler.CompareAndSwap(f, nil) {
		(*f)()
	}
	switch {
	case n.dead.Load():
		n.missed.Store(true)
	case cq.check != nil:
		cq.checkedHandler()
	default:
		cq.handler(cq)
	}
	if n.swap(notifyRunning, notifyIdle) {
		return false
	}
	n.state.Store(int32(notifyDue))
	return true
}

// call delivers the event.
func (cb *callback) call() {
	switch {
	case cb.cq != nil:
		if !cb.cq.notify.dead.Load() {
			cb.cq.callEvent(cb.ev.Type)
		}
		cb.cq.notify.events.Add(-1)
	case cb.qp != nil:
		if !cb.qp.dead.Load() {
			cb.qp.callEvent(cb.ev.Type)
		}
		cb.qp.pending.Add(-1)
	case cb.srq != nil:
		if !cb.srq.dead.Load() {
			cb.srq.callEvent(cb.ev.Type)
		}
		cb.srq.pending.Add(-1)
	case cb.on != nil:
		cb.on.call(cb.ev)
	}
}
