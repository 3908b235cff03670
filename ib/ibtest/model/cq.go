package model

import (
	"slices"
	"syscall"
	"time"

	"verbena/ib"
)

// QueueSide is a queue of a queue pair, to which a completion belongs.
type QueueSide uint8

const (
	sendSide QueueSide = iota
	recvSide
)

// ExpectedCompletion is an expected completion.
type ExpectedCompletion struct {
	WC ib.WC // without QP
	// Status lists the legal values of the status. The first one is that of WC.
	Status []ib.WCStatus
	// Length and Source report whether ByteLen and SrcQP are defined.
	Length, Source bool
	Unordered      bool // the completion may precede earlier ones of its queue
	QP             ID   // 0: destroyed
	Side           QueueSide
	SRQ            ID // the queue of the receive; 0: none
}

// completionSource is a queue of requests that complete in order.
type completionSource struct {
	qp   ID
	side QueueSide
}

// CQ is a completion queue.
type CQ struct {
	ID      ID
	Entries int
	Wants   []ExpectedCompletion // not polled yet; the order between different queues is undefined
	Armed   ib.NotifyFlags       // 0: not armed
	Calls   int                  // handler calls so far
	Lazy    bool                 // only calls poll it, so the number of free entries is known
	Lost    bool                 // a completion was lost by an overrun
	Events  []ib.EventType

	count  int           // number of completions that a notification waits for
	period time.Duration // time limit after the first of them
	due    int           // number of them that have arrived
}

// CompletionQueues holds the completion queues.
type CompletionQueues struct {
	device *DeviceState
	call   *CallRecord
	queues *WorkQueues
	CQs    map[ID]*CQ
}

// clone returns a copy without references to the other parts of the model.
func (cqs *CompletionQueues) clone() *CompletionQueues {
	c := &CompletionQueues{CQs: cloneObjects(cqs.CQs)}
	for _, q := range c.CQs {
		q.Wants, q.Events = slices.Clone(q.Wants), slices.Clone(q.Events)
	}
	return c
}

// CreateCQ creates a completion queue with the actual capacity.
func (cqs *CompletionQueues) CreateCQ(c CQ) syscall.Errno {
	if e := cqs.device.checkCreationAllowed(); e != 0 {
		return e
	}
	cqs.CQs[c.ID] = &c
	return 0
}

// ResizeCQ changes the capacity.
func (cqs *CompletionQueues) ResizeCQ(id ID, entries int) syscall.Errno {
	c := cqs.CQs[id]
	switch {
	case cqs.device.Dead:
		return syscall.EIO
	case entries < 1 || entries < len(c.Wants):
		return syscall.EINVAL
	case c.Lost:
		cqs.call.markResultUndefined("resizing a queue that has lost a completion")
	}
	cqs.setCQEntries(id, entries)
	return 0
}

// checkCQRoom records that more requests are outstanding than a queue has entries. Each of them may complete at any
// time, with an error.
func (cqs *CompletionQueues) checkCQRoom(id ID) {
	n := 0
	for _, q := range cqs.queues.QPs {
		if q.SendCQ == id {
			n += len(q.unproved)
		}
		if q.RecvCQ == id {
			n += len(cqs.queues.recvQueueOf(q).unproved)
		}
	}
	for _, s := range cqs.queues.SRQs {
		if s.CQ == id {
			n += len(s.queue.unproved)
		}
	}
	if c := cqs.CQs[id]; c != nil && !c.Lazy && n > c.Entries {
		cqs.call.markResultUndefined("a completion queue may overflow")
	}
}

// RecordResize records the actual capacity of a resize.
func (cqs *CompletionQueues) RecordResize(id ID, entries int) { cqs.CQs[id].Entries = entries }

// setCQEntries sets the capacity, which a driver may round up.
func (cqs *CompletionQueues) setCQEntries(id ID, entries int) {
	cqs.CQs[id].Entries = entries
	cqs.checkCQRoom(id)
}

// ArmCQ requests a notification. It reports whether the queue already holds completions.
func (cqs *CompletionQueues) ArmCQ(id ID, flags ib.NotifyFlags) (missed bool) {
	c := cqs.CQs[id]
	switch {
	case flags&ib.NotifyNextComp != 0:
		c.Armed = ib.NotifyNextComp
	case c.Armed == 0:
		c.Armed = ib.NotifySolicited
	}
	switch {
	case c.Lost:
		cqs.call.markResultUndefined("arming a queue that has lost a completion")
	case c.due > 0:
		cqs.call.markResultUndefined("arming a queue whose notification is held back")
	}
	return flags&ib.NotifyReportMissed != 0 && len(c.Wants) > 0
}

// DestroyCQ frees a queue that no queue pair uses.
func (cqs *CompletionQueues) DestroyCQ(id ID) syscall.Errno {
	for _, q := range cqs.queues.QPs {
		if q.SendCQ == id || q.RecvCQ == id {
			return syscall.EBUSY
		}
	}
	for _, s := range cqs.queues.SRQs {
		if s.CQ == id {
			return syscall.EBUSY
		}
	}
	delete(cqs.CQs, id)
	return 0
}

// ModerateCQ delays notifications until count completions have arrived, or until period has passed since the first of
// them. A notification that is already delayed is sent at once.
func (cqs *CompletionQueues) ModerateCQ(id ID, count int, period time.Duration) syscall.Errno {
	if e := cqs.device.checkCreationAllowed(); e != 0 {
		return e
	}
	c := cqs.CQs[id]
	c.count, c.period = count, period
	if c.due > 0 {
		c.countHandlerCall()
	}
	return 0
}

// ModerationState returns the number of completions that a notification waits for, and whether a notification is
// delayed.
func (c *CQ) ModerationState() (count int, held bool) { return c.count, c.due > 0 }

func (c *CQ) countHandlerCall() {
	c.Armed, c.due = 0, 0
	c.Calls++
}

// addCompletion adds a completion to the queue of a side of q.
func (x *requestExecutor) addCompletion(q *QP, side QueueSide, w ExpectedCompletion, solicited bool) {
	id := q.SendCQ
	if side == recvSide {
		id = q.RecvCQ
		if s := x.queues.SRQs[w.SRQ]; s != nil && s.CQ != 0 {
			id = s.CQ
		}
	}
	c := x.cqs.CQs[id]
	w.QP, w.Side, w.WC.QPNum, w.WC.Status = q.ID, side, q.Num, w.Status[0]
	w.Unordered = q.Type == ib.QPTypeSRD && side == sendSide && w.Status[0] != ib.WCWRFlushErr
	if x.call.posted[id] == nil {
		x.call.posted[id] = map[completionSource]bool{}
	}
	x.call.posted[id][completionSource{q.ID, side}] = true
	if c.Lost || len(c.Wants) >= c.Entries {
		x.overrunCQ(q, c, &w)
		return
	}
	c.Wants = append(c.Wants, w)
	if c.Armed == 0 || c.Armed&ib.NotifyNextComp == 0 && !solicited && w.Status[0] == ib.WCSuccess {
		return
	}
	if c.count > 1 && c.Armed&ib.NotifyNextComp == 0 {
		x.call.markResultUndefined("a moderated queue that is armed for solicited completions")
	}
	if c.due++; c.due >= c.count || c.period > 0 { // a period ends before the next call
		c.countHandlerCall()
	}
}

// overrunCQ loses a completion (11.6.3.1): the queue raises its event, once, and the queue pair moves to ERR.
func (x *requestExecutor) overrunCQ(q *QP, c *CQ, w *ExpectedCompletion) {
	flushed := w.Status[0] == ib.WCWRFlushErr
	switch {
	case !c.Lazy:
		x.call.markResultUndefined("a completion queue overflows")
	case x.device.Roomy:
		x.call.markResultUndefined("a completion queue overflows that may have more room")
	case c.Lost && len(c.Wants) < c.Entries:
		x.call.markResultUndefined("a completion for a queue that has room again, and has lost others")
	case len(x.call.posted[c.ID]) > 1:
		x.call.markResultUndefined("which of several completions is lost")
	case c.Armed != 0:
		x.call.markResultUndefined("an armed queue overflows")
	case !flushed && w.Side == sendSide && (x.call.listed > 1 || len(q.Sends) > 0 || x.call.done[q.ID] > 1):
		x.call.markResultUndefined("requests of the same call as one whose completion is lost")
	case !flushed && q.Type == ib.QPTypeSRD:
		x.call.markResultUndefined("an SRD request whose completion is lost")
	case !flushed && w.Side == sendSide && !q.isReliable() &&
		(x.call.hasCompletedRecv(q) || x.queues.destinationQP(q) == q):
		x.call.markResultUndefined("a message to its own sender, which fails because the completion is lost")
	case !flushed && w.Side == recvSide && (q.Type != ib.QPTypeUD && q.Type != ib.QPTypeUC || q.begun):
		x.call.markResultUndefined("how a sender's request ends whose receive is lost")
	}
	if !c.Lost {
		c.Lost = true
		c.Events = append(c.Events, ib.EventCQErr)
	}
	q.Fatal = true
	if q.State != ib.QPErr {
		x.moveToError(q)
	}
}

// MatchCompletion returns the index of the expectation that a polled completion fulfils, or -1. It is the first one of
// its queue, because completions of one queue are in order, except those of SRD.
func (c *CQ) MatchCompletion(wc *ib.WC) int {
	for i, w := range c.Wants {
		if w.WC.ID != wc.ID || w.WC.QPNum != wc.QPNum {
			continue
		}
		earlier := slices.ContainsFunc(c.Wants[:i], func(o ExpectedCompletion) bool {
			return o.WC.QPNum == w.WC.QPNum && o.Side == w.Side && !o.Unordered
		})
		if !earlier || w.Unordered {
			return i
		}
	}
	return -1
}

// RemoveExpectation removes a fulfilled expectation.
func (cqs *CompletionQueues) RemoveExpectation(id ID, i int) ExpectedCompletion {
	c := cqs.CQs[id]
	w := c.Wants[i]
	c.Wants = slices.Delete(c.Wants, i, i+1)
	q := cqs.queues.QPs[w.QP]
	switch {
	case q == nil:
	case w.Side == sendSide:
		if k := slices.Index(q.unproved, w.WC.ID); k >= 0 {
			first := 0 // the completion proves the end of earlier requests
			if w.Unordered {
				first = k
			}
			q.unproved = slices.Delete(q.unproved, first, k+1)
		}
	case w.SRQ == 0:
		q.own.markRecvPolled(w.WC.ID)
	}
	if s := cqs.queues.SRQs[w.SRQ]; s != nil {
		s.queue.markRecvPolled(w.WC.ID)
	}
	return w
}

// FirstMismatch returns the first field in which a completion differs from the expectation, or "".
func (w *ExpectedCompletion) FirstMismatch(wc *ib.WC, qp *ib.QP) string {
	flushed := wc.Status == ib.WCWRFlushErr
	if !slices.Contains(w.Status, wc.Status) {
		return "status"
	}
	if wc.QP != qp {
		return "QP"
	}
	if wc.Status != ib.WCSuccess {
		if flushed && w.WC.Opcode != wc.Opcode {
			return "opcode"
		}
		return ""
	}
	const meaning = ib.WCWithImm | ib.WCWithInvalidate | ib.WCGRH
	switch {
	case w.WC.Opcode != wc.Opcode:
		return "opcode"
	case w.Length && w.WC.ByteLen != wc.ByteLen:
		return "length"
	case w.WC.Flags&meaning != wc.Flags&meaning:
		return "flags"
	case w.WC.Flags&ib.WCWithImm != 0 && w.WC.Imm != wc.Imm:
		return "immediate data"
	case w.WC.Flags&ib.WCWithInvalidate != 0 && w.WC.InvalidateRKey != wc.InvalidateRKey:
		return "invalidated key"
	case w.Source && w.WC.SrcQP != wc.SrcQP:
		return "source"
	}
	return ""
}

// HasUnpolledCompletions reports whether completions of a queue pair have not been polled yet.
func (cqs *CompletionQueues) HasUnpolledCompletions(qp ID) bool {
	for _, c := range cqs.CQs {
		if slices.ContainsFunc(c.Wants, func(w ExpectedCompletion) bool { return w.QP == qp }) {
			return true
		}
	}
	return false
}
