package ib

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib/internal/observe"
	"verbena/internal/notify"
)

// callbacks is what a device's consumers are still to be told. A callback never runs in the callchain of the method
// that raised it: it is queued here and run by a thread that holds nothing, either one that announced itself with
// HoldCallbacks or a worker goroutine. Workers exist only while there is work. A further one is started only
// when a callback takes so long that another has waited for helpDelay: callbacks are short, and waking a thread for
// each would cost more than it gains.
//
// A thread that holds callbacks may be stopped in the memory of a program that does not answer. When for lateDelay
// nothing that is due has been run, the holds that there are count no more.
type callbacks struct {
	// holds are the threads that run callbacks, or will: each takes mu before it ends its hold, and only ends are under
	// mu.
	holds atomic.Int32

	mu      sync.Mutex
	idle    sync.Cond      // on mu; a callback has returned
	due     fifo[*CQ]      // completion handlers, each queue at most once
	events  fifo[callback] // asynchronous events, delivered one after the other in this order
	inEvent bool           // one of them is being delivered
	closed  bool           // no event of the device is taken any more
	raised  EventCounts
	workers int
	running [2]int      // by the parity of the epoch in which they began
	epoch   uint        // counts calls of drain
	taken   [2]uint64   // handlers and events that were taken from due and events
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

func (c *callbacks) runningNow() int { return c.running[0] + c.running[1] }

// pushHandler queues a completion handler. It may not sleep.
func (c *callbacks) pushHandler(cq *CQ) {
	c.mu.Lock()
	c.due.push(cq)
	c.unlockAndServe()
}

// pushEvent queues an asynchronous event. It may not sleep.
func (c *callbacks) pushEvent(cb callback) {
	c.mu.Lock()
	if cb.on == nil || !c.closed {
		c.events.push(cb)
		c.raised.add(cb.ev.Type)
	}
	c.unlockAndServe()
}

// ready reports whether there is something that a thread could run now.
//
//verbena:held mu
func (c *callbacks) ready() bool { return c.due.len() > 0 || c.events.len() > 0 && !c.inEvent }

// unlockAndServe releases mu, and starts a worker if no thread will run what is due.
//
//verbena:held mu
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

// helpers returns the number of threads that run callbacks, or will soon.
//
//verbena:held mu
func (c *callbacks) helpers() int { return int(c.holds.Load()) - c.stale + c.workers }

// expect has isLate look whether what is due was begun within lateDelay.
//
//verbena:held mu
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
		c.stale = int(c.holds.Load())
	}
	c.unlockAndServe()
}

// short reports whether something is due, and every thread that could run it is busy with another callback.
//
//verbena:held mu
func (c *callbacks) short() bool {
	return c.ready() && c.runningNow() >= c.helpers() && c.workers < max(2, runtime.GOMAXPROCS(0))
}

//verbena:held mu
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

// work is a worker's life.
func (c *callbacks) work() {
	c.mu.Lock()
	for c.ready() {
		c.runOne(true)
	}
	c.leave(true)
}

// leave ends a worker, or the hold of a thread, and releases mu.
//
//verbena:held mu
func (c *callbacks) leave(worker bool) {
	if worker {
		c.workers--
		c.idle.Broadcast()
	} else {
		c.stale = min(c.stale, int(c.holds.Add(-1)))
	}
	c.unlockAndServe()
}

// runOne runs a callback that is ready, on a worker or a thread that holds callbacks, and returns with mu held. A callback that panics or ends the goroutine is the end of the worker, or of the hold: another takes over.
//
//verbena:held mu
func (c *callbacks) runOne(worker bool) {
	epoch := c.epoch % 2
	c.running[epoch]++
	c.begun++
	if c.events.len() > 0 && !c.inEvent {
		cb := c.events.pop()
		c.taken[1]++
		c.inEvent = true
		c.callHelp()
		c.mu.Unlock()
		returned := false
		defer func() {
			c.eventRan(epoch)
			if !returned {
				c.leave(worker)
			}
		}()
		cb.call()
		returned = true
		return
	}
	cq := c.due.pop()
	c.taken[0]++
	c.callHelp()
	c.mu.Unlock()
	returned := false
	defer func() {
		c.handlerRan(epoch, cq)
		if !returned {
			c.leave(worker)
		}
	}()
	cq.callHandler()
	returned = true
}

// eventRan notes that the event function has returned, and returns with mu held.
func (c *callbacks) eventRan(epoch uint) {
	c.mu.Lock()
	c.inEvent = false
	c.ran(epoch)
}

// handlerRan notes that the handler of cq has returned, and returns with mu held.
func (c *callbacks) handlerRan(epoch uint, cq *CQ) {
	again := cq.notify.step(notify.Notice.Return)
	c.mu.Lock()
	if again {
		c.due.push(cq)
	}
	c.ran(epoch)
}

//verbena:held mu
func (c *callbacks) ran(epoch uint) {
	c.running[epoch]--
	c.idle.Broadcast()
}

// drain returns when what was due or running when it was called has run. No event of the device is taken any more; what
// comes after that of the objects that are left is not waited for.
func (c *callbacks) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	handlers, events := c.taken[0]+uint64(c.due.len()), c.taken[1]+uint64(c.events.len())
	for c.taken[0] < handlers || c.taken[1] < events {
		c.idle.Wait()
	}
	before := c.epoch % 2
	c.epoch++
	for c.running[before] > 0 {
		c.idle.Wait()
	}
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

// HoldCallbacks announces that the calling thread will soon call RunCallbacks: until then callbacks that come due wait
// for it instead of waking a worker, which saves a thread switch on the path from a doorbell or a packet to a
// completion handler. The caller must not sleep in between; callbacks that have waited for it for 10 ms are run by a
// worker all the same. It may not be called from a consumer's callback or from a driver's method. It may not sleep
// itself.
func (h *DeviceHandle) HoldCallbacks() { h.dev.holdCallbacks(nil) }

// holdCallbacks begins a hold, which is one of by if that is not nil.
func (d *Device) holdCallbacks(by *Hold) {
	d.callbacks.holds.Add(1) // first: see startObserving
	if s := d.observed(); s != nil {
		s.Note(observe.HoldBegins, by)
	}
}

// RunCallbacks runs what is due, and ends the hold of HoldCallbacks. The caller must hold no lock that a callback
// could need, and must not be in the callchain of a consumer's call. It may not sleep; the callbacks may not either.
func (h *DeviceHandle) RunCallbacks() { h.dev.runCallbacks(nil, runBatch) }

// runCallbacks runs what is due, up to a number of callbacks, and ends the hold. If one of them does not return, the hold
// has ended all the same.
func (d *Device) runCallbacks(by *Hold, most int) {
	if s := d.observed(); s != nil {
		s.Note(observe.HoldEnds, by)
	}
	c := &d.callbacks
	c.mu.Lock()
	for n := 0; n < most && c.ready(); n++ {
		c.runOne(false)
	}
	c.leave(false)
}

// Hold is a set of devices whose callbacks one thread is going to run: [DeviceHandle.HoldCallbacks] for as many devices as
// come to have something due. The zero Hold is empty and ready for use. It is not safe for concurrent use, and must not be
// copied. It may be used again when Run has returned, and allocates nothing for up to four devices.
type Hold struct {
	devices []*Device
	first   [4]*Device // room for devices
	work    []Work
	some    [4]Work // room for work
	stall   Staller
	keeps   bool
	rest    Work
}

// Staller is told that deferred work takes long.
type Staller interface{ Stalled() }

// OnStall makes Stalled call s, until Run has returned. A nil Staller is not called.
func (h *Hold) OnStall(s Staller) { h.stall = s }

// Stalled is called by a driver, on another thread than that of Run, when deferred work is stopped in memory that does not
// answer: the caller of Run, whose own work is done by then, can let go of those that wait for it. Deferred work must not go on
// before Stalled has returned. It may be called more than once, and does nothing for a nil Hold. It may not sleep.
func (h *Hold) Stalled() {
	if h != nil && h.stall != nil {
		h.stall.Stalled()
	}
}

// Work is something that a driver does when its method has returned. Run may not sleep.
type Work interface{ Run() }

// Defer makes Run begin with w, on the thread that calls it: what a method does on behalf of others it does there, where no
// object of its caller has to wait for it. It may be called where Add may, not with a nil Hold, and may not sleep.
func (h *Hold) Defer(w Work) {
	if h.work == nil {
		h.work = h.some[:0]
	}
	h.work = append(h.work, w)
}

// Deferred returns what Defer was called with last since Run, nil if nothing: a method may find there what another one before
// it has left, and add to it.
func (h *Hold) Deferred() Work {
	if h == nil || len(h.work) == 0 {
		return nil
	}
	return h.work[len(h.work)-1]
}

// Keep makes Resume, during the next Run, keep work for the caller of Run, which has nothing else to do then.
func (h *Hold) Keep() { h.keeps = true }

// Resume is called by work that has run for so long that others may wait for its thread. If it returns true, the caller of Run
// runs it again when the callbacks that are due have run; if false, it has to find another thread. It returns false for a nil Hold.
func (h *Hold) Resume(w Work) bool {
	if h == nil || !h.keeps || h.rest != nil {
		return false
	}
	h.rest = w
	return true
}

// Rest returns the work that the last Run has left unfinished, for the caller to pass to Defer; nil if there is none, as always
// without Keep.
func (h *Hold) Rest() (w Work) {
	w, h.rest = h.rest, nil
	return w
}

// Add holds the callbacks of a device until Run, as HoldCallbacks does; for a device that is in the set, or with a nil Hold, it
// does nothing. The thread that calls Add must be the one that is to call Run. Add may not be called from a consumer's callback,
// nor from a driver's method; the exception is [UserQP].Doorbell, for the Hold that it was given. It may not sleep.
func (h *Hold) Add(d *DeviceHandle) {
	if h == nil {
		return
	}
	for _, x := range h.devices {
		if x == d.dev {
			return
		}
	}
	if h.devices == nil {
		h.devices = h.first[:0]
	}
	d.dev.holdCallbacks(h)
	h.devices = append(h.devices, d.dev)
}

// Run does what was deferred, runs what is due then on each device, in the order of Add, and ends their holds; the set is empty
// then. The rules are those of [DeviceHandle.RunCallbacks]. If a callback panics or ends the goroutine, workers run what is left,
// on every device. It may not sleep.
func (h *Hold) Run() {
	next := 0
	defer func() {
		clear(h.work)
		h.work, h.stall, h.keeps = h.work[:0], nil, false
		for ; next < len(h.devices); next++ {
			h.devices[next].runCallbacks(h, 0)
		}
		clear(h.devices)
		h.devices = h.devices[:0]
	}()
	for i := 0; i < len(h.work); i++ {
		h.work[i].Run()
	}
	for next < len(h.devices) {
		d := h.devices[next]
		next++
		d.runCallbacks(h, runBatch)
	}
}

// notifier is the [notify.Notice] of a CQ.
type notifier struct{ word atomic.Uint32 }

func (n *notifier) now() notify.Notice { return notify.Notice(n.word.Load()) }

// step makes a transition, and returns what it says.
func (n *notifier) step(f func(notify.Notice) (notify.Notice, bool)) (yes bool) {
	for {
		old := n.now()
		next, yes := f(old)
		if next == old || n.word.CompareAndSwap(uint32(old), uint32(next)) {
			return yes
		}
	}
}

// quiet reports that no callback is due or running.
func (n *notifier) quiet() bool { return n.now().Quiet() }

// callHandler runs the completion handler.
func (cq *CQ) callHandler() {
	call := cq.notify.step(notify.Notice.Begin)
	if f := cq.dev.atHandler.Load(); f != nil && cq.dev.atHandler.CompareAndSwap(f, nil) {
		(*f)()
	}
	if call {
		callBack(cq.subject, observe.Handler, "the completion handler", nil, func() { cq.handler(cq) })
	}
}

// call delivers the event.
func (cb *callback) call() {
	switch {
	case cb.cq != nil:
		defer cb.cq.notify.step(notify.Notice.Delivered)
		if cb.cq.notify.step(notify.Notice.Deliver) {
			cb.cq.callEvent(cb.ev.Type)
		}
	case cb.qp != nil:
		defer cb.qp.pending.Add(-1)
		if !cb.qp.dead.Load() {
			cb.qp.callEvent(cb.ev.Type)
		}
	case cb.srq != nil:
		defer cb.srq.pending.Add(-1)
		if !cb.srq.dead.Load() {
			cb.srq.callEvent(cb.ev.Type)
		}
	case cb.on != nil:
		cb.on.call(cb.ev)
	}
}
