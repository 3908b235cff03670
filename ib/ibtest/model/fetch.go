package model

import (
	"encoding/binary"

	"verbena/ib"
)

// fetch executes an RDMA READ or an atomic.
func (m *Model) fetch(q *QP, s *Send) (status []ib.WCStatus, n uint64, wait bool) {
	to := m.local(s.SGL, q.PD, ib.AccessLocalWrite)
	n = to.n
	atomic := s.Op != ib.WRRDMARead
	p := m.peer(q)
	switch {
	case atomic && n != 8:
		m.open("an atomic of other than 8 bytes")
		return is(ib.WCLocLenErr), 0, false
	case n > m.MaxMsgSize:
		if !to.ok {
			m.open("a message that is too long, with a wrong key")
		}
		return is(ib.WCLocLenErr), 0, false
	case !to.ok:
		if p == nil {
			m.open("a wrong key of a READ without a peer")
		}
		return m.unstorable(q, p, s, &to)
	case p == nil:
		status, wait = m.unanswered(q)
		return status, 0, wait
	}
	m.exchange(q, p)
	m.serve(q)
	if p.Type == ib.QPTypeXRCTgt {
		m.names(p, s)
	}
	if !m.admits(p, s.Op) || atomic && s.RemoteAddr%8 != 0 {
		return m.refuse(q, p, ib.WCRemInvReqErr), 0, false
	}
	from, ok := m.checkRemoteAccess(p, s.RKey, s.RemoteAddr, n, rights[s.Op])
	if !ok {
		if !atomic { // a requester may read the data in pieces, of which the last is rejected
			from = m.beginning(p, s.RKey, s.RemoteAddr, n, rights[s.Op])
			m.checkOverlap(to.spans, from)
			m.smear(to.spans, 0, m.load(from, length(from)))
		}
		return m.refuse(q, p, ib.WCRemAccessErr), 0, false
	}
	m.checkOverlap(to.spans, from)
	m.fetches(s, from, to.spans)
	if !atomic {
		m.scatterBytes(to.spans, 0, m.load(from, n))
		return success, n, false
	}
	old := m.word(from)
	fresh := old + s.CompareAdd
	if s.Op == ib.WRAtomicCmpAndSwp {
		if fresh = old; old == s.CompareAdd {
			fresh = s.Swap
		}
	}
	m.stores(s, from)
	m.scatterBytes(from, 0, binary.NativeEndian.AppendUint64(nil, fresh))
	m.scatterBytes(to.spans, 0, binary.NativeEndian.AppendUint64(nil, old))
	return success, 8, false
}

// unstorable returns the result of a READ or atomic whose destination is invalid. The peer may have executed it.
func (m *Model) unstorable(q, p *QP, s *Send, to *locals) (status []ib.WCStatus, n uint64, wait bool) {
	if s.Op != ib.WRRDMARead {
		m.open("an atomic whose result has no place")
	}
	if p != nil && p.Type == ib.QPTypeXRCTgt {
		m.names(p, s)
	}
	if p != nil {
		from, ok := m.checkRemoteAccess(p, s.RKey, s.RemoteAddr, to.n, rights[s.Op])
		if !ok || !m.admits(p, s.Op) {
			m.open("a READ without rights whose result has no place")
		} else {
			m.exchange(q, p)
			m.checkOverlap(to.spans, from)
			m.smear(to.spans, 0, m.load(from, to.n)[:to.reach])
		}
	}
	return is(ib.WCLocProtErr), 0, false
}

// flush executes FLUSH (A19.4). Written data are in memory already, so only the rights are checked.
func (m *Model) flush(q, p *QP, s *Send) []ib.WCStatus {
	f := &s.Flush
	need := ib.AccessFlags(0)
	if f.Placement&ib.FlushGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if f.Placement&ib.FlushPersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	if need == 0 || f.Placement&^(ib.FlushGlobal|ib.FlushPersistent) != 0 || f.Level > ib.FlushRegion {
		m.open("a FLUSH with values that do not exist")
	}
	if p.Attr.AccessFlags&need != need {
		return m.refuse(q, p, ib.WCRemInvReqErr)
	}
	r, w := m.byRKey(s.RKey)
	switch {
	case w != nil:
		m.open("a FLUSH by the key of a window")
	case r == nil, r.PD != m.domain(p), r.Access&need != need,
		f.Level == ib.FlushRange && !contains(r.IOVA, r.Len, s.RemoteAddr, uint64(f.Length)):
		return m.refuse(q, p, ib.WCRemAccessErr)
	}
	return success
}

// Word returns the 8 bytes at an address of remote memory of a queue pair, or nil.
func (m *Model) Word(p *QP, rkey uint32, addr uint64) *uint64 {
	spans, ok := m.checkRemoteAccess(p, rkey, addr, 8, 0)
	if !ok {
		return nil
	}
	v := m.word(spans)
	return &v
}

// FirstRecvLen returns the length of the first receive of a queue pair, or -1 if there is none. srq is the queue that a
// request to an XRC target names.
func (m *Model) FirstRecvLen(p *QP, srq ID) int {
	r := m.queueOf(p)
	if s := m.SRQs[srq]; s != nil {
		r = &s.queue
	}
	if len(r.recvs) == 0 {
		return -1
	}
	return int(m.local(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite).n)
}
