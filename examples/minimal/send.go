package minimal

import (
	"verbena/ib"
)

// runSends executes the posted sends that can be executed. In ERR it flushes both queues.
//
//verbena:held q.d.mu
func (q *queuePair) runSends() {
	for len(q.sends) > 0 && q.attr.State == ib.QPRTS {
		status, done := q.executeSend(&q.sends[0])
		if !done {
			return
		}
		q.completeSend(status)
	}
	if q.attr.State != ib.QPErr {
		return
	}
	for len(q.sends) > 0 {
		q.completeSend(ib.WCWRFlushErr)
	}
	for len(q.recvs) > 0 {
		q.completeRecv(ib.WC{Status: ib.WCWRFlushErr, Opcode: ib.WCRecv}, false)
	}
}

// enterErr sets the state to ERR. The flush happens before Device.mu is unlocked. The flush cannot happen in
// enterErr, because q may be its own peer during a send.
func (q *queuePair) enterErr() { q.attr.State, q.d.retry = ib.QPErr, true }

// completeSend completes the oldest send. A failure moves the queue pair to ERR.
func (q *queuePair) completeSend(status ib.WCStatus) {
	wr := q.sends[0]
	q.sends = q.sends[1:]
	if status == ib.WCSuccess && !q.sigAll && wr.Flags&ib.SendSignaled == 0 {
		return
	}
	ok := q.sendCQ.addCompletion(ib.WC{ID: wr.ID, Status: status, Opcode: ib.WCSend, QPNum: q.h.Num(), QP: q.h.QP()},
		false)
	if (!ok || status != ib.WCSuccess) && q.attr.State != ib.QPErr {
		q.enterErr()
	}
}

// completeRecv completes the oldest receive.
func (q *queuePair) completeRecv(wc ib.WC, solicited bool) {
	wc.ID, wc.QPNum, wc.QP = q.recvs[0].ID, q.h.Num(), q.h.QP()
	q.recvs = q.recvs[1:]
	ok := q.recvCQ.addCompletion(wc, solicited)
	if (!ok || wc.Status != ib.WCSuccess) && q.attr.State != ib.QPErr {
		q.enterErr()
	}
}

// executeSend executes a send, both as requester and as responder. A real driver would send packets at this point.
// executeSend returns false if the peer is not ready.
func (q *queuePair) executeSend(wr *ib.SendWR) (status ib.WCStatus, done bool) {
	data := wr.Inline
	if wr.Flags&ib.SendInline == 0 {
		if sglLength(wr.SGList) > maxMessage {
			return ib.WCLocLenErr, true
		}
		data = make([]byte, sglLength(wr.SGList))
		if !q.gather(data, wr.SGList) {
			return ib.WCLocProtErr, true
		}
	}

	// The following code is the responder.
	p := q.d.qps[q.attr.DestQPN]
	switch {
	case q.attr.AH.GRH.DGID != deviceGID || p == nil:
		return ib.WCRetryExcErr, true
	case p.attr.State == ib.QPInit: // in INIT, the peer may still be connected
		return 0, false
	case p.attr.State == ib.QPReset || p.attr.State == ib.QPErr || p.attr.DestQPN != q.h.Num():
		return ib.WCRetryExcErr, true // the same status as without a response
	case len(p.recvs) == 0 && q.attr.RNRRetry == 0:
		return ib.WCRNRRetryExcErr, true
	case len(p.recvs) == 0: // receiver not ready: this driver has no timer, so the request waits for a receive
		return 0, false
	}
	wc := ib.WC{Opcode: ib.WCRecv, ByteLen: uint32(len(data)), SrcQP: q.h.Num(), Port: 1}
	if wr.Opcode == ib.WRSendWithImm {
		wc.Imm, wc.Flags = wr.Imm, ib.WCWithImm
	}
	switch sgl := p.recvs[0].SGList; {
	case uint64(len(data)) > sglLength(sgl):
		wc.Status, status = ib.WCLocLenErr, ib.WCRemInvReqErr
	case !p.scatter(sgl, data):
		wc.Status, status = ib.WCLocProtErr, ib.WCRemOpErr
	}
	p.completeRecv(wc, wr.Flags&ib.SendSolicited != 0)
	return status, true
}

func sglLength(sgl []ib.SGE) (n uint64) {
	for _, s := range sgl {
		n += uint64(s.Length)
	}
	return n
}

// findRegion returns the region of an element, or nil if q may not use the region.
func (q *queuePair) findRegion(s ib.SGE, access ib.AccessFlags) *memoryRegion {
	r := q.d.mrs[s.LKey]
	if r == nil || r.pd != q.pd || r.access&access != access || !r.mem.Contains(s.Addr, uint64(s.Length)) {
		return nil
	}
	return r
}

// gather reads data from local memory.
func (q *queuePair) gather(data []byte, sgl []ib.SGE) bool {
	for _, s := range sgl {
		r := q.findRegion(s, 0)
		if r == nil || r.mem.ReadV([][]byte{data[:s.Length]}, s.Addr) != nil {
			return false
		}
		data = data[s.Length:]
	}
	return true
}

// scatter stores data in local memory. scatter stores no data unless q may write to all elements.
func (q *queuePair) scatter(sgl []ib.SGE, data []byte) bool {
	for _, s := range sgl {
		if q.findRegion(s, ib.AccessLocalWrite) == nil {
			return false
		}
	}
	for _, s := range sgl {
		n := min(int(s.Length), len(data))
		if q.findRegion(s, ib.AccessLocalWrite).mem.WriteV([][]byte{data[:n]}, s.Addr) != nil {
			return false
		}
		data = data[n:]
	}
	return true
}
