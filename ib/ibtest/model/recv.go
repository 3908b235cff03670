package model

import (
	"slices"
	"syscall"

	"verbena/ib"
)

// Recv is a receive work request.
type Recv struct {
	ID  uint64
	SGL []ib.SGE
}

// recvQueue is the receive queue of a queue pair, or a shared one.
type recvQueue struct {
	pd       ID
	room     int
	maxSGE   int
	recvs    []Recv
	unproved []uint64 // posted and not polled
}

func (r recvQueue) clone() recvQueue {
	r.recvs, r.unproved = slices.Clone(r.recvs), slices.Clone(r.unproved)
	return r
}

func (r *recvQueue) markRecvPolled(id uint64) {
	if k := slices.Index(r.unproved, id); k >= 0 {
		r.unproved = slices.Delete(r.unproved, k, k+1)
	}
}

// SRQ is a shared receive queue.
type SRQ struct {
	ID, PD   ID
	XRCD, CQ ID     // for XRC
	Num      uint32 // for XRC senders
	queue    recvQueue
	Limit    uint32
	Events   []ib.EventType

	taker ID // the queue pair that has consumed a receive for a datagram in this call; 0: none
}

// Len returns the number of receives in the queue.
func (s *SRQ) Len() int { return len(s.queue.recvs) }

// Capacity returns the capacity of the queue.
func (s *SRQ) Capacity() int { return s.queue.room }

// MaxSGE returns the maximum number of elements of a receive.
func (s *SRQ) MaxSGE() int { return s.queue.maxSGE }

// CreateSRQ creates a shared receive queue with the actual capacities.
func (m *Model) CreateSRQ(s SRQ, granted ib.SRQAttr) syscall.Errno {
	if e := m.Device.checkCreationAllowed(); e != 0 {
		return e
	}
	s.queue = recvQueue{pd: s.PD, room: int(granted.MaxWR), maxSGE: int(granted.MaxSGE)}
	m.Queues.SRQs[s.ID] = &s
	return 0
}

// ModifySRQ changes a queue. RecordSRQResize sets the actual capacity.
func (m *Model) ModifySRQ(id ID, a ib.SRQAttr, mask ib.SRQAttrMask) syscall.Errno {
	s := m.Queues.SRQs[id]
	room := uint32(s.queue.room)
	if mask&ib.SRQAttrMaxWR != 0 {
		room = a.MaxWR
	}
	switch {
	case m.Device.Dead:
		return syscall.EIO
	case room == 0, int(room) < len(s.queue.recvs), mask&ib.SRQAttrLimit != 0 && a.Limit > room:
		return syscall.EINVAL
	case int(room) < len(s.queue.unproved):
		m.Call.markResultUndefined("a shared receive queue becomes shorter than what was not polled")
	}
	if mask&ib.SRQAttrMaxWR != 0 {
		s.queue.room = int(room)
	}
	if mask&ib.SRQAttrLimit != 0 {
		s.Limit = a.Limit
		if a.Limit > 0 && uint32(len(s.queue.recvs)) < a.Limit {
			// The event is raised at once, or when the next receive is consumed.
			m.Call.markResultUndefined("a limit that has been reached already")
		}
		s.raiseLimitEvent()
	}
	return 0
}

// RecordSRQResize records the actual capacity.
func (m *Model) RecordSRQResize(id ID, room int) { m.Queues.SRQs[id].queue.room = room }

func (s *SRQ) raiseLimitEvent() {
	if uint32(len(s.queue.recvs)) < s.Limit {
		s.Limit = 0
		s.Events = append(s.Events, ib.EventSRQLimitReached)
	}
}

// DestroySRQ frees a queue that no queue pair uses.
func (m *Model) DestroySRQ(id ID) syscall.Errno {
	for _, q := range m.Queues.QPs {
		if q.SRQ == id {
			return syscall.EBUSY
		}
		if q.waiting && m.Queues.srqOfFirstSend(q) == id && (m.Device.Lossy || m.Device.deferred) {
			m.Call.markResultUndefined("a shared queue is destroyed whose receive a request waits for")
		}
	}
	delete(m.Queues.SRQs, id)
	m.requests.runWaitingRequests()
	return 0
}

// PostResult is the result of posting a list of work requests.
type PostResult struct {
	N   int
	Err syscall.Errno
}

// queueRecvs queues receives. got is the driver's result; nil: the minimum that a driver must accept. serve lets
// waiting requests consume the first receives of a list before the rest is queued, as a driver may do.
func (r *recvQueue) queueRecvs(recvs []Recv, got *PostResult, serve func()) PostResult {
	for n, w := range recvs {
		if len(r.recvs) >= r.room && got != nil && got.N > n {
			serve()
		}
		if len(w.SGL) > r.maxSGE {
			return PostResult{n, syscall.EINVAL}
		}
		full := got != nil && got.N == n && got.Err == syscall.ENOMEM
		if len(r.recvs) >= r.room || full && len(r.unproved) >= r.room {
			return PostResult{n, syscall.ENOMEM}
		}
		r.recvs = append(r.recvs, w)
		r.unproved = append(r.unproved, w.ID)
	}
	return PostResult{N: len(recvs)}
}

// PostRecv posts receives to a queue pair.
func (m *Model) PostRecv(id ID, recvs []Recv, got *PostResult) PostResult {
	q := m.Queues.QPs[id]
	if q.SRQ != 0 || q.isXRC() || q.State == ib.QPReset {
		return PostResult{Err: syscall.EINVAL}
	}
	t := q.own.queueRecvs(recvs, got, func() {
		if q.State == ib.QPErr {
			m.requests.moveToError(q)
		}
		m.requests.runWaitingRequests()
	})
	m.Completions.checkCQRoom(q.RecvCQ)
	if q.State == ib.QPErr {
		m.requests.moveToError(q)
	}
	m.requests.runWaitingRequests()
	return t
}

// PostSRQ posts receives to a shared receive queue.
func (m *Model) PostSRQ(id ID, recvs []Recv, got *PostResult) PostResult {
	waiting := 0
	for _, q := range m.Queues.QPs {
		if p := m.Queues.destinationQP(q); q.waiting && p != nil && (p.SRQ == id || m.Queues.srqOfFirstSend(q) == id) {
			waiting++
		}
	}
	if waiting > 1 {
		m.Call.markResultUndefined("several requests wait for a receive of one queue")
	}
	t := m.Queues.SRQs[id].queue.queueRecvs(recvs, got, m.requests.runWaitingRequests)
	for _, q := range m.Queues.QPs {
		if q.SRQ == id {
			m.Completions.checkCQRoom(q.RecvCQ)
		}
	}
	m.Completions.checkCQRoom(m.Queues.SRQs[id].CQ)
	m.requests.runWaitingRequests()
	return t
}

// currentSRQ returns the shared queue from which the current request to q consumes its receive; 0: none.
func (q *QP) currentSRQ() ID {
	if q.Type == ib.QPTypeXRCTgt {
		return q.named
	}
	return q.SRQ
}

// isXRC reports whether the queue pair is of an XRC type.
func (q *QP) isXRC() bool { return q.Type == ib.QPTypeXRCInit || q.Type == ib.QPTypeXRCTgt }

// completeRecv completes the first receive of q.
func (x *requestExecutor) completeRecv(q *QP, w ExpectedCompletion, solicited bool) {
	r := x.queues.recvQueueOf(q)
	w.WC.ID, w.SRQ = r.recvs[0].ID, q.currentSRQ()
	r.recvs = slices.Delete(r.recvs, 0, 1)
	if w.WC.Opcode == 0 {
		w.WC.Opcode = ib.WCRecv
	}
	x.addCompletion(q, recvSide, w, solicited)
	if w.SRQ != 0 {
		x.queues.SRQs[w.SRQ].raiseLimitEvent()
	}
}

// RecvsUseRegion reports whether posted receives use a region.
func (m *Model) RecvsUseRegion(id ID) bool {
	r := m.Keys.Regions[id]
	names := func(w Recv) bool { return r != nil && usesLKey(w.SGL, r.LKey) }
	for _, q := range m.Queues.QPs {
		if slices.ContainsFunc(q.own.recvs, names) {
			return true
		}
	}
	for _, s := range m.Queues.SRQs {
		if slices.ContainsFunc(s.queue.recvs, names) {
			return true
		}
	}
	return false
}
