package loopback

import "verbena/ib"

// executeFlush executes WRFlush. Written data are already in memory. The operation therefore only checks the rights
// (IBA A19.4). No region has the right to flush to persistent memory.
//
//verbena:held q.dev.mu
func (q *QP) executeFlush(w *sendWQE) (status ib.WCStatus, wait bool) {
	p, f := q.connectedPeer(), &w.wr.Flush
	if p == nil {
		return q.noResponseStatus()
	}
	need := ib.AccessFlags(0)
	if f.Placement&ib.FlushGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if f.Placement&ib.FlushPersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	const known = ib.FlushGlobal | ib.FlushPersistent
	if need == 0 || f.Placement&^known != 0 || f.Level > ib.FlushRegion || p.attr.AccessFlags&need != need {
		p.failResponder(ib.EventQPReqErr)
		return ib.WCRemInvReqErr, false
	}
	k := q.dev.lookupKey(w.wr.RKey)
	if k == nil || k.pd != p.pd || k.access&need != need || k.qp != nil && k.qp != p ||
		f.Level == ib.FlushRange && !k.containsRange(w.wr.RemoteAddr, uint64(f.Length)) {
		p.failResponder(ib.EventQPAccessErr)
		return ib.WCRemAccessErr, false
	}
	return ib.WCSuccess, false
}
