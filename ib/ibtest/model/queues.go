package model

import (
	"maps"
	"slices"

	"verbena/ib"
)

// WorkQueues holds the queue pairs and the shared receive queues, and finds the queues that a request addresses.
type WorkQueues struct {
	device *DeviceState
	call   *CallRecord
	QPs    map[ID]*QP
	SRQs   map[ID]*SRQ
	Groups map[ib.GID][]ID // multicast groups and their members
}

// clone returns a copy without references to the other parts of the model.
func (wq *WorkQueues) clone() *WorkQueues {
	c := &WorkQueues{QPs: cloneObjects(wq.QPs), SRQs: cloneObjects(wq.SRQs), Groups: maps.Clone(wq.Groups)}
	for _, s := range c.SRQs {
		s.queue = s.queue.clone()
		s.Events = slices.Clone(s.Events)
	}
	for _, q := range c.QPs {
		q.own = q.own.clone()
		q.Sends, q.unproved = slices.Clone(q.Sends), slices.Clone(q.unproved)
		q.Events = slices.Clone(q.Events)
	}
	return c
}

// recordMemoryKeyChange records an imminent change of the memory of keys. A waiting request must not name them, because
// a driver may read them at any time.
func (wq *WorkQueues) recordMemoryKeyChange(lkey, rkey uint32) {
	for _, q := range wq.QPs {
		for i := range q.Sends {
			s := &q.Sends[i]
			if s.RKey == rkey || s.InvalidateRKey == rkey || usesLKey(s.SGL, lkey) ||
				s.Bind != nil && s.Bind.LKey == lkey {
				wq.call.markResultUndefined("memory of a request that waits is changed")
			}
		}
	}
}

// sortedQPs returns the queue pairs in creation order.
func (wq *WorkQueues) sortedQPs() []*QP {
	return slices.SortedFunc(maps.Values(wq.QPs), func(a, b *QP) int { return int(a.ID - b.ID) })
}

// connectedPeer returns the peer of a connection if it can receive, else nil.
func (wq *WorkQueues) connectedPeer(q *QP) *QP {
	p := wq.destinationQP(q)
	if p == nil || p.Attr.DestQPN != q.Num || p.State < ib.QPRTR || p.State > ib.QPSQE {
		return nil
	}
	return p
}

// destinationQP returns the queue pair that q sends to, in any state.
func (wq *WorkQueues) destinationQP(q *QP) *QP {
	if q.Attr.AH.GRH.DGID != wq.device.GID {
		return nil
	}
	for _, p := range wq.QPs {
		if p.Num == q.Attr.DestQPN && p.Type == peerType(q.Type) {
			return p
		}
	}
	return nil
}

// peerType returns the type of the peers of queue pairs of type t.
func peerType(t ib.QPType) ib.QPType {
	if t == ib.QPTypeXRCInit {
		return ib.QPTypeXRCTgt
	}
	return t
}

// selectXRCQueue selects the shared receive queue that a request to an XRC target names. It returns false if the target
// may not consume its receives (A14).
func (wq *WorkQueues) selectXRCQueue(p *QP, s *Send) bool {
	id := wq.xrcSRQByNumber(s.SRQN)
	if id == 0 || wq.SRQs[id].XRCD != p.XRCD {
		switch s.Op {
		case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWriteWithImm:
		default:
			wq.call.markResultUndefined("an XRC request that needs no receive, with a wrong shared queue")
		}
		if s.Op == ib.WRRDMAWriteWithImm {
			// a driver may find it in the last packet
			wq.call.markResultUndefined("an XRC WRITE with a wrong shared queue")
		}
		return false
	}
	p.named = id
	return true
}

// protectionDomainOfKeys returns the protection domain of the keys in requests to a queue pair. For an XRC target it is
// that of the shared receive queue that the request specifies (A14).
func (wq *WorkQueues) protectionDomainOfKeys(q *QP) ID {
	if s := wq.SRQs[q.named]; s != nil {
		return s.PD
	}
	return q.PD
}

// srqOfFirstSend returns the shared queue that the first send of an XRC initiator names; 0: none.
func (wq *WorkQueues) srqOfFirstSend(q *QP) ID {
	if q.Type == ib.QPTypeXRCInit && len(q.Sends) > 0 {
		return wq.xrcSRQByNumber(q.Sends[0].SRQN)
	}
	return 0
}

// xrcSRQByNumber returns the XRC shared receive queue with a number; 0: none.
func (wq *WorkQueues) xrcSRQByNumber(srqn uint32) ID {
	for id, s := range wq.SRQs {
		if s.XRCD != 0 && s.Num == srqn {
			return id
		}
	}
	return 0
}

func (wq *WorkQueues) recvQueueOf(q *QP) *recvQueue {
	if s := wq.SRQs[q.currentSRQ()]; s != nil {
		return &s.queue
	}
	return &q.own
}

// recordLateRetry records that the retries of a request may end just when its peer becomes ready, or that its data may
// arrive at any later time. A call takes 20 ms or more, the eight attempts with a Timeout of 13 take 268 ms.
func (wq *WorkQueues) recordLateRetry(q *QP) {
	for _, p := range wq.QPs {
		switch {
		case !p.waiting || p.Attr.DestQPN != q.Num:
		case p.Attr.Timeout < 13 || wq.call.calls-p.since > 3:
			wq.call.markResultUndefined("a request whose last attempt may precede the readiness of its peer")
		case p.Sends[0].Op == ib.WRRDMAWriteWithImm && len(wq.recvQueueOf(q).recvs) == 0:
			wq.call.markResultUndefined("a WRITE whose data arrive before its receive is there")
		}
	}
}

// isAwaitedByPeer reports whether a request of a peer waits for q.
func (wq *WorkQueues) isAwaitedByPeer(q *QP) bool {
	for _, p := range wq.QPs {
		if p.waiting && p.Attr.DestQPN == q.Num {
			return true
		}
	}
	return false
}

// recordMemoryDisturbance records that a request changes memory. A request that waits must not use it, because parts of
// that request may have been executed.
func (wq *WorkQueues) recordMemoryDisturbance(spans []Span) {
	for _, q := range wq.QPs {
		if q.waiting && spansOverlap(q.held, spans) {
			wq.call.markResultUndefined("memory of a request that waits is changed by another")
		}
	}
}
