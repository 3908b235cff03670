package model

import (
	"slices"
	"syscall"

	"verbena/ib"
)

// QP is a queue pair.
type QP struct {
	ID, PD         ID
	SendCQ, RecvCQ ID
	SRQ            ID // 0: it has its own receive queue
	XRCD           ID // domain of an XRC target
	Num            uint32
	Type           ib.QPType
	Cap            ib.QPCap // actual capacities
	SigAll         bool

	State  ib.QPState
	Attr   ib.QPAttr
	Known  ib.QPAttrMask // attributes set since RESET
	Sends  []Send        // not executed yet
	Events []ib.EventType
	Fatal  bool // EventQPFatal may be raised because a completion was lost
	Cut    bool // EventQPLastWQEReached may be missing, because RESET followed ERR before the end of the flush

	named    ID // for an XRC target: the shared queue that the current request names
	own      recvQueue
	unproved []uint64          // posted sends that no polled completion proves to be done
	waiting  bool              // the first send has begun, and waits for a receive or for the peer to leave INIT
	waitsFor uint64            // ID of the request that waits, or was the last to wait
	since    int               // number of the call since which waitsFor has waited
	held     []Span            // memory of the waiting request
	flying   []inFlightMessage // see SetDeferredExecution
	begun    bool              // a send that has been removed from Sends is being executed
	drain    bool              // EventSQDrained was requested
	epoch    int               // number of the connection, from RTR on
	partner  int               // epoch of the peer with which it has exchanged packets; 0: none
}

// IsWaiting reports whether the first send waits for the peer.
func (q *QP) IsWaiting() bool { return q.waiting }

// RecvCount returns the number of receives in the queue pair's own queue.
func (q *QP) RecvCount() int { return len(q.own.recvs) }

// CreateQP creates a queue pair in RESET.
func (m *Model) CreateQP(q QP) syscall.Errno {
	if e := m.Device.checkCreationAllowed(); e != 0 {
		return e
	}
	q.own = recvQueue{pd: q.PD, room: int(q.Cap.MaxRecvWR), maxSGE: int(q.Cap.MaxRecvSGE)}
	q.Attr.RNRRetry = q.initialRNRRetry()
	m.Queues.QPs[q.ID] = &q
	return 0
}

// initialRNRRetry returns the RNR retry count before Modify sets it.
func (q *QP) initialRNRRetry() uint8 {
	if q.Type == ib.QPTypeSRD {
		return 7
	}
	return 0
}

// DestroyQP frees a queue pair and drops its outstanding work requests.
func (m *Model) DestroyQP(id ID) syscall.Errno {
	q := m.Queues.QPs[id]
	for _, members := range m.Queues.Groups {
		if slices.Contains(members, id) {
			return syscall.EBUSY
		}
	}
	for _, w := range m.Keys.Windows {
		if w.Bound && w.QP == id {
			m.Queues.recordMemoryKeyChange(0, w.RKey)
			w.clearBind()
		}
	}
	for _, c := range m.Completions.CQs {
		if m.Device.Purges {
			c.Wants = slices.DeleteFunc(c.Wants, func(w ExpectedCompletion) bool { return w.QP == id })
			continue
		}
		for i := range c.Wants {
			if c.Wants[i].QP == id {
				c.Wants[i].QP = 0
			}
		}
	}
	if q.waiting {
		m.Call.markResultUndefined("a queue pair with a request in flight is destroyed")
	}
	delete(m.Queues.QPs, id)
	m.requests.runWaitingRequests()
	return 0
}

// ModifyQP changes attributes and the state.
func (m *Model) ModifyQP(id ID, a ib.QPAttr, mask ib.QPAttrMask) syscall.Errno {
	q := m.Queues.QPs[id]
	end := mask&ib.QPAttrState != 0 && (a.State == ib.QPErr || a.State == ib.QPReset)
	if m.Device.Dead && !end {
		return syscall.EIO
	}
	next, err := ib.NextState(q.State, q.Type, &a, mask)
	if err != nil || m.Device.hasInvalidValue(&a, mask) {
		return syscall.EINVAL
	}
	if q.IsDraining() && !end {
		m.Call.markResultUndefined("a modification while the send queue is being drained") // a driver may reject it
	}
	if mask&ib.QPAttrAccessFlags != 0 && a.AccessFlags != q.Attr.AccessFlags && m.Queues.isAwaitedByPeer(q) {
		m.Call.markResultUndefined("rights change while a request waits")
	}
	if mask&ib.QPAttrQKey != 0 && a.QKey != q.Attr.QKey && m.Queues.anySRDWaits() {
		m.Call.markResultUndefined("the Q_Key of a queue pair changes while a request waits")
	}
	q.Known |= mask &^ (ib.QPAttrState | ib.QPAttrCurState)
	CopyAttr(&q.Attr, &a, mask)
	switch {
	case mask&ib.QPAttrState == 0:
	case a.State == ib.QPErr:
		m.requests.moveToError(q)
	case a.State == ib.QPReset:
		m.resetQP(q)
	default:
		from := q.State
		q.State = next
		switch {
		case next == ib.QPRTR && from == ib.QPInit:
			m.epochs++
			q.epoch, q.partner = m.epochs, 0
			m.Queues.recordLateRetry(q)
		case next == ib.QPSQD && from == ib.QPRTS:
			if q.waiting && (m.Device.Lossy || m.Device.deferred || len(q.Sends) > 1 || q.Type == ib.QPTypeSRD) {
				// a driver may or may not have begun the requests behind it
				m.Call.markResultUndefined("SQD while a request waits")
			}
			q.drain = mask&ib.QPAttrEnSQDAsyncNotify != 0 && a.EnSQDAsyncNotify
		case next != ib.QPSQD:
			q.drain = false
		}
		m.requests.runSends(q)
	}
	m.requests.runWaitingRequests()
	return 0
}

// PostponeWaitingRequest moves the waiting request of a queue pair in SQD back to the queue of requests that have not
// begun.
func (m *Model) PostponeWaitingRequest(id ID) {
	m.Queues.QPs[id].waiting = false
	m.requests.runWaitingRequests()
}

// IsDraining reports whether requests are in flight in SQD.
func (q *QP) IsDraining() bool { return q.State == ib.QPSQD && q.waiting }

func (d *DeviceState) hasInvalidValue(a *ib.QPAttr, mask ib.QPAttrMask) bool {
	for _, x := range []struct {
		bit   ib.QPAttrMask
		wrong bool
	}{
		{ib.QPAttrPort, a.Port != 1},
		{ib.QPAttrPKeyIndex, a.PKeyIndex != 0},
		{ib.QPAttrPathMTU, !a.PathMTU.Valid() || a.PathMTU.Bytes() > d.MTU},
		{ib.QPAttrMaxRdAtomic, int(a.MaxRdAtomic) > d.InitReads},
		{ib.QPAttrMaxDestRdAtomic, int(a.MaxDestRdAtomic) > d.Reads},
		{ib.QPAttrTimeout, a.Timeout > 31},
		{ib.QPAttrRetryCnt, a.RetryCnt > 7},
		{ib.QPAttrRNRRetry, a.RNRRetry > 7},
		{ib.QPAttrMinRNRTimer, a.MinRNRTimer > 31},
		{ib.QPAttrAV, a.AH.Port != 1 || !a.AH.HasGRH},
	} {
		if mask&x.bit != 0 && x.wrong {
			return true
		}
	}
	return false
}

// CopyAttr copies the attributes that mask names, except the states and the packet sequence numbers.
func CopyAttr(to, from *ib.QPAttr, mask ib.QPAttrMask) {
	take := func(bit ib.QPAttrMask, f func()) {
		if mask&bit != 0 {
			f()
		}
	}
	take(ib.QPAttrAccessFlags, func() { to.AccessFlags = from.AccessFlags })
	take(ib.QPAttrPKeyIndex, func() { to.PKeyIndex = from.PKeyIndex })
	take(ib.QPAttrPort, func() { to.Port = from.Port })
	take(ib.QPAttrQKey, func() { to.QKey = from.QKey })
	take(ib.QPAttrAV, func() { to.AH = from.AH })
	take(ib.QPAttrPathMTU, func() { to.PathMTU = from.PathMTU })
	take(ib.QPAttrTimeout, func() { to.Timeout = from.Timeout })
	take(ib.QPAttrRetryCnt, func() { to.RetryCnt = from.RetryCnt })
	take(ib.QPAttrRNRRetry, func() { to.RNRRetry = from.RNRRetry })
	take(ib.QPAttrMaxRdAtomic, func() { to.MaxRdAtomic = from.MaxRdAtomic })
	take(ib.QPAttrMinRNRTimer, func() { to.MinRNRTimer = from.MinRNRTimer })
	take(ib.QPAttrMaxDestRdAtomic, func() { to.MaxDestRdAtomic = from.MaxDestRdAtomic })
	take(ib.QPAttrDestQPN, func() { to.DestQPN = from.DestQPN })
}

// resetQP drops all work of a queue pair.
func (m *Model) resetQP(q *QP) {
	for _, w := range m.Keys.Windows {
		if w.Bound && w.QP == q.ID {
			m.Call.markResultUndefined("a queue pair with a bound window is reset")
		}
	}
	for _, c := range m.Completions.CQs {
		if slices.ContainsFunc(c.Wants, func(w ExpectedCompletion) bool { return w.QP == q.ID }) {
			// adapters remove them from the queue
			m.Call.markResultUndefined("completions of a queue pair that is reset")
		}
	}
	if q.waiting || m.Device.deferred && q.isReliable() && len(q.Sends) > 0 {
		m.Call.markResultUndefined("a queue pair with a request in flight is reset")
	}
	q.Cut = q.Cut || m.Device.deferred && q.State == ib.QPErr
	q.State, q.Attr, q.Known, q.Sends, q.unproved = ib.QPReset, ib.QPAttr{RNRRetry: q.initialRNRRetry()}, 0, nil, nil
	q.own.recvs, q.own.unproved = nil, nil
	q.waiting, q.drain, q.epoch, q.partner = false, false, 0, 0
}

// moveToError flushes all work of a queue pair.
func (x *requestExecutor) moveToError(q *QP) {
	first := q.State != ib.QPErr
	if first {
		x.keys.recordDoubtfulKeys(q)
	}
	for i := range q.Sends {
		s := &q.Sends[i]
		s.sent = x.device.deferred && q.State == ib.QPRTS && q.isReliable() && s.done == nil && s.isInlineMessage()
	}
	q.State, q.waiting, q.drain = ib.QPErr, false, false
	x.flushSends(q)
	for len(q.own.recvs) > 0 && !x.device.deferred {
		x.flushRecv(q)
	}
	if first && q.SRQ != 0 {
		q.Events = append(q.Events, ib.EventQPLastWQEReached)
	}
}

// flushRecv flushes the first receive.
func (x *requestExecutor) flushRecv(q *QP) {
	w := q.own.recvs[0]
	q.own.recvs = slices.Delete(q.own.recvs, 0, 1)
	x.addCompletion(q, recvSide, ExpectedCompletion{WC: ib.WC{ID: w.ID, Opcode: ib.WCRecv}, Status: flushStatus}, false)
}

var flushStatus = []ib.WCStatus{ib.WCWRFlushErr}

// GiveUpWaitingRequest completes the waiting request of a queue pair if its peer is in INIT or behind a lossy network.
// A requester may exhaust its retries at any time.
func (m *Model) GiveUpWaitingRequest(id ID) bool {
	q := m.Queues.QPs[id]
	p := m.Queues.destinationQP(q)
	if !q.waiting || !m.Device.Lossy && (p == nil || p.State != ib.QPInit) {
		return false
	}
	s := q.Sends[0]
	q.Sends = slices.Delete(slices.Clone(q.Sends), 0, 1)
	q.waiting = false
	m.requests.completeSend(q, &s, statusList(ib.WCRetryExcErr), 0)
	m.requests.runWaitingRequests()
	return true
}

// flushSends flushes the send queue. If a send is being executed, complete flushes the queue afterwards.
func (x *requestExecutor) flushSends(q *QP) {
	if q.begun || x.device.deferred {
		return
	}
	for len(q.Sends) > 0 {
		s := q.Sends[0]
		q.Sends = slices.Delete(q.Sends, 0, 1)
		x.completeSend(q, &s, flushStatus, 0)
	}
}

// runWaitingRequests executes the waiting requests until none of them can continue.
func (x *requestExecutor) runWaitingRequests() {
	if x.device.deferred {
		return
	}
	for progress := true; progress; {
		progress = false
		for _, q := range x.queues.sortedQPs() {
			if x.queues.QPs[q.ID] != q || !q.waiting {
				continue
			}
			n := len(q.Sends)
			q.waiting = false
			if q.Type == ib.QPTypeSRD || x.executeFirstSend(q) {
				x.runSends(q)
			}
			progress = progress || len(q.Sends) < n
		}
	}
	if x.call.served > 1 {
		x.call.markResultUndefined("the order of requests of several queue pairs that waited")
	}
	for _, q := range x.queues.sortedQPs() {
		if q.State == ib.QPSQD && !q.waiting && q.drain {
			q.drain = false
			q.Events = append(q.Events, ib.EventSQDrained)
		}
	}
}
