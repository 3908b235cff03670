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
func (m *Model) sendDatagram(q *QP, s *Send, src *messageSource) {
	gid := s.to.GRH.DGID
	if to := m.hazards.to; to != nil && *to != gid && (to.Addr().IsMulticast() || gid.Addr().IsMulticast()) {
		m.markResultUndefined("datagrams of one list that take different ways, which are not ordered")
	}
	m.hazards.to = &gid
	if gid.Addr().IsMulticast() {
		m.sendMulticast(q, s, src)
		return
	}
	if gid != m.GID {
		return // no such device
	}
	var p *QP
	for _, x := range m.QPs {
		if x.Num == s.QPN {
			p = x
		}
	}
	if p == nil || !m.acceptsDatagram(p, q, s) {
		m.recordLostMessage()
		return
	}
	m.deliverDatagram(q, p, s, src)
}

// sendMulticast delivers a datagram to the members of its group. Whether the sender receives a copy is undefined.
func (m *Model) sendMulticast(q *QP, s *Send, src *messageSource) {
	if s.QPN != multicastQPN {
		m.markResultUndefined("a datagram for a group with the number of a queue pair")
	}
	var stored []Span
	for _, p := range m.sortedQPs() {
		if !slices.Contains(m.Groups[s.to.GRH.DGID], p.ID) || !m.acceptsDatagram(p, q, s) {
			continue
		}
		if p == q {
			m.markResultUndefined("a member of a group sends to it")
		}
		to := m.deliverDatagram(q, p, s, src)
		if spansOverlap(stored, to) {
			m.markResultUndefined("members of a group receive in the same memory")
		}
		stored = append(stored, to...)
	}
}

// acceptsDatagram reports whether a queue pair receives a datagram.
func (m *Model) acceptsDatagram(p, q *QP, s *Send) bool {
	qkey := s.QKey
	if qkey&(1<<31) != 0 { // the sender's Q_Key (10.2.5)
		qkey = q.Attr.QKey
	}
	return p.Type == ib.QPTypeUD && p.State >= ib.QPRTR && p.State <= ib.QPSQE && p.Attr.QKey == qkey
}

// deliverDatagram stores a datagram in the first receive of a queue pair, and returns its memory.
func (m *Model) deliverDatagram(q, p *QP, s *Send, src *messageSource) []Span {
	r, n := m.recvQueueOf(p), uint64(len(src.data))
	if len(r.recvs) == 0 {
		m.recordLostMessage()
		return nil
	}
	if q := m.SRQs[p.SRQ]; q != nil {
		if q.taker != 0 && q.taker != p.ID {
			m.markResultUndefined("datagrams of one list for different queue pairs of a shared receive queue, which are not ordered")
		}
		q.taker = p.ID
	}
	to := m.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite)
	w := ExpectedCompletion{
		WC:     ib.WC{ByteLen: uint32(GRHLen + n), Flags: ib.WCGRH, SrcQP: q.Num},
		Status: successStatus, Length: true, Source: true,
	}
	if s.Op == ib.WRSendWithImm {
		w.WC.Flags, w.WC.Imm = w.WC.Flags|ib.WCWithImm, s.Imm
	}
	switch {
	case !to.ok:
		m.markResultUndefined("a datagram for a receive with a wrong key")
	case to.n < GRHLen+n:
		m.recordKeptReceive(p)
		m.recordLostMessage()
		return nil // lost; the receive stays (class D of 9.9.3)
	default:
		m.recordOverlap(to.spans, src.spans)
		m.recordStore(s, to.spans)
		m.scatterBytes(to.spans, GRHLen, src.data)
		for _, t := range clipSpans(to.spans, GRHLen) {
			m.Mem.AllowAlternative(t.Addr, t.Len, nil)
		}
	}
	m.countServedQP(q)
	m.completeRecv(p, w, s.Flags&ib.SendSolicited != 0)
	return to.spans
}

// AttachMcast adds a queue pair to a multicast group.
func (m *Model) AttachMcast(id ID, group ib.GID) syscall.Errno {
	switch {
	case m.QPs[id].Type != ib.QPTypeUD:
		return syscall.EINVAL
	case m.Dead:
		return syscall.EIO
	case slices.Contains(m.Groups[group], id):
		return syscall.EINVAL
	}
	m.Groups[group] = append(slices.Clone(m.Groups[group]), id)
	return 0
}

// DetachMcast removes a queue pair from a multicast group.
func (m *Model) DetachMcast(id ID, group ib.GID) syscall.Errno {
	i := slices.Index(m.Groups[group], id)
	if m.QPs[id].Type != ib.QPTypeUD || i < 0 {
		return syscall.EINVAL
	}
	m.Groups[group] = slices.Delete(slices.Clone(m.Groups[group]), i, i+1)
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
