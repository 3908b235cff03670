package loopback

import (
	"encoding/binary"
	"slices"

	"verbena/ib"
)

// run executes the send queue as far as possible.
//
//verbena:held q.dev.mu
func (q *QP) run() {
	for q.sq.n > 0 && !q.waiting {
		switch {
		case q.dev.dead:
			q.toError()
		case q.state == ib.QPErr, q.state == ib.QPSQE:
			q.flushSends()
		case q.state != ib.QPRTS || !q.step():
			return
		}
	}
}

// step executes the first work request. step returns false if the request must wait.
//
//verbena:held q.dev.mu
func (q *QP) step() bool {
	w := q.sq.pop()
	q.busy = true
	status, n, wait := q.execute(w)
	q.busy = false
	if wait {
		q.sq.unpop()
		q.block()
		return false
	}
	q.completeSend(w, status, n)
	return true
}

// drained raises EventSQDrained if it was requested and the send queue is idle.
//
//verbena:held q.dev.mu
func (q *QP) drained() {
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
		wc := ib.WC{ID: w.wr.ID, Status: status, Opcode: opcodes[w.wr.Opcode], ByteLen: uint32(n),
			QPNum: q.obj.Num(), QP: q.obj.QP(), Port: 1}
		if !q.sendCQ.post(wc, false) && q.state != ib.QPErr {
			q.obj.Raise(ib.EventQPFatal)
			lost = true
		}
	}
	switch {
	case lost: // in both queues (IBA 11.6.3.1)
		q.toError()
	case !failed || over:
	case q.init.Type == ib.QPTypeUD || q.init.Type == ib.QPTypeUC:
		q.state = ib.QPSQE
		q.flushSends()
	default:
		q.toError()
	}
}

var opcodes = [...]ib.WCOpcode{
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
		q.used(r.cq)
	}
	if !cq.post(*wc, solicited) && q.state != ib.QPErr {
		q.obj.Raise(ib.EventQPFatal)
		q.toError()
	}
	r.checkLimit()
}

// used records a CQ that is not the queue pair's own, for use by Destroy.
//
//verbena:held q.dev.mu
func (q *QP) used(cq completer) {
	if !slices.Contains(q.usedCQs, cq) {
		q.usedCQs = append(slices.DeleteFunc(q.usedCQs, completer.gone), cq)
	}
}

// execute executes a work request on both sides. n is the number of received bytes. If there is no receive yet, or the
// peer is in INIT, execute does nothing and returns wait as true.
//
//verbena:held q.dev.mu
func (q *QP) execute(w *sendWQE) (status ib.WCStatus, n uint64, wait bool) {
	d := q.dev
	switch w.wr.Opcode {
	case ib.WRLocalInv:
		if !d.invalidate(w.wr.InvalidateRKey, q) {
			return ib.WCLocQPOpErr, 0, false
		}
		return ib.WCSuccess, 0, false
	case ib.WRBindMW:
		return q.bindMW(w), 0, false
	case ib.WRRegMR:
		return q.fastReg(w), 0, false
	}
	src := &d.copier.src
	switch {
	case w.wr.Opcode == ib.WRFlush:
		status, wait = q.flush(w)
		return status, 0, wait
	case w.wr.Flags&ib.SendInline != 0, w.wr.Opcode == ib.WRAtomicWrite:
		src.reset()
		src.inline, src.n = w.inline, uint64(len(w.inline))
	case fetches(w.wr.Opcode):
		return q.fetch(w)
	case !d.local(src, w.sges, q.pd, 0, everything):
		return ib.WCLocProtErr, 0, false
	}
	if src.n > maxMsgSize || q.init.Type == ib.QPTypeUD && src.n > uint64(mtu.Bytes()) {
		return ib.WCLocLenErr, 0, false
	}
	if q.init.Type == ib.QPTypeUD {
		if w.ahPD != q.pd { // C10-70
			return ib.WCLocQPOpErr, 0, false
		}
		return q.datagram(w), 0, false
	}
	peer := q.peer()
	if peer == nil {
		status, wait = q.unanswered()
		return status, 0, wait
	}
	switch w.wr.Opcode {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRAtomicWrite:
		status, wait = q.write(w, peer)
	default:
		status, wait = q.send(w, peer)
	}
	return status, 0, wait
}

// unreliable returns the sender's status for a failure at the peer.
func (q *QP) unreliable(s ib.WCStatus) ib.WCStatus {
	if q.init.Type == ib.QPTypeUC && s != ib.WCLocProtErr {
		return ib.WCSuccess
	}
	return s
}

// peer returns the peer of a connection, or nil.
func (q *QP) peer() *QP {
	p := q.destination()
	if p == nil || p.attr.DestQPN != q.obj.Num() || !p.receives() {
		return nil
	}
	return p
}

// destination returns the queue pair to which q sends, in any state.
func (q *QP) destination() *QP {
	p, want := q.dev.qps[q.attr.DestQPN], q.init.Type
	if want == ib.QPTypeXRCInit {
		want = ib.QPTypeXRCTgt
	}
	if p == nil || p.init.Type != want || q.attr.AH.GRH.DGID != q.dev.gid {
		return nil
	}
	return p
}

// unanswered returns the result of a request without a responding peer. A peer in INIT may be about to be connected.
// With real hardware, retries would wait for the connection. In this driver retries take no time, and therefore never
// end.
func (q *QP) unanswered() (status ib.WCStatus, wait bool) {
	if p := q.destination(); p != nil && p.state == ib.QPInit && q.init.Type != ib.QPTypeUC {
		return 0, true
	}
	return q.unreliable(ib.WCRetryExcErr), false
}

func (q *QP) receives() bool { return q.state >= ib.QPRTR && q.state <= ib.QPSQE }

// fail moves the responder to the error state. fail raises the event e if no completion reports the failure.
func (p *QP) fail(e ib.EventType) {
	if p.init.Type != ib.QPTypeUC {
		p.obj.Raise(e)
		p.toError()
	}
}

// incoming returns the receive queue for a message of q to p.
func (q *QP) incoming(w *sendWQE, p *QP) (rq *recvQueue, status ib.WCStatus, wait bool) {
	rq = p.rq
	if q.init.Type == ib.QPTypeXRCInit {
		if rq = p.xrcQueue(w.wr.RemoteSRQN); rq == nil {
			p.fail(ib.EventQPReqErr)
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

// send executes a SEND from q to p.
func (q *QP) send(w *sendWQE, p *QP) (status ib.WCStatus, wait bool) {
	rq, status, wait := q.incoming(w, p)
	if rq == nil {
		return status, wait
	}
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	wc := ib.WC{SrcQP: q.obj.Num(), ByteLen: uint32(src.n)}
	status = ib.WCSuccess
	switch {
	case !d.local(dst, rq.front().sges, rq.pd, ib.AccessLocalWrite, src.n):
		wc.Status, status = ib.WCLocProtErr, ib.WCRemOpErr
	case dst.n < src.n && q.init.Type == ib.QPTypeUC:
		return ib.WCSuccess, false // the message is lost and the receive remains (class D of IBA 9.9.3)
	case dst.n < src.n:
		wc.Status, status = ib.WCLocLenErr, ib.WCRemInvReqErr
	case w.wr.Opcode == ib.WRSendWithInv && !d.mayInvalidate(w.wr.InvalidateRKey, p):
		wc.Status, status = ib.WCMWBindErr, ib.WCRetryExcErr // the sender receives no response
	default:
		switch d.copier.move(dst, src, 0, src.n) {
		case atSource:
			return ib.WCLocProtErr, false // no data have arrived
		case atTarget:
			wc.Status, status = ib.WCLocProtErr, ib.WCRemOpErr
		default:
			if w.wr.Opcode == ib.WRSendWithInv {
				d.invalidate(w.wr.InvalidateRKey, p)
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
	if wc.Status != ib.WCSuccess {
		p.toError()
	}
	return q.unreliable(status), false
}

// write executes an RDMA WRITE from q to p. A rejected request consumes no receive (IBA 9.9.3).
func (q *QP) write(w *sendWQE, p *QP) (status ib.WCStatus, wait bool) {
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	if status = d.access(dst, w, src.n, p, ib.AccessRemoteWrite); status != ib.WCSuccess {
		return q.unreliable(status), false
	}
	var rq *recvQueue
	if w.wr.Opcode == ib.WRRDMAWriteWithImm {
		if rq, status, wait = q.incoming(w, p); rq == nil {
			return status, wait
		}
	}
	switch d.copier.move(dst, src, 0, src.n) {
	case atSource:
		return ib.WCLocProtErr, false
	case atTarget:
		p.fail(ib.EventQPFatal)
		return q.unreliable(ib.WCRemOpErr), false
	}
	if rq != nil {
		wc := ib.WC{
			SrcQP: q.obj.Num(), ByteLen: uint32(src.n), Opcode: ib.WCRecvRDMAWithImm, Flags: ib.WCWithImm, Imm: w.wr.Imm,
		}
		p.completeRecv(rq, &wc, w.wr.Flags&ib.SendSolicited != 0)
	}
	return ib.WCSuccess, false
}

// atomic reports whether the request is for 8 contiguous bytes at an address that is a multiple of 8.
func (w *sendWQE) atomic() bool {
	switch w.wr.Opcode {
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRAtomicWrite:
		return true
	}
	return false
}

// access checks a request for n bytes of p's memory, and stores the memory in m. An operation that the queue pair does
// not allow is an invalid request, and so is a misaligned atomic operation. An operation that the memory does not allow
// is an access error (IBA 9.9.3).
func (d *Device) access(m *memory, w *sendWQE, n uint64, p *QP, need ib.AccessFlags) ib.WCStatus {
	switch {
	case p.attr.AccessFlags&need != need, w.atomic() && w.wr.RemoteAddr%8 != 0:
		p.fail(ib.EventQPReqErr)
		return ib.WCRemInvReqErr
	case !d.remote(m, w, n, p, need):
		p.fail(ib.EventQPAccessErr)
		return ib.WCRemAccessErr
	}
	return ib.WCSuccess
}

// fetch executes an RDMA READ or an atomic operation. Data of p are stored in the memory of the work request's list.
func (q *QP) fetch(w *sendWQE) (status ib.WCStatus, n uint64, wait bool) {
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	if !d.local(dst, w.sges, q.pd, ib.AccessLocalWrite, everything) {
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
	p := q.peer()
	if p == nil {
		status, wait = q.unanswered()
		return status, 0, wait
	}
	if status = d.access(src, w, n, p, need); status != ib.WCSuccess {
		return status, 0, false
	}
	if atomic {
		return q.atomic(w, p)
	}
	switch d.copier.move(dst, src, 0, n) {
	case atSource:
		p.fail(ib.EventQPFatal)
		return ib.WCRemOpErr, 0, false
	case atTarget:
		return ib.WCLocProtErr, 0, false
	}
	return ib.WCSuccess, n, false
}

// atomic modifies the 8 bytes of the source, in host byte order, and stores the old value in the target.
func (q *QP) atomic(w *sendWQE, p *QP) (status ib.WCStatus, n uint64, wait bool) {
	c := &q.dev.copier
	old := c.buf[:8]
	if !c.access(&c.src, 0, old, false) {
		p.fail(ib.EventQPFatal)
		return ib.WCRemOpErr, 0, false
	}
	v := binary.NativeEndian.Uint64(old)
	fresh := v + w.wr.CompareAdd
	if w.wr.Opcode == ib.WRAtomicCmpAndSwp {
		if fresh = v; v == w.wr.CompareAdd {
			fresh = w.wr.Swap
		}
	}
	if !c.access(&c.dst, 0, old, true) {
		return ib.WCLocProtErr, 0, false
	}
	binary.NativeEndian.PutUint64(old, fresh)
	if !c.access(&c.src, 0, old, true) {
		p.fail(ib.EventQPFatal)
		return ib.WCRemOpErr, 0, false
	}
	return ib.WCSuccess, 8, false
}

// datagram sends the source to a queue pair or to a multicast group. The sender is not notified of losses.
func (q *QP) datagram(w *sendWQE) ib.WCStatus {
	d := q.dev
	dgid := w.ah.GRH.DGID
	if dgid[0] == 0xff && w.wr.RemoteQPN == multicastQPN {
		for _, p := range d.groups[dgid] {
			if !q.deliver(w, p) {
				return ib.WCLocProtErr
			}
		}
	} else if p := d.qps[w.wr.RemoteQPN]; p != nil && dgid == d.gid {
		if !q.deliver(w, p) {
			return ib.WCLocProtErr
		}
	}
	return ib.WCSuccess
}

// deliver copies the source to p. deliver returns false if the source cannot be read.
func (q *QP) deliver(w *sendWQE, p *QP) bool {
	qkey := w.wr.RemoteQKey
	if qkey&(1<<31) != 0 { // controlled Q_Key: the sender's own Q_Key is used (IBA 10.2.5)
		qkey = q.attr.QKey
	}
	if p.init.Type != ib.QPTypeUD || !p.receives() || p.attr.QKey != qkey || p.rq.n == 0 {
		return true
	}
	d := q.dev
	src, dst := &d.copier.src, &d.copier.dst
	wc := ib.WC{SrcQP: q.obj.Num(), ByteLen: uint32(grhLen + src.n), Flags: ib.WCGRH}
	if w.wr.Opcode == ib.WRSendWithImm {
		wc.Flags, wc.Imm = wc.Flags|ib.WCWithImm, w.wr.Imm
	}
	switch {
	case !d.local(dst, p.rq.front().sges, p.rq.pd, ib.AccessLocalWrite, grhLen+src.n):
		wc.Status = ib.WCLocProtErr
	case dst.n < grhLen+src.n:
		return true // the message is lost and the receive remains (class D of IBA 9.9.3)
	default:
		switch d.copier.move(dst, src, grhLen, src.n) {
		case atSource:
			return false
		case atTarget:
			wc.Status = ib.WCLocProtErr
		}
		if !d.copier.access(dst, 0, d.grh(w, src.n), true) {
			wc.Status = ib.WCLocProtErr
		}
	}
	p.completeRecv(p.rq, &wc, w.wr.Flags&ib.SendSolicited != 0)
	if wc.Status != ib.WCSuccess {
		p.toError()
	}
	return true
}

// grh returns the global route header. The header precedes the data of a datagram in the receiver's buffer (IBA 8.3).
func (d *Device) grh(w *sendWQE, n uint64) []byte {
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
