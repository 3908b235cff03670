package weak

import (
	"slices"

	"verbena/ib"
)

// repeatState is the state of the second execution of a READ. It is protected by the mu of the send queue's cq.
//
//	none --READ drawn--> possible --later request without a fence--> wanted --posted--> posted --completion--> none
//	           possible, wanted --request that waits for the READ, or too late--> none
type repeatState uint8

const (
	repeatNone repeatState = iota
	repeatPossible
	repeatWanted
	repeatPosted
)

// maxRepeatSteps is the number of steps after which a READ completes without a second execution.
const maxRepeatSteps = 32

// blocksCompletion reports whether the completion of the request must not be polled yet.
func (r *weakRequest) blocksCompletion() bool {
	return r.repeat == repeatWanted || r.repeat == repeatPosted
}

// planRepeats decides whether a request that is posted now may be executed again, and whether earlier READs may be
// executed again after the request.
//
//verbena:held mu
func (q *qp) planRepeats(r *weakRequest) {
	c := q.sendCQ
	if !q.d.hasChoice(ReadOrder) || q.init.Type != ib.QPTypeRC || c == nil {
		return
	}
	overtakes := r.wr.Flags&ib.SendFence == 0
	switch r.wr.Opcode {
	case ib.WRSend, ib.WRSendWithImm, ib.WRSendWithInv, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
	default: // may depend on the READ without a fence, or invalidate its own memory
		overtakes = false
	}
	plainRead := r.wr.Opcode == ib.WRRDMARead && r.wr.Flags&ib.SendFence == 0 && r.signaled
	var behind *weakRequest // an earlier READ of a long hold
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range q.repeats {
		switch {
		case x.repeat == repeatPosted:
		case plainRead && x.readHold.isActive():
			behind = x
		case !overtakes:
			x.repeat = repeatNone
		case x.repeat == repeatPossible:
			x.repeat = repeatWanted
			x.repeatWait = maxRepeatSteps
			q.d.addRepeats(q)
		}
	}
	q.repeats = slices.DeleteFunc(q.repeats, func(x *weakRequest) bool { return x.repeat == repeatNone })
	switch {
	case behind != nil: // a responder that executes a READ again executes the later READs again as well
		r.repeat, r.readHold, r.repeatWait = behind.repeat, behind.readHold, maxRepeatSteps
		q.repeats = append(q.repeats, r)
	case r.wr.Opcode != ib.WRRDMARead || !r.signaled || c.moderated || c.notify == ib.NotifySolicited:
	default:
		r.readHold = q.planHold(ReadOrder, &q.readHolds, r)
		drawn := 0
		if n := q.d.drawRandom(ReadOrder, q.ord, r.seq, 16); n%2 == 0 && !q.d.isSpared(ReadOrder, q.ord, r.seq) {
			drawn = 1 + n/2
		}
		if r.readHold == nil {
			r.repeatDelay = q.d.decide(q.point(ReadOrder, EventSend, r.seq), drawn, r.about)
		}
		if r.readHold != nil || r.repeatDelay > 0 {
			r.repeat = repeatPossible
			q.repeats = append(q.repeats, r)
		}
	}
}

// isRepeating reports whether a READ is being executed a second time.
//
//verbena:held mu
func (q *qp) isRepeating() bool {
	if q.sendCQ == nil {
		return false
	}
	q.sendCQ.mu.Lock()
	defer q.sendCQ.mu.Unlock()
	return slices.ContainsFunc(q.repeats, func(x *weakRequest) bool { return x.repeat == repeatPosted })
}

// runRepeatStep executes one step for the READs of the queue pair. It reports whether a READ waits for its second
// execution.
func (q *qp) runRepeatStep() (more bool) {
	defer q.ring()
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		again := q.nextRepeat()
		if again == nil {
			break
		}
		if err := q.send(again.wr); err != nil {
			q.d.dropRequests(again)
			q.sendCQ.mu.Lock()
			again.original.repeat = repeatNone
			q.sendCQ.mu.Unlock()
		}
		if again.original.readHold == nil {
			break
		}
	}
	q.sendCQ.mu.Lock()
	defer q.sendCQ.mu.Unlock()
	q.repeats = slices.DeleteFunc(q.repeats, func(x *weakRequest) bool { return x.repeat == repeatNone })
	return slices.ContainsFunc(q.repeats, (*weakRequest).blocksCompletion)
}

// nextRepeat returns a second request for the first READ that may be executed again now, or nil. The queue pair must
// have completed its last request, so that nothing delays the second execution. READs of a long hold are executed again
// when the hold ends, all in one step.
//
//verbena:held mu
func (q *qp) nextRepeat() *weakRequest {
	c := q.sendCQ
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.fillWindow(1 << 30)
	succeeded := func(seq uint64) bool {
		return slices.ContainsFunc(c.held, func(e windowEntry) bool {
			return e.r != nil && e.r.qp == q && e.send && e.seq == seq && e.wc.Status == ib.WCSuccess
		})
	}
	q.readHolds.last.step()
	for _, x := range q.repeats {
		if x.repeat != repeatWanted {
			continue
		}
		if x.readHold.isActive() {
			return nil
		}
		if x.repeatWait--; x.repeatWait <= 0 || q.DriverQP.State() != ib.QPRTS || c.moderated {
			x.repeat = repeatNone
			continue
		}
		if maxRepeatSteps-x.repeatWait <= x.repeatDelay || len(q.held) > 0 || !succeeded(x.seq) || !succeeded(q.sends) {
			continue
		}
		again := &weakRequest{qp: q, send: true, original: x, wr: x.wr}
		q.d.assignRequestID(again)
		again.wr.ID = again.num
		again.wr.Flags = ib.SendSignaled
		x.repeat, x.second = repeatPosted, again
		return again
	}
	return nil
}

// finishRepeat ends the second execution of a READ. If it fails, the READ has failed, and the later requests of the
// queue pair are flushed.
//
//verbena:held mu
func (c *cq) finishRepeat(again *weakRequest, status ib.WCStatus) {
	r := again.original
	r.repeat = repeatNone
	if c.notify == ib.NotifyNextComp || c.d.Relay != nil {
		c.later = true // a poll in the meantime may have found the queue empty
	}
	if status == ib.WCSuccess || status == ib.WCWRFlushErr {
		return
	}
	for i := range c.held {
		e := &c.held[i]
		switch {
		case e.r == nil || e.r.qp != r.qp || !e.send || e.seq < r.seq:
		case e.seq == r.seq:
			e.wc.Status = status
		default:
			e.wc.Status = ib.WCWRFlushErr
		}
	}
}

// endRepeats lets the READs of the queue complete without a second execution that has not begun. long includes the
// READs of a long hold.
//
//verbena:held mu
func (c *cq) endRepeats(long bool) {
	for i := range c.held {
		if r := c.held[i].r; r != nil && r.repeat == repeatWanted && (long || r.readHold == nil) {
			r.repeat = repeatNone
		}
	}
}

// dropRepeats ends all repetitions of the queue pair. Completions of second executions are ignored.
//
//verbena:held mu
func (q *qp) dropRepeats() {
	if q.sendCQ == nil {
		return
	}
	c := q.sendCQ
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range q.repeats {
		if x.repeat == repeatPosted {
			q.d.mu.Lock()
			c.orphans = append(c.orphans, x.second)
			q.d.mu.Unlock()
		}
		x.repeat = repeatNone
	}
	q.repeats = nil
}

// addRepeats schedules runRepeatStep for a queue pair.
func (d *driver) addRepeats(q *qp) {
	d.mu.Lock()
	d.repeating[q] = struct{}{}
	d.mu.Unlock()
	d.scheduleDelayStep()
}

// runRepeatSteps executes one step for the READs of all queue pairs.
func (d *driver) runRepeatSteps() (more bool) {
	d.mu.Lock()
	var qps []*qp
	for q := range d.repeating {
		qps = append(qps, q)
	}
	clear(d.repeating)
	d.mu.Unlock()
	for _, q := range qps {
		if q.runRepeatStep() {
			d.mu.Lock()
			d.repeating[q] = struct{}{}
			d.mu.Unlock()
			more = true
		}
	}
	return more
}
