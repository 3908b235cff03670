package model

import (
	"slices"

	"verbena/ib"
)

// GRHLen is the length of the global route header before a datagram in the receive buffer.
const GRHLen = 40

// datagram delivers a datagram, or loses it.
func (m *Model) datagram(q *QP, s *Send, src *source) {
	if s.to.GRH.DGID != m.GID {
		return // to no device
	}
	qkey := s.QKey
	if qkey&(1<<31) != 0 { // the sender's own (10.2.5)
		qkey = q.Attr.QKey
	}
	var p *QP
	for _, x := range m.QPs {
		if x.Num == s.QPN {
			p = x
		}
	}
	if p == nil || p.Type != ib.QPTypeUD || p.State < ib.QPRTR || p.State > ib.QPSQE || p.Attr.QKey != qkey {
		m.lost()
		return
	}
	r, n := m.queueOf(p), uint64(len(src.data))
	if len(r.recvs) == 0 {
		m.lost()
		return
	}
	if q := m.SRQs[p.SRQ]; q != nil {
		if q.taker != 0 && q.taker != p.ID {
			m.open("datagrams of one list for different queue pairs of a shared receive queue, which are not ordered")
		}
		q.taker = p.ID
	}
	to := m.local(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite)
	w := Want{
		WC:     ib.WC{ByteLen: uint32(GRHLen + n), Flags: ib.WCGRH, SrcQP: q.Num},
		Status: success, Length: true, Source: true,
	}
	if s.Op == ib.WRSendWithImm {
		w.WC.Flags, w.WC.Imm = w.WC.Flags|ib.WCWithImm, s.Imm
	}
	switch {
	case !to.ok:
		m.open("a datagram for a receive with a wrong key")
	case to.n < GRHLen+n:
		m.stays(p)
		m.lost()
		return // lost, and the receive stays (class D of 9.9.3)
	default:
		m.checkOverlap(to.spans, src.spans)
		m.stores(s, to.spans)
		m.store(to.spans, GRHLen, src.data)
		for _, t := range clip(to.spans, GRHLen) {
			m.Mem.Blur(t.Addr, t.Len, nil)
		}
	}
	m.serve(q)
	m.completeRecv(p, w, s.Flags&ib.SendSolicited != 0)
}

// clip returns the first n bytes of a list of spans.
func clip(spans []Span, n uint64) (list []Span) {
	for _, s := range slices.Clone(spans) {
		if s.Len = min(s.Len, n); s.Len > 0 {
			list = append(list, s)
			n -= s.Len
		}
	}
	return list
}
