package model

import (
	"encoding/binary"

	"verbena/ib"
)

// executeFetch executes an RDMA READ or an atomic.
func (x *requestExecutor) executeFetch(q *QP, s *Send) (status []ib.WCStatus, n uint64, wait bool) {
	to := x.keys.checkSGL(s.SGL, q.PD, ib.AccessLocalWrite)
	n = to.n
	atomic := s.Op != ib.WRRDMARead
	p := x.queues.connectedPeer(q)
	switch {
	case atomic && n != 8:
		if n > 8 || !to.ok {
			x.call.markResultUndefined("an atomic of more than 8 bytes, or of fewer with a wrong key")
		}
		return statusList(ib.WCLocLenErr, ib.WCLocQPOpErr), 0, false
	case n > x.device.MaxMsgSize:
		if !to.ok {
			x.call.markResultUndefined("a message that is too long, with a wrong key")
		}
		return statusList(ib.WCLocLenErr), 0, false
	case !to.ok:
		if p == nil {
			x.call.markResultUndefined("a wrong key of a READ without a peer")
		}
		return x.invalidDestinationStatus(q, p, s, &to)
	case p == nil:
		status, wait = x.noResponseStatus(q)
		return status, 0, wait
	}
	x.call.recordExchange(q, p)
	x.call.countServedQP(q)
	if p.Type == ib.QPTypeXRCTgt {
		x.queues.selectXRCQueue(p, s)
	}
	if !allowsOperation(p, s.Op) || atomic && s.RemoteAddr%8 != 0 {
		return x.rejectRequest(q, p, ib.WCRemInvReqErr), 0, false
	}
	from, ok := x.keys.checkRemoteAccess(p, s.RKey, s.RemoteAddr, n, neededPeerRights[s.Op])
	if !ok {
		if !atomic { // a requester may read the data in pieces, of which the last is rejected
			from = x.keys.accessiblePrefix(p, s.RKey, s.RemoteAddr, n, neededPeerRights[s.Op])
			x.call.recordOverlap(to.spans, from)
			x.allowUnstoredBytes(to.spans, 0, x.loadBytes(from, spansLen(from)))
		}
		return x.rejectRequest(q, p, ib.WCRemAccessErr), 0, false
	}
	x.call.recordOverlap(to.spans, from)
	x.call.recordFetch(s, from, to.spans)
	if !atomic {
		x.scatterBytes(to.spans, 0, x.loadBytes(from, n))
		return successStatus, n, false
	}
	old := x.loadAtomicWord(from)
	fresh := old + s.CompareAdd
	if s.Op == ib.WRAtomicCmpAndSwp {
		if fresh = old; old == s.CompareAdd {
			fresh = s.Swap
		}
	}
	x.call.recordStore(s, from)
	x.scatterBytes(from, 0, binary.NativeEndian.AppendUint64(nil, fresh))
	x.scatterBytes(to.spans, 0, binary.NativeEndian.AppendUint64(nil, old))
	return successStatus, 8, false
}

// invalidDestinationStatus returns the result of a READ or atomic whose destination is invalid. The peer may have
// executed it.
func (x *requestExecutor) invalidDestinationStatus(q, p *QP, s *Send, to *checkedSGL) (status []ib.WCStatus, n uint64,
	wait bool) {
	if s.Op != ib.WRRDMARead {
		x.call.markResultUndefined("an atomic whose result has no place")
	}
	if p != nil && p.Type == ib.QPTypeXRCTgt {
		x.queues.selectXRCQueue(p, s)
	}
	if p != nil {
		from, ok := x.keys.checkRemoteAccess(p, s.RKey, s.RemoteAddr, to.n, neededPeerRights[s.Op])
		if !ok || !allowsOperation(p, s.Op) {
			x.call.markResultUndefined("a READ without rights whose result has no place")
		} else {
			x.call.recordExchange(q, p)
			x.call.recordOverlap(to.spans, from)
			x.allowUnstoredBytes(to.spans, 0, x.loadBytes(from, to.n)[:to.reach])
		}
	}
	return statusList(ib.WCLocProtErr), 0, false
}

// executeFlush executes FLUSH (A19.4). Written data are in memory already, so only the rights are checked.
func (x *requestExecutor) executeFlush(q, p *QP, s *Send) []ib.WCStatus {
	f := &s.Flush
	need := ib.AccessFlags(0)
	if f.Placement&ib.FlushGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if f.Placement&ib.FlushPersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	if need == 0 || f.Placement&^(ib.FlushGlobal|ib.FlushPersistent) != 0 || f.Level > ib.FlushRegion {
		x.call.markResultUndefined("a FLUSH with values that do not exist")
	}
	if p.Attr.AccessFlags&need != need {
		return x.rejectRequest(q, p, ib.WCRemInvReqErr)
	}
	r, w := x.keys.objectByRKey(s.RKey)
	switch {
	case w != nil:
		x.call.markResultUndefined("a FLUSH by the key of a window")
	case r == nil, r.PD != x.queues.protectionDomainOfKeys(p), r.Access&need != need,
		f.Level == ib.FlushRange && !rangeContains(r.IOVA, r.Len, s.RemoteAddr, uint64(f.Length)):
		return x.rejectRequest(q, p, ib.WCRemAccessErr)
	}
	return successStatus
}

// ReadRemoteWord returns the 8 bytes at an address of remote memory of a queue pair, or nil.
func (m *Model) ReadRemoteWord(p *QP, rkey uint32, addr uint64) *uint64 {
	spans, ok := m.Keys.checkRemoteAccess(p, rkey, addr, 8, 0)
	if !ok {
		return nil
	}
	v := m.requests.loadAtomicWord(spans)
	return &v
}

// FirstRecvLen returns the length of the first receive of a queue pair, or -1 if there is none. srq is the queue that a
// request to an XRC target names.
func (m *Model) FirstRecvLen(p *QP, srq ID) int {
	r := m.Queues.recvQueueOf(p)
	if s := m.Queues.SRQs[srq]; s != nil {
		r = &s.queue
	}
	if len(r.recvs) == 0 {
		return -1
	}
	return int(m.Keys.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite).n)
}
