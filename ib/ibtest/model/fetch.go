package model

import (
	"encoding/binary"

	"verbena/ib"
)

// executeFetch executes an RDMA READ or an atomic.
func (m *Model) executeFetch(q *QP, s *Send) (status []ib.WCStatus, n uint64, wait bool) {
	to := m.checkSGL(s.SGL, q.PD, ib.AccessLocalWrite)
	n = to.n
	atomic := s.Op != ib.WRRDMARead
	p := m.connectedPeer(q)
	switch {
	case atomic && n != 8:
		m.markResultUndefined("an atomic of other than 8 bytes")
		return statusList(ib.WCLocLenErr), 0, false
	case n > m.MaxMsgSize:
		if !to.ok {
			m.markResultUndefined("a message that is too long, with a wrong key")
		}
		return statusList(ib.WCLocLenErr), 0, false
	case !to.ok:
		if p == nil {
			m.markResultUndefined("a wrong key of a READ without a peer")
		}
		return m.invalidDestinationStatus(q, p, s, &to)
	case p == nil:
		status, wait = m.noResponseStatus(q)
		return status, 0, wait
	}
	m.recordExchange(q, p)
	m.countServedQP(q)
	if p.Type == ib.QPTypeXRCTgt {
		m.selectXRCQueue(p, s)
	}
	if !m.allowsOperation(p, s.Op) || atomic && s.RemoteAddr%8 != 0 {
		return m.rejectRequest(q, p, ib.WCRemInvReqErr), 0, false
	}
	from, ok := m.checkRemoteAccess(p, s.RKey, s.RemoteAddr, n, neededPeerRights[s.Op])
	if !ok {
		if !atomic { // a requester may read the data in pieces, of which the last is rejected
			from = m.accessiblePrefix(p, s.RKey, s.RemoteAddr, n, neededPeerRights[s.Op])
			m.recordOverlap(to.spans, from)
			m.allowUnstoredBytes(to.spans, 0, m.loadBytes(from, spansLen(from)))
		}
		return m.rejectRequest(q, p, ib.WCRemAccessErr), 0, false
	}
	m.recordOverlap(to.spans, from)
	m.recordFetch(s, from, to.spans)
	if !atomic {
		m.scatterBytes(to.spans, 0, m.loadBytes(from, n))
		return successStatus, n, false
	}
	old := m.loadAtomicWord(from)
	fresh := old + s.CompareAdd
	if s.Op == ib.WRAtomicCmpAndSwp {
		if fresh = old; old == s.CompareAdd {
			fresh = s.Swap
		}
	}
	m.recordStore(s, from)
	m.scatterBytes(from, 0, binary.NativeEndian.AppendUint64(nil, fresh))
	m.scatterBytes(to.spans, 0, binary.NativeEndian.AppendUint64(nil, old))
	return successStatus, 8, false
}

// invalidDestinationStatus returns the result of a READ or atomic whose destination is invalid. The peer may have
// executed it.
func (m *Model) invalidDestinationStatus(q, p *QP, s *Send, to *checkedSGL) (status []ib.WCStatus, n uint64,
	wait bool) {
	if s.Op != ib.WRRDMARead {
		m.markResultUndefined("an atomic whose result has no place")
	}
	if p != nil && p.Type == ib.QPTypeXRCTgt {
		m.selectXRCQueue(p, s)
	}
	if p != nil {
		from, ok := m.checkRemoteAccess(p, s.RKey, s.RemoteAddr, to.n, neededPeerRights[s.Op])
		if !ok || !m.allowsOperation(p, s.Op) {
			m.markResultUndefined("a READ without rights whose result has no place")
		} else {
			m.recordExchange(q, p)
			m.recordOverlap(to.spans, from)
			m.allowUnstoredBytes(to.spans, 0, m.loadBytes(from, to.n)[:to.reach])
		}
	}
	return statusList(ib.WCLocProtErr), 0, false
}

// executeFlush executes FLUSH (A19.4). Written data are in memory already, so only the rights are checked.
func (m *Model) executeFlush(q, p *QP, s *Send) []ib.WCStatus {
	f := &s.Flush
	need := ib.AccessFlags(0)
	if f.Placement&ib.FlushGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if f.Placement&ib.FlushPersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	if need == 0 || f.Placement&^(ib.FlushGlobal|ib.FlushPersistent) != 0 || f.Level > ib.FlushRegion {
		m.markResultUndefined("a FLUSH with values that do not exist")
	}
	if p.Attr.AccessFlags&need != need {
		return m.rejectRequest(q, p, ib.WCRemInvReqErr)
	}
	r, w := m.objectByRKey(s.RKey)
	switch {
	case w != nil:
		m.markResultUndefined("a FLUSH by the key of a window")
	case r == nil, r.PD != m.protectionDomainOfKeys(p), r.Access&need != need,
		f.Level == ib.FlushRange && !rangeContains(r.IOVA, r.Len, s.RemoteAddr, uint64(f.Length)):
		return m.rejectRequest(q, p, ib.WCRemAccessErr)
	}
	return successStatus
}

// ReadRemoteWord returns the 8 bytes at an address of remote memory of a queue pair, or nil.
func (m *Model) ReadRemoteWord(p *QP, rkey uint32, addr uint64) *uint64 {
	spans, ok := m.checkRemoteAccess(p, rkey, addr, 8, 0)
	if !ok {
		return nil
	}
	v := m.loadAtomicWord(spans)
	return &v
}

// FirstRecvLen returns the length of the first receive of a queue pair, or -1 if there is none. srq is the queue that a
// request to an XRC target names.
func (m *Model) FirstRecvLen(p *QP, srq ID) int {
	r := m.recvQueueOf(p)
	if s := m.SRQs[srq]; s != nil {
		r = &s.queue
	}
	if len(r.recvs) == 0 {
		return -1
	}
	return int(m.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite).n)
}
