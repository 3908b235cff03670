package loopback

import (
	"encoding/binary"
	"slices"

	"verbena/ib"
)

// runSends executes the send queue as far as possible.
//
//verbena:held q.dev.mu
func (q *QP) runSends() {
	if q.init.Type == ib.QPTypeSRD && q.state == ib.QPRTS {
		q.runIndependentSends()
	}
	for q.sq.n > 0 && !q.waiting {
		switch {
		case q.dev.dead:
			q.moveToError()
		case q.state == ib.QPErr, q.state == ib.QPSQE:
			q.flushSends()
		case q.state != ib.QPRTS || !q.executeFirstSend():
			return
		}
	}
}

// runIndependentSends executes the send queue of SRD. A request that must wait does not delay the others.
//
//verbena:held q.dev.mu
func (q *QP) runIndependentSends() {
	for n := q.sq.n; n > 0 && q.state == ib.QPRTS && !q.dev.dead; n-- {
		w := q.sq.pop()
		q.busy = true
		status, length, wait := q.executeRequest(w)
		q.busy = false
		if !wait {
			q.completeSend(w, status, length)
			continue
		}
		last := q.sq.push()
		*last, *w = *w, *last // each slot has slices of its own
	}
	if q.waiting = false; q.sq.n > 0 && q.state == ib.QPRTS && !q.dev.dead {
		q.markSendWaiting()
	}
}

// executeFirstSend executes the first work request. executeFirstSend returns false if the request must wait.
//
//verbena:held q.dev.mu
func (q *QP) executeFirstSend() bool {
	w := q.sq.pop()
	q.busy = true
	status, n, wait := q.executeRequest(w)
	q.busy = false
	if wait {
		q.sq.unpop()
		q.markSendWaiting()
		return false
	}
	q.completeSend(w, status, n)
	return true
}

// raiseDrainedEvent raises EventSQDrained if it was requested and the send queue is idle.
//
//verbena:held q.dev.mu
func (q *QP) raiseDrainedEvent() {
	if q.state == ib.QPSQD && !q.waiting && q.attr.EnSQDAsyncNotify {
		q.attr.EnSQDAsyncNotify = false
		q.obj.Raise(ib.EventSQDrained)
	}
}

// completeSend completes a send work request. After an error it flushes the rest of the queue.
//
//verbena:held q.dev.mu
func (q *QP) completeSend(w *sendWQE, status ib.WCStatus, n uint64) {
	failed := status != ib.WCSuccess
	over := q.state == ib.QPErr || q.state == ib.QPSQE
	lost := false
	if failed || q.init.SigAll || w.wr.Flags&ib.SendSignaled != 0 {
		wc := ib.WC{ID: w.wr.ID, Status: status, Opcode: wcOpcodes[w.wr.Opcode], ByteLen: uint32(n),
			QPNum: q.obj.Num(), QP: q.obj.QP(), Port: 1}
		if !q.sendCQ.addCompletion(wc, false) && q.state != ib.QPErr {
			q.obj.Raise(ib.EventQPFatal)
			lost = true
		}
	}
	switch {
	case lost: // in both queues (IBA 11.6.3.1)
		q.moveToError()
	case !failed || over || q.init.Type == ib.QPTypeSRD:
	case q.init.Type == ib.QPTypeUD || q.init.Type == ib.QPTypeUC:
		q.state = ib.QPSQE
		q.flushSends()
	default:
		q.moveToError()
	}
}

var wcOpcodes = [...]ib.WCOpcode{
	ib.WRSend: ib.WCSend, ib.WRSendWithImm: ib.WCSend, ib.WRSendWithInv: ib.WCSend,
	ib.WRRDMAWrite: ib.WCRDMAWrite, ib.WRRDMAWriteWithImm: ib.WCRDMAWrite, ib.WRRDMARead: ib.WCRDMARead,
	ib.WRAtomicCmpAndSwp: ib.WCCompSwap, ib.WRAtomicFetchAdd: ib.WCFetchAdd,
	ib.WRLocalInv: ib.WCLocalInv, ib.WRBindMW: ib.WCBindMW, ib.WRRegMR: ib.WCRegMR,
	ib.WRFlush: ib.WCFlush, ib.WRAtomicWrite: ib.WCAtomicWrite,
}

// completeRecv completes the first receive work request of r on q. The completion is wc, and completeRecv sets its
// remaining fields.
//
//verbena:held q.dev.mu
func (q *QP) completeRecv(r *recvQueue, wc *ib.WC, solicited bool) {
	w := r.pop()
	wc.ID, wc.QPNum, wc.QP, wc.Port = w.id, q.obj.Num(), q.obj.QP(), 1
	if wc.Opcode == 0 {
		wc.Opcode = ib.WCRecv
	}
	cq := q.recvCQ
	if r.cq != nil {
		cq = r.cq
		q.recordForeignCQ(r.cq)
	}
	if !cq.addCompletion(*wc, solicited) && q.state != ib.QPErr {
		q.obj.Raise(ib.EventQPFatal)
		q.moveToError()
	}
	r.checkLimit()
}

// recordForeignCQ records a CQ that is not the queue pair's own, for use by Destroy.
//
//verbena:held q.dev.mu
func (q *QP) recordForeignCQ(cq completionQueue) {
	if !slices.Contains(q.usedCQs, cq) {
		q.usedCQs = append(slices.DeleteFunc(q.usedCQs, completionQueue.isDestroyed), cq)
	}
}

// executeRequest executes a work request on both sides. n is the number of received bytes. If there is no receive yet,
// or the peer is in INIT, executeRequest does nothing and returns wait as true.
//
//verbena:held q.dev.mu
func (q *QP) executeRequest(w *sendWQE) (status ib.WCStatus, n uint64, wait bool) {
	d := q.dev
	switch w.wr.Opcode {
	case ib.WRLocalInv:
		if !d.invalidateKey(w.wr.InvalidateRKey, q) {
			return ib.WCLocQPOpErr, 0, false
		}
		return ib.WCSuccess, 0, false
	case ib.WRBindMW:
		return q.executeBind(w), 0, false
	case ib.WRRegMR:
		return q.executeRegMR(w), 0, false
	}
	src := &d.copier.src
	switch {
	case w.wr.Opcode == ib.WRFlush:
		status, wait = q.executeFlush(w)
		return status, 0, wait
	case w.wr.Flags&ib.SendInline != 0, w.wr.Opcode == ib.WRAtomicWrite:
		src.reset()
		src.inline, src.n = w.inline, uint64(len(w.inline))
	case returnsDataToRequester(w.wr.Opcode):
		return q.executeFetch(w)
	case !d.checkLocalList(src, w.sges, q.pd, 0, wholeListLength):
		return ib.WCLocProtErr, 0, false
	}
	if src.n > maxMsgSize || q.isDatagram(w) && src.n > uint64(mtu.Bytes()) {
		return ib.WCLocLenErr, 0, false
	}
	if q.init.Type == ib.QPTypeUD {
		if w.ahPD != q.pd { // C10-70
			return ib.WCLocQPOpErr, 0, false
		}
		return q.sendDatagram(w), 0, false
	}
	peer, status, wait := q.peerOf(w)
	if peer == nil {
		return status, 0, wait
	}
	switch w.wr.Opcode {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRAtomicWrite:
		status, wait = q.executeWrite(w, peer)
	default:
		status, wait = q.executeSend(w, peer)
	}
	return status, 0, wait
}

// isDatagram reports whether a request is a message of one packet.
func (q *QP) isDatagram(w *sendWQE) bool {
	send := w.wr.Opcode == ib.WRSend || w.wr.Opcode == ib.WRSendWithImm
	return q.init.Type == ib.QPTypeUD || q.init.Type == ib.QPTypeSRD && send
}

// peerOf returns the queue pair that executes a request; nil if there is none, with the result of the request.
func (q *QP) peerOf(w *sendWQE) (p *QP, status ib.WCStatus, wait bool) {
	if q.init.Type != ib.QPTypeSRD {
		if p = q.connectedPeer(); p == nil {
			status, wait = q.noResponseStatus()
		}
		return p, status, wait
	}
	p = q.dev.qps[w.wr.RemoteQPN]
	switch {
	case w.ahPD != q.pd:
		return nil, ib.WCLocQPOpErr, false
	case w.ah.GRH.DGID != q.dev.gid:
		return nil, ib.WCRetryExcErr, false
	case p == nil || p.init.Type != ib.QPTypeSRD:
		return nil, ib.WCRemInvRDReqErr, false
	case p.state == ib.QPErr:
		return nil, ib.WCRemAbortErr, false
	case !p.canReceive() || p.attr.QKey != q.requestQKey(w):
		return nil, ib.WCRetryExcErr, false
	}
	return p, ib.WCSuccess, false
}

// requestQKey returns the Q_Key of a request. A controlled Q_Key stands for the sender's own one (IBA 10.2.5).
func (q *QP) requestQKey(w *sendWQE) uint32 {
	if w.wr.RemoteQKey&(1<<31) != 0 {
		return q.attr.QKey
	}
	return w.wr.RemoteQKey
}

// senderStatus returns the sender's status for a failure at the peer.
func (q *QP) senderStatus(s ib.WCStatus) ib.WCStatus {
	if q.init.Type == ib.QPTypeUC && s != ib.WCLocProtErr {
		return ib.WCSuccess
	}
	return s
}

// connectedPeer returns the peer of a connection, or nil.
func (q *QP) connectedPeer() *QP {
	p := q.destinationQP()
	if p == nil || p.attr.DestQPN != q.obj.Num() || !p.canReceive() {
		return nil
	}
	return p
}

// destinationQP returns the queue pair to which q sends, in any state.
func (q *QP) destinationQP() *QP {
	p, want := q.dev.qps[q.attr.DestQPN], q.init.Type
	if want == ib.QPTypeXRCInit {
		want = ib.QPTypeXRCTgt
	}
	if p == nil || p.init.Type != want || q.attr.AH.GRH.DGID != q.dev.gid {
		return nil
	}
	return p
}

// noResponseStatus returns the result of a request without a responding peer. A peer in INIT may be about to be
// connected. With real hardware, retries would wait for the connection. In this driver retries take no time, and
// therefore never end.
func (q *QP) noResponseStatus() (status ib.WCStatus, wait bool) {
	if p := q.destinationQP(); p != nil && p.state == ib.QPInit && q.init.Type != ib.QPTypeUC {
		return 0, true
	}
	return q.senderStatus(ib.WCRetryExcErr), false
}

func (q *QP) canReceive() bool { return q.state >= ib.QPRTR && q.state <= ib.QPSQE }

// failResponder moves the responder to the error state. failResponder raises the event e if no completion reports the
// failure.
func (p *QP) failResponder(e ib.EventType) {
	if p.init.Type != ib.QPTypeUC && p.init.Type != ib.QPTypeSRD {
		p.obj.Raise(e)
		p.moveToError()
	}
}

// receiveQueueFor returns the receive queue for a message of q to p.
func (q *QP) receiveQueueFor(w *sendWQE, p *QP) (rq *recvQueue, status ib.WCStatus, wait bool) {
	rq = p.rq
	if q.init.Type == ib.QPTypeXRCInit {
		if rq = p.xrcRecvQueue(w.wr.RemoteSRQN); rq == nil {
			p.failResponder(ib.EventQPReqErr)
			return nil, ib.WCRemInvReqErr, false
		}
	}
	if rq.n > 0 {
		return rq, ib.WCSuccess, false
	}
	switch {
	case q.init.Type == ib.QPTypeUC:
		return nil, ib.WCSuccess, false // dropped
	case q.attr.RNRRetry == 0:
		return nil, ib.WCRNRRetryExcErr, false
	}
	return nil, ib.WCSuccess, true // retries take no time in this driver, and therefore never end
}

// executeSend executes a SEND from q to p.
func (q *QP) executeSend(w *sendWQE, p *QP) (status ib.WCStatus, wait bool) {
	rq, status, wait := q.receiveQueueFor(w, p)
	if rq == nil {
		return status, wait
	}
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	wc := ib.WC{SrcQP: q.obj.Num(), ByteLen: uint32(src.n)}
	status = ib.WCSuccess
	switch {
	case !d.checkLocalList(dst, rq.front().sges, rq.pd, ib.AccessLocalWrite, src.n):
		wc.Status, status = ib.WCLocProtErr, ib.WCRemOpErr
	case dst.n < src.n && q.init.Type == ib.QPTypeUC:
		return ib.WCSuccess, false // the message is lost and the receive remains (class D of IBA 9.9.3)
	case dst.n < src.n && q.init.Type == ib.QPTypeSRD:
		return ib.WCRemInvReqErr, false // the receive remains
	case dst.n < src.n:
		wc.Status, status = ib.WCLocLenErr, ib.WCRemInvReqErr
	case w.wr.Opcode == ib.WRSendWithInv && !d.mayInvalidateKey(w.wr.InvalidateRKey, p):
		wc.Status, status = ib.WCMWBindErr, ib.WCRetryExcErr // the sender receives no response
	default:
		switch d.copier.copyMessage(dst, src, 0, src.n) {
		case atSource:
			return ib.WCLocProtErr, false // no data have arrived
		case atTarget:
			wc.Status, status = ib.WCLocProtErr, ib.WCRemOpErr
		default:
			if w.wr.Opcode == ib.WRSendWithInv {
				d.invalidateKey(w.wr.InvalidateRKey, p)
			}
		}
	}
	switch w.wr.Opcode {
	case ib.WRSendWithImm:
		wc.Flags, wc.Imm = ib.WCWithImm, w.wr.Imm
	case ib.WRSendWithInv:
		wc.Flags, wc.InvalidateRKey = ib.WCWithInvalidate, w.wr.InvalidateRKey
	}
	p.completeRecv(rq, &wc, w.wr.Flags&ib.SendSolicited != 0)
	switch {
	case wc.Status == ib.WCSuccess:
	case q.init.Type == ib.QPTypeSRD:
		status = ib.WCBadRespErr
	default:
		p.moveToError()
	}
	return q.senderStatus(status), false
}

// executeWrite executes an RDMA WRITE from q to p. A rejected request consumes no receive (IBA 9.9.3).
func (q *QP) executeWrite(w *sendWQE, p *QP) (status ib.WCStatus, wait bool) {
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	if status = d.checkPeerAccess(dst, w, src.n, p, ib.AccessRemoteWrite); status != ib.WCSuccess {
		return q.senderStatus(status), false
	}
	var rq *recvQueue
	if w.wr.Opcode == ib.WRRDMAWriteWithImm {
		if rq, status, wait = q.receiveQueueFor(w, p); rq == nil {
			return status, wait
		}
	}
	switch d.copier.copyMessage(dst, src, 0, src.n) {
	case atSource:
		return ib.WCLocProtErr, false
	case atTarget:
		p.failResponder(ib.EventQPFatal)
		return q.senderStatus(ib.WCRemOpErr), false
	}
	if rq != nil {
		wc := ib.WC{
			SrcQP: q.obj.Num(), ByteLen: uint32(src.n), Opcode: ib.WCRecvRDMAWithImm, Flags: ib.WCWithImm, Imm: w.wr.Imm,
		}
		p.completeRecv(rq, &wc, w.wr.Flags&ib.SendSolicited != 0)
	}
	return ib.WCSuccess, false
}

// isAlignedAtomic reports whether the request is for 8 contiguous bytes at an address that is a multiple of 8.
func (w *sendWQE) isAlignedAtomic() bool {
	switch w.wr.Opcode {
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRAtomicWrite:
		return true
	}
	return false
}

// checkPeerAccess checks a request for n bytes of p's memory, and stores the memory in m. An operation that the queue
// pair does not allow is an invalid request, and so is a misaligned atomic operation. An operation that the memory does
// not allow is an access error (IBA 9.9.3).
func (d *Device) checkPeerAccess(m *messageMemory, w *sendWQE, n uint64, p *QP, need ib.AccessFlags) ib.WCStatus {
	switch {
	case p.init.Type != ib.QPTypeSRD && p.attr.AccessFlags&need != need, w.isAlignedAtomic() && w.wr.RemoteAddr%8 != 0:
		p.failResponder(ib.EventQPReqErr)
		return ib.WCRemInvReqErr
	case !d.checkRemoteAccess(m, w, n, p, need):
		p.failResponder(ib.EventQPAccessErr)
		return ib.WCRemAccessErr
	}
	return ib.WCSuccess
}

// executeFetch executes an RDMA READ or an atomic operation. Data of p are stored in the memory of the work request's
// list.
func (q *QP) executeFetch(w *sendWQE) (status ib.WCStatus, n uint64, wait bool) {
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	if !d.checkLocalList(dst, w.sges, q.pd, ib.AccessLocalWrite, wholeListLength) {
		return ib.WCLocProtErr, 0, false
	}
	need, atomic := ib.AccessRemoteRead, w.wr.Opcode != ib.WRRDMARead
	if n = dst.n; atomic {
		if need = ib.AccessRemoteAtomic; n != 8 {
			return ib.WCLocLenErr, 0, false
		}
	}
	if n > maxMsgSize {
		return ib.WCLocLenErr, 0, false
	}
	p, status, wait := q.peerOf(w)
	if p == nil {
		return status, 0, wait
	}
	if status = d.checkPeerAccess(src, w, n, p, need); status != ib.WCSuccess {
		return status, 0, false
	}
	if atomic {
		return q.executeAtomic(w, p)
	}
	switch d.copier.copyMessage(dst, src, 0, n) {
	case atSource:
		p.failResponder(ib.EventQPFatal)
		return ib.WCRemOpErr, 0, false
	case atTarget:
		return ib.WCLocProtErr, 0, false
	}
	return ib.WCSuccess, n, false
}

// executeAtomic modifies the 8 bytes of the source, in host byte order, and stores the old value in the target.
func (q *QP) executeAtomic(w *sendWQE, p *QP) (status ib.WCStatus, n uint64, wait bool) {
	c := &q.dev.copier
	old := c.buf[:8]
	if !c.transferBytes(&c.src, 0, old, false) {
		p.failResponder(ib.EventQPFatal)
		return ib.WCRemOpErr, 0, false
	}
	v := binary.NativeEndian.Uint64(old)
	fresh := v + w.wr.CompareAdd
	if w.wr.Opcode == ib.WRAtomicCmpAndSwp {
		if fresh = v; v == w.wr.CompareAdd {
			fresh = w.wr.Swap
		}
	}
	if !c.transferBytes(&c.dst, 0, old, true) {
		return ib.WCLocProtErr, 0, false
	}
	binary.NativeEndian.PutUint64(old, fresh)
	if !c.transferBytes(&c.src, 0, old, true) {
		p.failResponder(ib.EventQPFatal)
		return ib.WCRemOpErr, 0, false
	}
	return ib.WCSuccess, 8, false
}

// sendDatagram sends the source to a queue pair or to a multicast group. The sender is not notified of losses.
func (q *QP) sendDatagram(w *sendWQE) ib.WCStatus {
	d := q.dev
	dgid := w.ah.GRH.DGID
	if dgid[0] == 0xff && w.wr.RemoteQPN == multicastQPN {
		for _, p := range d.groups[dgid] {
			if !q.deliverDatagram(w, p) {
				return ib.WCLocProtErr
			}
		}
	} else if p := d.qps[w.wr.RemoteQPN]; p != nil && dgid == d.gid {
		if !q.deliverDatagram(w, p) {
			return ib.WCLocProtErr
		}
	}
	return ib.WCSuccess
}

// deliverDatagram copies the source to p. deliverDatagram returns false if the source cannot be read.
func (q *QP) deliverDatagram(w *sendWQE, p *QP) bool {
	if p.init.Type != ib.QPTypeUD || !p.canReceive() || p.attr.QKey != q.requestQKey(w) || p.rq.n == 0 {
		return true
	}
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	wc := ib.WC{SrcQP: q.obj.Num(), ByteLen: uint32(grhLen + src.n), Flags: ib.WCGRH}
	if w.wr.Opcode == ib.WRSendWithImm {
		wc.Flags, wc.Imm = wc.Flags|ib.WCWithImm, w.wr.Imm
	}
	switch {
	case !d.checkLocalList(dst, p.rq.front().sges, p.rq.pd, ib.AccessLocalWrite, grhLen+src.n):
		wc.Status = ib.WCLocProtErr
	case dst.n < grhLen+src.n:
		return true // the message is lost and the receive remains (class D of IBA 9.9.3)
	default:
		switch d.copier.copyMessage(dst, src, grhLen, src.n) {
		case atSource:
			return false
		case atTarget:
			wc.Status = ib.WCLocProtErr
		}
		if !d.copier.transferBytes(dst, 0, d.buildGRH(w, src.n), true) {
			wc.Status = ib.WCLocProtErr
		}
	}
	p.completeRecv(p.rq, &wc, w.wr.Flags&ib.SendSolicited != 0)
	if wc.Status != ib.WCSuccess {
		p.moveToError()
	}
	return true
}

// buildGRH returns the global route header. The header precedes the data of a datagram in the receiver's buffer (IBA
// 8.3).
func (d *Device) buildGRH(w *sendWQE, n uint64) []byte {
	h := d.copier.buf[:grhLen]
	clear(h)
	g := &w.ah.GRH
	binary.BigEndian.PutUint32(h, 6<<28|uint32(g.TrafficClass)<<20|g.FlowLabel&0xfffff)
	binary.BigEndian.PutUint16(h[4:], uint16(n))
	h[6], h[7] = 0x1b, g.HopLimit // next header: IBA transport
	copy(h[8:], d.gid[:])
	copy(h[24:], g.DGID[:])
	return h
}
