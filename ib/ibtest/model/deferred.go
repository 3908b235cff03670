package model

import (
	"encoding/binary"
	"hash/maphash"
	"slices"

	"verbena/ib"
)

// A deferred model states the possible results of concurrent calls. Calls only queue requests. The actions of the
// device on them are separate moves. A test inserts moves between the calls in any order, until it has found an order
// that explains the device's results.

// SetDeferredExecution starts or stops the queueing of requests. When it stops, the requests are executed as far as
// possible.
func (m *Model) SetDeferredExecution(on bool) {
	m.BeginCall() // does not change the blurs of a deferred model
	if m.Device.deferred = on; on {
		return
	}
	for _, q := range m.Queues.sortedQPs() {
		m.requests.runSends(q)
	}
}

// DeviceAction is an action of the device: it executes a request at the responder, or completes a request.
type DeviceAction struct {
	QP   ID
	Kind DeviceActionKind
}

// DeviceActionKind is the kind of a DeviceAction.
type DeviceActionKind uint8

const (
	Execute    DeviceActionKind = iota // the first send that has not been executed
	Complete                           // the first send, which has been executed
	LoseAnswer                         // as Complete, but the response of the former peer is lost
	FlushSend
	FlushSent // as FlushSend, but the request was sent before ERR, and arrives later
	FlushRecv
	Arrive // the first message in flight of an unreliable service, or of a queue pair in ERR; its send may have completed
)

// inFlightMessage is a message in flight of an unreliable service, or of a queue pair that has entered ERR.
type inFlightMessage struct {
	s   *Send
	src *messageSource
}

// sendUnreliable sends a message. A controlled Q_Key is replaced by the sender's current one.
func (q *QP) sendUnreliable(s *Send, src *messageSource) {
	c := *s
	if c.QKey&(1<<31) != 0 {
		c.QKey = q.Attr.QKey
	}
	q.flying = append(slices.Clip(q.flying), inFlightMessage{&c, src})
}

// executedResult is the result of a request that has been executed but not completed.
type executedResult struct {
	status []ib.WCStatus
	n      uint64
}

// PossibleActions returns the possible moves.
func (m *Model) PossibleActions() (list []DeviceAction) {
	for _, q := range m.Queues.sortedQPs() {
		kinds := []DeviceActionKind{}
		if len(q.flying) > 0 {
			kinds = append(kinds, Arrive)
		}
		executed := len(q.Sends) > 0 && q.Sends[0].done != nil
		switch q.State {
		case ib.QPErr:
			if len(q.Sends) > 0 {
				kinds = append(kinds, FlushSend)
			}
			if len(q.Sends) > 0 && q.Sends[0].sent && !executed {
				kinds = append(kinds, FlushSent)
			}
			if executed {
				kinds = append(kinds, Complete)
			}
			if len(q.own.recvs) > 0 {
				kinds = append(kinds, FlushRecv)
			}
		case ib.QPSQE:
			if len(q.Sends) > 0 {
				kinds = append(kinds, FlushSend)
			}
		case ib.QPRTS:
			if executed {
				kinds = append(kinds, Complete)
				if q.isReliable() && m.Queues.connectedPeer(q) == nil {
					kinds = append(kinds, LoseAnswer)
				}
			}
			if q.firstUnexecutedSend() >= 0 {
				kinds = append(kinds, Execute)
			}
		}
		for _, k := range kinds {
			list = append(list, DeviceAction{q.ID, k})
		}
	}
	return list
}

// firstUnexecutedSend returns the index of the first send that has not been executed, or -1 if there is none or an
// earlier one has failed.
func (q *QP) firstUnexecutedSend() int {
	for i, s := range q.Sends {
		if s.done == nil {
			return i
		}
		if s.done.status[0] != ib.WCSuccess {
			break
		}
	}
	return -1
}

// PerformAction makes a move. It returns false if the request waits and nothing has changed.
func (m *Model) PerformAction(v DeviceAction) bool {
	m.BeginCall()
	q := m.Queues.QPs[v.QP]
	switch v.Kind {
	case FlushRecv:
		m.requests.flushRecv(q)
		return true
	case Arrive:
		f := q.flying[0]
		q.flying = q.flying[1:]
		switch {
		case q.Type == ib.QPTypeUD:
			m.requests.sendDatagram(q, f.s, f.src)
		case q.Type == ib.QPTypeUC || m.Queues.connectedPeer(q) != nil:
			m.requests.executeRequest(q, f.s, f.src)
		}
		return true
	}
	if v.Kind == Execute {
		s := &q.Sends[q.firstUnexecutedSend()]
		q.begun = true
		status, n, wait := m.requests.executeSendWR(q, s)
		q.begun = false
		s.done = &executedResult{status, n}
		return !wait
	}
	s := q.Sends[0]
	q.Sends = slices.Delete(q.Sends, 0, 1)
	switch v.Kind {
	case FlushSend:
		for i := range q.Sends { // requests are sent in order
			q.Sends[i].sent = q.Sends[i].sent && s.done != nil
		}
		m.requests.completeSend(q, &s, flushStatus, 0)
	case FlushSent:
		q.sendUnreliable(&s, &messageSource{data: s.Inline, inline: true})
		m.requests.completeSend(q, &s, flushStatus, 0)
	case LoseAnswer:
		m.requests.completeSend(q, &s, statusList(ib.WCRetryExcErr), 0)
	default:
		m.requests.completeSend(q, &s, s.done.status, s.done.n)
	}
	return true
}

// recordMemoryChange adds a change of memory to its history.
func (m *Memory) recordMemoryChange(addr uint64, b []byte) {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	var w [24]byte
	binary.LittleEndian.PutUint64(w[:], m.history)
	binary.LittleEndian.PutUint64(w[8:], addr)
	binary.LittleEndian.PutUint64(w[16:], uint64(len(b)))
	h.Write(w[:])
	h.Write(b)
	m.history = h.Sum64()
}
