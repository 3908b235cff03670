package model

import (
	"slices"

	"verbena/ib"
)

// Requests of SRD (scalable reliable datagrams) are reliable and have no order, and each one has a destination of its
// own. A request that fails leaves its queue pair and the other requests as they are. The result of a call is undefined
// if it depends on the order of requests.

// SRDRDMASize is the length of RDMA requests of SRD, in bytes, that each device supports. The longest message of a port
// may be one packet.
const SRDRDMASize = 256 << 10

// unreachableStatuses lists the statuses of a request to a queue pair that does not execute it: it does not exist, is
// not ready, is in ERR, or has another Q_Key.
var unreachableStatuses = statusList(ib.WCRetryExcErr, ib.WCRespTimeoutErr, ib.WCRemInvRDReqErr, ib.WCRemAbortErr)

// isSend reports whether the request is a SEND.
func (s *Send) isSend() bool { return s.Op == ib.WRSend || s.Op == ib.WRSendWithImm }

// isDatagram reports whether a request is a message of one packet.
func (q *QP) isDatagram(s *Send) bool {
	return q.Type == ib.QPTypeUD || q.Type == ib.QPTypeSRD && s.isSend()
}

// hasForeignAH reports whether the request has an address handle of another domain than its queue pair.
func (q *QP) hasForeignAH(a *AH) bool { return a != nil && a.PD != q.PD }

// runIndependentSends executes the send queue of SRD. A request that waits does not delay the others.
func (x *requestExecutor) runIndependentSends(q *QP) {
	q.waiting, q.held = false, nil
	for i := 0; i < len(q.Sends) && q.State == ib.QPRTS && !x.device.Dead; {
		s := q.Sends[i]
		q.Sends = slices.Delete(slices.Clone(q.Sends), i, i+1)
		q.begun = true
		status, n, wait := x.executeSRD(q, &s)
		q.begun = false
		if !wait {
			x.completeSend(q, &s, status, n)
			continue
		}
		q.Sends = slices.Insert(q.Sends, i, s)
		i++
	}
	q.waiting = q.State == ib.QPRTS && len(q.Sends) > 0
}

// executeSRD executes a request of SRD. wait is true if there is no receive yet.
func (x *requestExecutor) executeSRD(q *QP, s *Send) (status []ib.WCStatus, n uint64, wait bool) {
	need := ib.AccessFlags(0)
	if s.Op == ib.WRRDMARead {
		need = ib.AccessLocalWrite
	}
	l := x.keys.checkSGL(s.SGL, q.PD, need)
	n = l.n
	if s.Flags&ib.SendInline != 0 {
		l, n = checkedSGL{ok: true}, uint64(len(s.Inline))
	}
	var wrong []ib.WCStatus // a driver may find any of them first
	if !l.ok {
		wrong = append(wrong, ib.WCLocProtErr)
	}
	if s.isSend() && n > uint64(x.device.MTU) {
		wrong = append(wrong, ib.WCLocLenErr)
	}
	if s.foreign {
		wrong = append(wrong, ib.WCLocQPOpErr)
	}
	p := x.srdPeer(q, s)
	switch {
	case !s.isSend() && n > max(x.device.MaxMsgSize, SRDRDMASize):
		x.call.markResultUndefined("an RDMA request of SRD above a limit that no attribute has")
		return statusList(ib.WCLocLenErr), 0, false
	case len(wrong) > 0:
		switch {
		case p == nil:
			wrong = append(wrong, unreachableStatuses...)
		case !s.isSend() && l.reach > 0:
			x.call.markResultUndefined("an RDMA request of SRD with a wrong local key, of which a part may be executed")
		case !s.isSend():
			if _, ok := x.keys.checkRemoteAccess(p, s.RKey, s.RemoteAddr, n, neededPeerRights[s.Op]); !ok {
				wrong = append(wrong, ib.WCRemAccessErr)
			}
		}
		return wrong, 0, false
	case s.to.GRH.DGID.Addr().IsMulticast():
		x.call.markResultUndefined("an SRD request to a multicast group")
		return unreachableStatuses, 0, false
	case p == nil:
		return unreachableStatuses, 0, false
	}
	x.call.countServedQP(q)
	switch s.Op {
	case ib.WRRDMARead:
		return x.executeSRDRead(p, s, &l)
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		status, wait = x.executeSRDWrite(q, p, s, x.srdSource(s, &l))
	default:
		status, wait = x.executeSRDSend(q, p, s, x.srdSource(s, &l))
	}
	return status, 0, wait
}

// srdPeer returns the queue pair that executes a request, or nil.
func (x *requestExecutor) srdPeer(q *QP, s *Send) *QP {
	for _, p := range x.queues.QPs {
		if p.Num == s.QPN && acceptsDatagram(p, q, s) && s.to.GRH.DGID == x.device.GID {
			return p
		}
	}
	return nil
}

// srdSource returns the data of a SEND or WRITE.
func (x *requestExecutor) srdSource(s *Send, l *checkedSGL) *messageSource {
	if s.Flags&ib.SendInline != 0 {
		return &messageSource{data: s.Inline, inline: true}
	}
	x.call.recordUnordered(l.spans, nil)
	return &messageSource{data: x.loadBytes(l.spans, l.n), spans: l.spans, n: l.n}
}

// executeSRDRead executes an RDMA READ.
func (x *requestExecutor) executeSRDRead(p *QP, s *Send, to *checkedSGL) (status []ib.WCStatus, n uint64, wait bool) {
	from, ok := x.keys.checkRemoteAccess(p, s.RKey, s.RemoteAddr, to.n, ib.AccessRemoteRead)
	if !ok { // the requester may read the data in pieces, of which the last is rejected
		from = x.keys.accessiblePrefix(p, s.RKey, s.RemoteAddr, to.n, ib.AccessRemoteRead)
		x.call.recordUnordered(from, to.spans)
		x.call.recordOverlap(to.spans, from)
		x.allowUnstoredBytes(to.spans, 0, x.loadBytes(from, spansLen(from)))
		return statusList(ib.WCRemAccessErr), 0, false
	}
	x.call.recordUnordered(from, to.spans)
	x.call.recordOverlap(to.spans, from)
	x.scatterBytes(to.spans, 0, x.loadBytes(from, to.n))
	return successStatus, to.n, false
}

// executeSRDWrite executes an RDMA WRITE.
func (x *requestExecutor) executeSRDWrite(q, p *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	n := uint64(len(src.data))
	to, ok := x.keys.checkRemoteAccess(p, s.RKey, s.RemoteAddr, n, ib.AccessRemoteWrite)
	if !ok { // some parts of the data may be in the region
		to = x.keys.accessiblePrefix(p, s.RKey, s.RemoteAddr, n, ib.AccessRemoteWrite)
		x.call.recordUnordered(nil, to)
		x.call.recordOverlap(to, src.spans)
		x.allowUnstoredBytes(to, 0, src.data[:spansLen(to)])
		return statusList(ib.WCRemAccessErr), false
	}
	x.call.recordUnordered(nil, to)
	x.call.recordOverlap(to, src.spans)
	if s.Op == ib.WRRDMAWrite {
		x.scatterBytes(to, 0, src.data)
		return successStatus, false
	}
	if !x.claimReceive(q, p, s) {
		x.allowUnstoredBytes(to, 0, src.data) // only the part with the immediate data waits
		q.held = slices.Concat(q.held, src.spans, to)
		return receiverNotReadyStatus(q)
	}
	x.scatterBytes(to, 0, src.data)
	x.completeRecv(p, ExpectedCompletion{
		WC:     ib.WC{ByteLen: uint32(n), Opcode: ib.WCRecvRDMAWithImm, Flags: ib.WCWithImm, Imm: s.Imm, SrcQP: q.Num},
		Status: successStatus, Length: true, Source: true,
	}, s.Flags&ib.SendSolicited != 0)
	return successStatus, false
}

// executeSRDSend executes a SEND.
func (x *requestExecutor) executeSRDSend(q, p *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	if !x.claimReceive(q, p, s) {
		q.held = slices.Concat(q.held, src.spans)
		return receiverNotReadyStatus(q)
	}
	n, first := uint64(len(src.data)), p.own.recvs[0]
	to := x.keys.checkSGL(first.SGL, p.own.pd, ib.AccessLocalWrite)
	x.call.recordUnordered(nil, to.spans)
	x.call.recordOverlap(to.spans, src.spans)
	x.keys.recordLocalUse(first.SGL)
	w := ExpectedCompletion{WC: ib.WC{ByteLen: uint32(n), SrcQP: q.Num}, Status: successStatus, Length: true, Source: true}
	if s.Op == ib.WRSendWithImm {
		w.WC.Flags, w.WC.Imm = ib.WCWithImm, s.Imm
	}
	switch {
	case !to.ok:
		x.call.markResultUndefined("an SRD message for a receive with a wrong key")
	case to.n < n: // the receive stays
		return statusList(ib.WCRemInvReqErr), false
	default:
		x.scatterBytes(to.spans, 0, src.data)
	}
	x.completeRecv(p, w, s.Flags&ib.SendSolicited != 0)
	return successStatus, false
}

// claimReceive reports whether a request of SRD gets the first receive of its destination.
func (x *requestExecutor) claimReceive(q, p *QP, s *Send) bool {
	claims := x.call.hazards.claims
	if claims == nil {
		claims = map[ID][]uint64{}
		x.call.hazards.claims = claims
	}
	if !slices.Contains(claims[p.ID], s.ID) {
		claims[p.ID] = append(claims[p.ID], s.ID)
	}
	if len(claims[p.ID]) > 1 || x.queues.otherSRDWaits(q, p) {
		x.call.markResultUndefined("several SRD requests for the receives of one queue pair, which have no order")
	}
	return len(p.own.recvs) > 0
}

// otherSRDWaits reports whether a request of SRD of another queue pair than q waits for a receive of p.
func (wq *WorkQueues) otherSRDWaits(q, p *QP) bool {
	for _, o := range wq.QPs {
		if o.Type == ib.QPTypeSRD && o.waiting && o != q && slices.ContainsFunc(o.Sends, func(t Send) bool {
			return t.QPN == p.Num && t.Op != ib.WRRDMAWrite && t.Op != ib.WRRDMARead
		}) {
			return true
		}
	}
	return false
}

// anySRDWaits reports whether a request of SRD waits for a receive.
func (wq *WorkQueues) anySRDWaits() bool {
	for _, q := range wq.QPs {
		if q.Type == ib.QPTypeSRD && q.waiting {
			return true
		}
	}
	return false
}

// recordUnordered records the memory that a request without an order reads and changes.
func (r *CallRecord) recordUnordered(read, changed []Span) {
	h := &r.hazards
	if spansOverlap(h.read, changed) || spansOverlap(h.stored, read) || spansOverlap(h.stored, changed) {
		r.markResultUndefined("requests without an order use the same memory")
	}
	h.read = append(h.read, read...)
	h.stored = append(h.stored, changed...)
}
