package ib

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib/internal/observe"
	"verbena/internal/notify"
)

// callbackQueue holds the due callbacks of the consumers of a device. A callback never runs in the callchain of the
// method that raised it. The method queues the callback. A thread without locks runs it: a thread that called
// HoldCallbacks, or a worker goroutine. Workers exist only while callbacks are due. Callbacks are short, and a thread
// switch for each would cost more than it saves. A further worker therefore starts only when a callback has waited for
// helpDelay.
//
// A thread that holds callbacks may block on the memory of an unresponsive program. If no due callback starts within
// lateDelay, the existing holds count as stale.
type callbackQueue struct {
	// holds is the number of threads that run callbacks or will run them soon. A thread locks mu to end its hold, but
	// not to begin it.
	holds atomic.Int32

	mu      sync.Mutex
	idle    sync.Cond      // on mu; signalled when a callback returns
	due     fifo[*CQ]      // completion handlers; contains each CQ at most once
	events  fifo[dueEvent] // asynchronous events, delivered one at a time in this order
	inEvent bool           // an event is being delivered
	closed  bool           // new events of the device are dropped
	raised  EventCounts
	workers int
	running [2]int      // callbacks in progress, by the parity of the epoch in which they began
	epoch   uint        // number of calls of drain
	taken   [2]uint64   // handlers and events removed from due and events
	help    *time.Timer // starts a worker; nil until first used
	helpSet bool        // help is running

	stale   int         // number of holds that are treated as absent
	begun   uint64      // callbacks started so far
	late    *time.Timer // detects stale holds; nil until first used
	looking bool        // late is running
	seen    uint64      // value of begun when the timer late was started
}

const (
	helpDelay = 100 * time.Microsecond
	lateDelay = 10 * time.Millisecond
)

// dueEvent is a due asynchronous event. Exactly one of the fields cq, qp, srq and on names the target; on is the
// device.
type dueEvent struct {
	cq  *CQ
	qp  *QP
	srq *SRQ
	on  *eventHandlers
	ev  Event
}

// fifo is a queue that releases the memory of removed elements. The zero fifo is empty.
type fifo[T any] struct {
	buf  []T
	head int // buf[:head] is free
}

func (q *fifo[T]) len() int { return len(q.buf) - q.head }

// push appends v. If buf is full and at least half of buf is free, push moves the elements to the front.
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

func (c *callbackQueue) init() { c.idle.L = &c.mu }

func (c *callbackQueue) runningCount() int { return c.running[0] + c.running[1] }

// pushHandler queues a completion handler. pushHandler may not sleep.
func (c *callbackQueue) pushHandler(cq *CQ) {
	c.mu.Lock()
	c.due.push(cq)
	c.unlockAndEnsureRunner()
}

// pushEvent queues an asynchronous event. pushEvent may not sleep.
func (c *callbackQueue) pushEvent(cb dueEvent) {
	c.mu.Lock()
	if cb.on == nil || !c.closed {
		c.events.push(cb)
		c.raised.countEvent(cb.ev.Type)
	}
	c.unlockAndEnsureRunner()
}

// canRun reports whether a callback can run now.
//
//verbena:held mu
func (c *callbackQueue) canRun() bool { return c.due.len() > 0 || c.events.len() > 0 && !c.inEvent }

// unlockAndEnsureRunner releases mu. unlockAndEnsureRunner starts a worker if callbacks are due and no thread will run
// them.
//
//verbena:held mu
func (c *callbackQueue) unlockAndEnsureRunner() {
	start := c.canRun() && c.runnerCount() == 0
	if start {
		c.workers++
	} else {
		c.requestWorker()
		c.startStaleHoldTimer()
	}
	c.mu.Unlock()
	if start {
		go c.runWorker()
	}
}

// runnerCount returns the number of threads that run callbacks or will run them soon.
//
//verbena:held mu
func (c *callbackQueue) runnerCount() int { return int(c.holds.Load()) - c.stale + c.workers }

// startStaleHoldTimer starts a timer: after lateDelay, markStaleHolds checks that a callback has started.
//
//verbena:held mu
func (c *callbackQueue) startStaleHoldTimer() {
	if c.looking || !c.canRun() || c.workers > 0 {
		return
	}
	c.looking, c.seen = true, c.begun
	if c.late == nil {
		c.late = time.AfterFunc(lateDelay, c.markStaleHolds)
	} else {
		c.late.Reset(lateDelay)
	}
}

// markStaleHolds marks the holds as stale if a callback is due and no callback has started since expect.
func (c *callbackQueue) markStaleHolds() {
	c.mu.Lock()
	c.looking = false
	if c.canRun() && c.begun == c.seen {
		c.stale = int(c.holds.Load())
	}
	c.unlockAndEnsureRunner()
}

// needsRunner reports whether a callback is due while all threads that could run it are busy.
//
//verbena:held mu
func (c *callbackQueue) needsRunner() bool {
	return c.canRun() && c.runningCount() >= c.runnerCount() && c.workers < max(2, runtime.GOMAXPROCS(0))
}

//verbena:held mu
func (c *callbackQueue) requestWorker() {
	if c.helpSet || !c.needsRunner() {
		return
	}
	c.helpSet = true
	if c.help == nil {
		c.help = time.AfterFunc(helpDelay, c.runWorkerIfNeeded)
	} else {
		c.help.Reset(helpDelay)
	}
}

func (c *callbackQueue) runWorkerIfNeeded() {
	c.mu.Lock()
	c.helpSet = false
	start := c.needsRunner()
	if start {
		c.workers++
	}
	c.mu.Unlock()
	if start {
		c.runWorker()
	}
}

// runWorker is the loop of a worker.
func (c *callbackQueue) runWorker() {
	c.mu.Lock()
	for c.canRun() {
		c.runOneCallback(true, nil)
	}
	c.endRunnerAndUnlock(true)
}

// endRunnerAndUnlock ends a worker or the hold of a thread, and releases mu.
//
//verbena:held mu
func (c *callbackQueue) endRunnerAndUnlock(worker bool) {
	if worker {
		c.workers--
		c.idle.Broadcast()
	} else {
		c.stale = min(c.stale, int(c.holds.Add(-1)))
	}
	c.unlockAndEnsureRunner()
}

// runOneCallback runs a due callback, either on a worker or on a thread that holds callbacks, for the Hold by if that
// is not nil. runOneCallback returns with mu held. If the callback panics or calls runtime.Goexit, the worker or the
// hold ends, and another thread runs the remaining callbacks.
//
//verbena:held mu
func (c *callbackQueue) runOneCallback(worker bool, by *Hold) {
	epoch := c.epoch % 2
	c.running[epoch]++
	c.begun++
	if c.events.len() > 0 && !c.inEvent {
		cb := c.events.pop()
		c.taken[1]++
		c.inEvent = true
		c.requestWorker()
		c.mu.Unlock()
		returned := false
		defer func() {
			c.finishEvent(epoch)
			if !returned {
				c.endRunnerAndUnlock(worker)
			}
		}()
		cb.deliverEvent()
		returned = true
		return
	}
	cq := c.due.pop()
	c.taken[0]++
	c.requestWorker()
	c.mu.Unlock()
	returned := false
	defer func() {
		c.finishHandler(epoch, cq)
		if !returned {
			c.endRunnerAndUnlock(worker)
		}
	}()
	cq.runBy = by
	cq.callHandler()
	returned = true
}

// finishEvent records that the event function has returned. finishEvent returns with mu held.
func (c *callbackQueue) finishEvent(epoch uint) {
	c.mu.Lock()
	c.inEvent = false
	c.finishCallback(epoch)
}

// finishHandler records that the handler of cq has returned. finishHandler returns with mu held.
func (c *callbackQueue) finishHandler(epoch uint, cq *CQ) {
	cq.runBy = nil
	again := cq.notify.applyTransition(notify.Notice.EndHandler)
	c.mu.Lock()
	if again {
		c.due.push(cq)
	}
	c.finishCallback(epoch)
}

//verbena:held mu
func (c *callbackQueue) finishCallback(epoch uint) {
	c.running[epoch]--
	c.idle.Broadcast()
}

// drainCallbacks waits until all callbacks that were due or running at the call have returned. From then on the device
// drops new events. drainCallbacks does not wait for callbacks that the remaining objects raise later.
func (c *callbackQueue) drainCallbacks() {
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

// lastCallbackRaiser is implemented by a driver, or an object of a driver, that tests consumers. RaiseLastCallbacks is
// called when the destruction of the object begins, or when an event function of the device ends. If RaiseLastCallbacks
// returns true, the due callbacks begin first. These include callbacks raised by RaiseLastCallbacks.
type lastCallbackRaiser interface{ RaiseLastCallbacks() bool }

// awaitLastCallbacks calls RaiseLastCallbacks of a lastCallbackRaiser and waits until the due callbacks have begun. For
// other drivers it does nothing. The wait is limited, because a callback may wait for the caller.
func awaitLastCallbacks[D any](c *callbackQueue, d D) {
	e, ok := As[lastCallbackRaiser](d)
	if !ok {
		return
	}
	c.mu.Lock()
	before := c.taken
	c.mu.Unlock()
	if !e.RaiseLastCallbacks() {
		return
	}
	c.mu.Lock()
	due := [2]uint64{c.taken[0] + uint64(c.due.len()), c.taken[1] + uint64(c.events.len())}
	c.mu.Unlock()
	for n := 0; due != before && n < 20; n++ {
		c.mu.Lock()
		begun := c.taken[0] >= due[0] && c.taken[1] >= due[1]
		c.mu.Unlock()
		time.Sleep(helpDelay) // a removed callback also needs some time to begin
		if begun {
			return
		}
	}
}

// waitUntil blocks until done returns true. waitUntil calls done with mu held, first at once and then each time a
// callback has returned.
func (c *callbackQueue) waitUntil(done func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !done() {
		c.idle.Wait()
	}
}

// maxCallbacksPerRun limits the number of callbacks that a thread runs before it returns to its own work. A worker runs
// the rest. Otherwise other threads could occupy this thread for ever.
const maxCallbacksPerRun = 256

// HoldCallbacks announces that the calling thread will soon call RunCallbacks. Until that call, due callbacks wait for
// this thread and do not wake a worker. The hold saves a context switch between a doorbell or a packet and the
// completion handler. The caller must not sleep before RunCallbacks. If callbacks have waited for 10 ms, a worker runs
// them. HoldCallbacks may not be called from a consumer's callback or from a driver's method. HoldCallbacks itself may
// not sleep.
func (h *DeviceHandle) HoldCallbacks() { h.dev.holdCallbacks(nil) }

// holdCallbacks begins a hold. If by is not nil, the hold belongs to by.
func (d *Device) holdCallbacks(by *Hold) {
	d.callbacks.holds.Add(1) // first: see startObserving
	if s := d.observedSubject(); s != nil {
		s.RecordEvent(observe.HoldBegins, by)
	}
}

// RunCallbacks runs the due callbacks and ends the hold of HoldCallbacks. The caller must hold no lock that a callback
// could need, and must not be in the callchain of a consumer's call. RunCallbacks may not sleep; the callbacks may not
// sleep either.
func (h *DeviceHandle) RunCallbacks() { h.dev.runCallbacks(nil, maxCallbacksPerRun) }

// runCallbacks runs at most most due callbacks and ends the hold. The hold ends even if a callback does not return.
func (d *Device) runCallbacks(by *Hold, most int) {
	if s := d.observedSubject(); s != nil {
		s.RecordEvent(observe.HoldEnds, by)
	}
	c := &d.callbacks
	c.mu.Lock()
	for n := 0; n < most && c.canRun(); n++ {
		c.runOneCallback(false, by)
	}
	c.endRunnerAndUnlock(false)
}

// Hold is a set of devices. One thread will run the callbacks of all these devices. A Hold has the effect of
// [DeviceHandle.HoldCallbacks] on each device of the set. The zero Hold is empty and ready for use. A Hold is not safe
// for concurrent use, and must not be copied. A Hold may be reused after Run has returned, and does not allocate for up
// to four devices.
type Hold struct {
	devices []*Device
	first   [4]*Device // initial backing array of devices
	work    []Work
	some    [4]Work // initial backing array of work
	stall   Staller
	keeps   bool
	rest    Work
	takes   bool // the caller of Run calls TakeLater
	later   []LateWork
	few     [4]LateWork // initial backing array of later
}

// Staller receives reports of deferred work that is blocked. Stalled may not sleep.
type Staller interface{ Stalled() }

// OnStall sets the receiver of Stalled calls until Run returns. A nil Staller is ignored.
func (h *Hold) OnStall(s Staller) { h.stall = s }

// Stalled reports that deferred work is blocked on unresponsive memory. A driver must not call Stalled on the thread of
// Run. By then the caller of Run has finished its own work, and can release the threads that wait for this work.
// Deferred work must not continue before Stalled has returned. Stalled may be called more than once, and does nothing
// for a nil Hold. Stalled may not sleep.
func (h *Hold) Stalled() {
	if h != nil && h.stall != nil {
		h.stall.Stalled()
	}
}

// Work is an action of a driver that runs after its method has returned. Run may not sleep.
type Work interface{ Run() }

// Defer makes Run execute w first, on the thread that calls Run. A method defers work for other objects. The caller's
// own objects then need not wait for that work. Defer may be called wherever Add may be called, but h must not be nil.
// Defer may not sleep.
func (h *Hold) Defer(w Work) {
	if h.work == nil {
		h.work = h.some[:0]
	}
	h.work = append(h.work, w)
}

// Deferred returns the argument of the last Defer since Run, or nil. With Deferred, a method can extend the work that
// an earlier method has deferred.
func (h *Hold) Deferred() Work {
	if h == nil || len(h.work) == 0 {
		return nil
	}
	return h.work[len(h.work)-1]
}

// Keep makes Resume store unfinished work for the caller of the next Run.
func (h *Hold) Keep() { h.keeps = true }

// Resume is called by deferred work that has occupied the thread of Run for too long. If Resume returns true, the
// caller of Run runs w again after the due callbacks. If Resume returns false, w must continue on another thread.
// Resume returns false for a nil Hold.
func (h *Hold) Resume(w Work) bool {
	if h == nil || !h.keeps || h.rest != nil {
		return false
	}
	h.rest = w
	return true
}

// Rest returns the unfinished work of the last Run, or nil. The caller passes it to Defer. Without Keep, Rest always
// returns nil.
func (h *Hold) Rest() (w Work) {
	w, h.rest = h.rest, nil
	return w
}

// LateWork is an action of a completion handler's consumer for the caller of Run. RunLate may sleep, and may block for
// ever.
type LateWork interface{ RunLate() }

// TakeLater removes the work that completion handlers have left for the caller of Run ([UserSide.RunLater]), and passes
// each element to take. TakeLater is called after Run.
func (h *Hold) TakeLater(take func(LateWork)) {
	for _, w := range h.later {
		take(w)
	}
	clear(h.later)
	h.later = h.later[:0]
}

// Add holds the callbacks of a device until Run, as HoldCallbacks does. Add does nothing if h is nil or contains the
// device already. The thread that calls Add must also call Run. Add may not be called from a consumer's callback or
// from a driver's method. The exception is [UserQP].Doorbell, which may call Add on its Hold argument. Add may not
// sleep.
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

// Run executes the deferred work, runs the due callbacks of each device in the order of Add, and ends the holds.
// Afterwards the set is empty. The rules of [DeviceHandle.RunCallbacks] apply. If a callback panics or calls
// runtime.Goexit, workers run the remaining callbacks of all devices. Run may not sleep.
func (h *Hold) Run() {
	next := 0
	defer func() {
		clear(h.work)
		h.work, h.stall, h.keeps, h.takes = h.work[:0], nil, false, false
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
		d.runCallbacks(h, maxCallbacksPerRun)
	}
}

// atomicNotice is an atomic [notify.Notice] of a CQ.
type atomicNotice struct{ word atomic.Uint32 }

func (n *atomicNotice) notice() notify.Notice { return notify.Notice(n.word.Load()) }

// applyTransition applies the transition f and returns the second result of f.
func (n *atomicNotice) applyTransition(f func(notify.Notice) (notify.Notice, bool)) (yes bool) {
	for {
		old := n.notice()
		next, yes := f(old)
		if next == old || n.word.CompareAndSwap(uint32(old), uint32(next)) {
			return yes
		}
	}
}

// isQuiet reports whether no callback is due or running.
func (n *atomicNotice) isQuiet() bool { return n.notice().IsQuiet() }

// callHandler runs the completion handler.
func (cq *CQ) callHandler() {
	call := cq.notify.applyTransition(notify.Notice.BeginHandler)
	if f := cq.dev.atHandler.Load(); f != nil && cq.dev.atHandler.CompareAndSwap(f, nil) {
		(*f)()
	}
	if call {
		runObservedCall(cq.subject, observe.Handler, "the completion handler", nil, func() { cq.handler(cq) })
	}
}

// deliverEvent delivers the event.
func (cb *dueEvent) deliverEvent() {
	switch {
	case cb.cq != nil:
		defer cb.cq.notify.applyTransition(notify.Notice.EndEvent)
		if cb.cq.notify.applyTransition(notify.Notice.BeginEvent) {
			cb.cq.callEventHandler(cb.ev.Type)
		}
	case cb.qp != nil:
		defer cb.qp.pending.Add(-1)
		if !cb.qp.dead.Load() {
			cb.qp.callEventHandler(cb.ev.Type)
		}
	case cb.srq != nil:
		defer cb.srq.pending.Add(-1)
		if !cb.srq.dead.Load() {
			cb.srq.callEventHandler(cb.ev.Type)
		}
	case cb.on != nil:
		cb.on.callAllHandlers(cb.ev)
	}
}
