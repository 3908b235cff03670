package engine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"verbena/driver"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/internal/clock"
	"verbena/roce"
	"verbena/uapi"
)

// The functions of this file report the events of traced queues to the log that Config.Observer has chosen. They are
// called only for queues with a log.

// requestTrace reports the work requests of a queue pair. The thread that runs the queue pair uses it.
type requestTrace struct {
	qp    *QP
	log   driver.RequestLog
	began int64 // time when the present run began
	spent bool  // began is too old for the next event of the run
	// announced is the number after the last request that RequestsWait has reported.
	announced uint32
	psn       roce.PSN            // PSN of the present packet
	source    uint32              // sender of the present datagram
	event     driver.RequestEvent // the event that is being filled
}

// requestLog returns the trace of work requests, or nil.
func (t *trace) requestLog() *requestTrace {
	if t == nil {
		return nil
	}
	return t.requests
}

// tick returns the time in nanoseconds since 1970. It advances with the monotonic clock.
func (d *Device) tick() int64 {
	if d.clock != clock.System {
		return d.clock.Now().UnixNano()
	}
	return d.epochNano + int64(time.Since(d.epoch))
}

// newEvent clears and returns the event to fill next. The first event of a run does not read the clock, unless the
// run has stored data before.
func (t *requestTrace) newEvent(kind driver.RequestEventKind) *driver.RequestEvent {
	t.event = driver.RequestEvent{Kind: kind, Time: t.began}
	if t.spent {
		t.event.Time = t.qp.dev.tick()
	}
	t.spent = true
	return &t.event
}

// runBegan returns the start time of the queue pair's present run, or 0 without a trace.
func (t *requestTrace) runBegan() int64 {
	if t == nil {
		return 0
	}
	return t.began
}

func (t *requestTrace) add() { t.log.Add(&t.event) }

// depth returns the number of requests in the send queue.
func (t *requestTrace) depth() uint32 {
	n, _ := t.qp.sq.Waiting()
	return n + uint32(t.qp.req.snd.Len())
}

// runEnds reports the requests that remain in the ring at the end of the requester's run.
func (t *requestTrace) runEnds() {
	n, ok := t.qp.sq.Waiting()
	end := t.qp.req.snd.Tail() + n
	if !ok || n == 0 || int32(end-t.announced) <= 0 {
		return
	}
	e := t.newEvent(driver.RequestsWait)
	e.Began, e.Number, e.Depth = t.began, end, t.depth()
	t.announced = end
	t.add()
}

// started reports the first packet of a request, unless it is a retransmission.
func (t *requestTrace) started(w *sendWQE, k *transport.Packet, to uint32) {
	if w.began != 0 || !k.First {
		return
	}
	r := &t.qp.req
	e := t.newEvent(driver.RequestStarted)
	w.began = e.Time
	if int32(w.number-t.announced) >= 0 {
		e.Began = t.began
	}
	e.WRID, e.Number, e.Opcode, e.Length = w.ID, w.number, w.Opcode, uint32(w.length)
	e.PSN, e.Packets, e.Peer, e.Depth = uint32(k.PSN), uint32(w.packets), to, t.depth()
	reads := r.snd.Ordered()
	if w.kind.Answered() {
		reads--
	}
	e.Reads = uint16(max(reads, 0))
	if w.Flags&uapi.SendFence != 0 {
		e.Flags |= driver.FlagFenced
	}
	t.add()
}

// sendDone fills the event for the end of a request. The caller adds the event after the completion.
func (t *requestTrace) sendDone(w *sendWQE, status uapi.WCStatus) *driver.RequestEvent {
	if t == nil {
		return nil
	}
	e := t.newEvent(driver.RequestDone)
	e.Began, e.WRID, e.Number, e.Opcode, e.Status, e.Length = w.began, w.ID, w.number, w.Opcode, status, uint32(w.length)
	e.Depth = t.depth()
	return e
}

// receiveDone fills the event for the end of a receive. The caller adds the event after the completion.
func (t *requestTrace) receiveDone(r *responder, wc *uapi.WC) *driver.RequestEvent {
	if t == nil {
		return nil
	}
	e := t.newEvent(driver.ReceiveDone)
	e.Began, e.WRID, e.Status, e.Length = r.wqe.began, r.wqe.ID, wc.Status, wc.ByteLen
	e.PSN, e.Peer = uint32(t.psn), t.qp.attr.DestQPN
	if t.qp.datagram {
		e.Peer = t.source
	}
	if r.wqe.from != nil {
		e.Depth, e.Flags = r.wqe.left, driver.FlagShared
	} else {
		e.Depth, _ = t.qp.rq.Waiting()
	}
	return e
}

// packetArrived records the packet that is being received.
func (t *requestTrace) packetArrived(k *packet) {
	t.psn = k.psn
	t.spent = t.spent || len(k.Payload) > 0
	if h := k.DETH(); h != nil {
		t.source = h.SrcQPN()
	}
}

// repeated reports a retransmission of all packets from the oldest unacknowledged PSN on.
func (t *requestTrace) repeated(cause driver.RepeatCause, retries uint8) {
	e := t.newEvent(driver.RequestsRepeated)
	e.Cause, e.Count, e.PSN = cause, uint32(retries), uint32(t.qp.req.snd.Status().Unacknowledged)
	t.add()
}

// delayed reports an RNR NAK.
func (t *requestTrace) delayed(wait time.Duration) {
	e := t.newEvent(driver.RequestsDelayed)
	e.Count, e.PSN = uint32(wait/time.Microsecond), uint32(t.qp.req.snd.Status().Unacknowledged)
	t.add()
}

// raise raises an asynchronous event of the queue pair. The caller runs the queue pair.
func (qp *QP) raise(event ib.EventType) {
	if t := qp.trace.requestLog(); t != nil {
		t.newEvent(driver.QueueEvent).Count = uint32(event)
		t.add()
	}
	qp.obj.Raise(event)
}

// logQueue asks the observer for the log of a queue.
func (d *Device) logQueue(q driver.QueueRef, c *userContext) driver.RequestLog {
	if d.observer == nil {
		return nil
	}
	q.QP.Device, q.Time = d.name, d.clock.Now()
	if c != nil {
		q.QP.Context = c.UserContext
	}
	return d.observer.TraceQueue(q)
}

// traceRequests begins or ends the trace of the queue pair's requests, as the observer decides. The caller runs the
// queue pair, or has just created it.
func (qp *QP) traceRequests() {
	if qp.dev.observer == nil {
		return
	}
	q := driver.QueueRef{Kind: driver.QueuePair, QP: qp.report().ref(), Time: qp.dev.clock.Now(),
		SendCQ: qp.sendCQ.requestLog(), RecvCQ: qp.recvCQ.requestLog()}
	t := qp.trace.requestLog()
	if t != nil {
		q.Log = t.log
	}
	if qp.srq != nil {
		q.SRQ = qp.srq.requestLog()
	}
	log := qp.dev.observer.TraceQueue(q)
	if log == nil {
		qp.setTrace(func(t *trace) { t.requests = nil })
		return
	}
	if t != nil {
		t.log = log
		return
	}
	qp.setTrace(func(t *trace) {
		t.requests = &requestTrace{qp: qp, log: log, began: qp.dev.tick(), announced: qp.req.snd.Tail()}
	})
}

// requestLog returns the log of the completion queue, or nil.
func (c *cq) requestLog() driver.RequestLog {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log
}

// traceRequests begins or ends the trace of the completion queue, as the observer decides.
func (c *cq) traceRequests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destroyed {
		return
	}
	log := c.dev.logQueue(driver.QueueRef{Kind: driver.CompletionQueue, Entries: c.queue.Capacity(), Log: c.log}, c.ctx)
	if c.log == nil && log != nil {
		_, c.pushed, _ = c.oldest()
		c.consumed = 0
	}
	c.setLog(log)
}

// setLog sets the log, and lists the queue for LookAtTraces while it has one.
//
//verbena:held mu
func (c *cq) setLog(log driver.RequestLog) {
	if c.log == nil && log == nil {
		return
	}
	t := &c.dev.tracedCQs
	t.Lock()
	defer t.Unlock()
	if c.log = log; log != nil {
		t.m[c] = struct{}{}
	} else {
		delete(t.m, c)
	}
}

// pushedTo stores the position of the completion that is being added in the event of its request.
//
//verbena:held mu
func (c *cq) pushedTo(e *driver.RequestEvent, waiting uint32) {
	if c.log == nil {
		return
	}
	c.consumed = c.pushed - waiting
	if e != nil {
		e.CQ, e.Position, e.Consumed = c.log, c.pushed, c.consumed
		e.Flags |= driver.FlagSignaled
	}
	c.pushed++
}

// look reports the completions that were consumed since the last event.
//
//verbena:held mu
func (c *cq) look(waiting uint32) {
	if c.log == nil || c.pushed-waiting == c.consumed {
		return
	}
	c.consumed = c.pushed - waiting
	c.event = driver.RequestEvent{Kind: driver.QueuePolled, Time: c.dev.tick(), Consumed: c.consumed}
	c.log.Add(&c.event)
}

// lookNow is look for a caller without the lock.
func (c *cq) lookNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log == nil || c.destroyed {
		return
	}
	if _, waiting, ok := c.oldest(); ok {
		c.look(waiting)
	}
}

// armedWith reports that the consumer arms the completion queue.
//
//verbena:held mu
func (c *cq) armedWith(waiting uint32, all bool) {
	if c.log == nil {
		return
	}
	c.consumed = c.pushed - waiting
	c.event = driver.RequestEvent{Kind: driver.QueueArmed, Time: c.dev.tick(), Depth: waiting, Consumed: c.consumed}
	if !all {
		c.event.Flags = driver.FlagSolicited
	}
	c.log.Add(&c.event)
}

// raise raises an asynchronous event.
//
//verbena:held mu
func (c *cq) raise(event ib.EventType) {
	if c.log != nil {
		c.log.Add(&driver.RequestEvent{Kind: driver.QueueEvent, Time: c.dev.tick(), Count: uint32(event)})
	}
	c.obj.Raise(event)
}

// raise raises an asynchronous event.
//
//verbena:held mu
func (s *srq) raise(event ib.EventType) {
	if s.log != nil {
		s.log.Add(&driver.RequestEvent{Kind: driver.QueueEvent, Time: s.dev.tick(), Count: uint32(event)})
	}
	s.obj.Raise(event)
}

// requestLog returns the log of the shared receive queue, or nil.
func (s *srq) requestLog() driver.RequestLog {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log
}

// traceRequests begins or ends the trace of the shared receive queue, as the observer decides.
func (s *srq) traceRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != destroyed {
		s.log = s.dev.logQueue(driver.QueueRef{Kind: driver.SharedReceiveQueue, QP: driver.QPRef{Num: s.num},
			Entries: s.queue.Capacity(), Log: s.log}, s.ctx)
	}
}

// destroyedAt reports the end of a queue.
func (d *Device) destroyedAt(log driver.RequestLog) {
	if log != nil {
		log.Add(&driver.RequestEvent{Kind: driver.QueueDestroyed, Time: d.tick()})
	}
}

// cqSet is a set of completion queues. Its lock is a leaf.
type cqSet struct {
	sync.Mutex
	m map[*cq]struct{}
}

// list returns the completion queues of the set.
func (s *cqSet) list() []*cq {
	s.Lock()
	defer s.Unlock()
	return slices.Collect(maps.Keys(s.m))
}

// RefreshTraces asks the observer again for the queues to trace. It returns false if the memory of a program does not
// answer; the queue pairs of that program are omitted. RefreshTraces may sleep.
func (d *Device) RefreshTraces() (complete bool) {
	for _, c := range d.cqs.list() {
		c.traceRequests()
	}
	for s := range d.srqs.all() {
		s.traceRequests()
	}
	complete = true
	for qp := range d.qps.all() {
		complete = qp.look(qp.traceRequests) == nil && complete
	}
	return complete
}

// LookAtTraces reports newly consumed completions of traced completion queues. It may not sleep.
func (d *Device) LookAtTraces() {
	for _, c := range d.tracedCQs.list() {
		c.lookNow()
	}
}
