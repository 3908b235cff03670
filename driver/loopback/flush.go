package loopback

import "verbena/ib"

// flush executes WRFlush: what was written is in memory already, so that there are only the rights to check (IBA A19.4);
// mu is held.
func (q *QP) flush(w *sendWQE) ib.WCStatus {
	p, f := q.peer(), &w.wr.Flush
	if p == nil {
		return ib.WCRetryExcErr
	}
	if f.Placement != ib.FlushGlobal || f.Level > ib.FlushRegion || p.attr.AccessFlags&ib.AccessFlushGlobal == 0 {
		p.fail(ib.EventQPReqErr)
		return ib.WCRemInvReqErr
	}
	k := q.dev.key(w.wr.RKey)
	if k == nil || k.pd != p.obj.PD() || k.access&ib.AccessFlushGlobal == 0 || k.qp != nil && k.qp != p ||
		f.Level == ib.FlushRange && !k.contains(w.wr.RemoteAddr, uint64(f.Length)) {
		p.fail(ib.EventQPAccessErr)
		return ib.WCRemAccessErr
	}
	return ib.WCSuccess
}
