package model

import (
	"slices"
	"syscall"

	"verbena/ib"
)

// GRHLen is the length of the global route header that precedes a datagram in the receive buffer.
const GRHLen = 40

// multicastQPN is the destination number of datagrams to a multicast group.
const multicastQPN = 0xffffff

// sendDatagram delivers or loses a datagram.
func (x *requestExecutor) sendDatagram(q *QP, s *Send, src *messageSource) {
	gid := s.to.GRH.DGID
	if to := x.call.hazards.to; to != nil && *to != gid && (to.Addr().IsMulticast() || gid.Addr().IsMulticast()) {
		x.call.markResultUndefined("datagrams of one list that take different ways, which are not ordered")
	}
	x.call.hazards.to = &gid
	if gid.Addr().IsMulticast() {
		x.sendMulticast(q, s, src)
		return
	}
	if gid != x.device.GID {
		return // no such device
	}
	var p *QP
	for _, other := range x.queues.QPs {
		if other.Num == s.QPN {
			p = other
		}
	}
	if p == nil || !acceptsDatagram(p, q, s) {
		x.recordLostMessage()
		return
	}
	x.deliverDatagram(q, p, s, src)
}

// sendMulticast delivers a datagram to the members of its group. Whether the sender receives a copy is undefined.
func (x *requestExecutor) sendMulticast(q *QP, s *Send, src *messageSource) {
	if s.QPN != multicastQPN {
		x.call.markResultUndefined("a datagram for a group with the number of a queue pair")
	}
	for _, p := range x.queues.sortedQPs() {
		if !slices.Contains(x.queues.Groups[s.to.GRH.DGID], p.ID) || !acceptsDatagram(p, q, s) {
			continue
		}
		if p == q {
			x.call.markResultUndefined("a member of a group sends to it")
		}
		x.deliverDatagram(q, p, s, src)
	}
}

// acceptsDatagram reports whether a queue pair receives a datagram of q, or a request of SRD.
func acceptsDatagram(p, q *QP, s *Send) bool {
	qkey := s.QKey
	if qkey&(1<<31) != 0 { // the sender's Q_Key (10.2.5)
		qkey = q.Attr.QKey
	}
	return p.Type == q.Type && p.State >= ib.QPRTR && p.State <= ib.QPSQE && p.Attr.QKey == qkey
}

// deliverDatagram stores a datagram in the first receive of a queue pair.
func (x *requestExecutor) deliverDatagram(q, p *QP, s *Send, src *messageSource) {
	r, n := x.queues.recvQueueOf(p), uint64(len(src.data))
	shared := x.queues.SRQs[p.SRQ]
	if shared != nil && shared.taker != 0 && shared.taker != p.ID { // also if no receive is left for this one
		x.call.markResultUndefined("datagrams of one list for different queue pairs of a shared receive queue, " +
			"which are not ordered")
	}
	if len(r.recvs) == 0 {
		x.recordLostMessage()
		return
	}
	if shared != nil {
		shared.taker = p.ID
	}
	to := x.keys.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite)
	w := ExpectedCompletion{
		WC:     ib.WC{ByteLen: uint32(GRHLen + n), Flags: ib.WCGRH, SrcQP: q.Num},
		Status: successStatus, Length: true, Source: true,
	}
	if s.Op == ib.WRSendWithImm {
		w.WC.Flags, w.WC.Imm = w.WC.Flags|ib.WCWithImm, s.Imm
	}
	switch {
	case !to.ok:
		x.call.markResultUndefined("a datagram for a receive with a wrong key")
	case to.n < GRHLen+n:
		x.call.recordKeptReceive(p)
		x.recordLostMessage()
		return // lost; the receive stays (class D of 9.9.3)
	default:
		x.call.recordOverlap(to.spans, src.spans)
		x.call.recordStore(s, to.spans)
		x.call.recordDatagram(p.ID, to.spans)
		x.scatterBytes(to.spans, GRHLen, src.data)
		for _, t := range clipSpans(to.spans, GRHLen) {
			x.mem.allowAlternative(t.Addr, t.Len, nil)
		}
	}
	x.call.countServedQP(q)
	x.completeRecv(p, w, s.Flags&ib.SendSolicited != 0)
}

// AttachMcast adds a queue pair to a multicast group.
func (m *Model) AttachMcast(id ID, group ib.GID) syscall.Errno {
	switch {
	case m.Queues.QPs[id].Type != ib.QPTypeUD:
		return syscall.EINVAL
	case m.Device.Dead:
		return syscall.EIO
	case slices.Contains(m.Queues.Groups[group], id):
		return syscall.EINVAL
	}
	m.Queues.Groups[group] = append(slices.Clone(m.Queues.Groups[group]), id)
	return 0
}

// DetachMcast removes a queue pair from a multicast group.
func (m *Model) DetachMcast(id ID, group ib.GID) syscall.Errno {
	i := slices.Index(m.Queues.Groups[group], id)
	if m.Queues.QPs[id].Type != ib.QPTypeUD || i < 0 {
		return syscall.EINVAL
	}
	m.Queues.Groups[group] = slices.Delete(slices.Clone(m.Queues.Groups[group]), i, i+1)
	return 0
}

// clipSpans returns the first n bytes of a list of spans.
func clipSpans(spans []Span, n uint64) (list []Span) {
	for _, s := range slices.Clone(spans) {
		if s.Len = min(s.Len, n); s.Len > 0 {
			list = append(list, s)
			n -= s.Len
		}
	}
	return list
}
