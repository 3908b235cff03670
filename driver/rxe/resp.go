package rxe

import (
	"slices"

	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// responder is the state of the receiving side of a queue pair.
type responder struct {
	psn    roce.PSN // expected next
	msn    uint32   // requests completed
	silent bool     // psn was asked for by a NAK or RNR NAK: what comes after it is dropped without another
	drop   bool     // UC: the rest of a message is dropped

	named *srq    // XRC: the queue that the request is for
	op    opKind  // of the message that is being received; opNone between messages
	wqe   recvWQE // of the message, if it takes one; one that was not used in the end serves the next

	write struct { // of an RDMA WRITE
		addr   uint64
		key    uint32
		length int
		got    int
	}

	// ack is what will be sent once the replies before it have been made. It acknowledges all before it, so that
	// one is enough.
	ack struct {
		due      bool
		syndrome roce.Syndrome
		psn      roce.PSN
	}
	replies []reply // to requests that are answered, in progress
	past    []past  // the last requests of these kinds, for the case that they come again
	oldest  int     // in past, once it is full
}

// reply is a response to an RDMA READ request, or the rest of one, or to another request that is answered; a FLUSH and an
// ATOMIC WRITE are answered like a READ of nothing.
type reply struct {
	psn    roce.PSN // of the next packet
	first  bool     // nothing of it was made yet
	in     *pd      // opRead: of the memory
	addr   uint64
	key    uint32
	left   int // bytes
	kind   opKind
	result uint64 // opAtomic
	msn    uint32
	repeat bool // of an answer that was given before
}

// past is a request that a requester may repeat (struct resp_res).
type past struct {
	psn     roce.PSN
	packets int
	in      *pd
	addr    uint64
	key     uint32
	length  int
	kind    opKind
	result  uint64
	msn     uint32
}

// reply is the response to all of it.
func (x *past) reply() reply {
	return reply{psn: x.psn, first: true, in: x.in, addr: x.addr, key: x.key, left: x.length, kind: x.kind, result: x.result, msn: x.msn}
}

// flagAnswered are the requests with a response of their own.
const flagAnswered = roce.FlagRead | roce.FlagAtomic | roce.FlagAtomicWrite | roce.FlagFlush

// kindOfRequest is what a packet asks for.
func kindOfRequest(f roce.Flags) opKind {
	switch {
	case f&roce.FlagSend != 0:
		return opSend
	case f&roce.FlagWrite != 0:
		return opWrite
	case f&roce.FlagRead != 0:
		return opRead
	case f&roce.FlagAtomic != 0:
		return opAtomic
	case f&roce.FlagAtomicWrite != 0:
		return opAtomicWrite
	case f&roce.FlagFlush != 0:
		return opFlush
	}
	return opNone
}

func (r *responder) reset() {
	*r = responder{
		wqe: recvWQE{sges: r.wqe.sges[:0]}, replies: r.replies[:0], past: r.past[:0],
	}
}

// abort forgets what is in progress, save the receive, which is going to be flushed, and an answer that is due.
func (r *responder) abort() {
	r.replies, r.past = r.replies[:0], r.past[:0]
	r.op = opNone
}

// receiveRequest handles a packet of the peer's requester. qp.mu is held. (rxe_responder)
func (qp *QP) receiveRequest(p *pass, k *packet) {
	switch qp.typ {
	case ib.QPTypeRC, ib.QPTypeXRCTgt:
		qp.receiveReliable(p, k)
	case ib.QPTypeUC:
		qp.receiveUnreliable(p, k)
	case ib.QPTypeUD, ib.QPTypeGSI:
		qp.receiveDatagram(p, k)
	}
}

// verdict is what became of a request.
type verdict uint8

const (
	accepted verdict = iota
	refused          // the queue pair is in error
	notReady         // no receive
	invalid          // NAK invalid request
	denied           // NAK remote access error
)

// receiveReliable checks the PSN (IBA 9.7.4.1.1, 9.9.3).
func (qp *QP) receiveReliable(p *pass, k *packet) {
	r := &qp.resp
	switch ahead := k.psn.Diff(r.psn); {
	case ahead > 0:
		if !r.silent {
			qp.dev.counters.add(cntOutOfSeqReq, 1)
			qp.acknowledge(roce.NAKPSNSequenceError, r.psn)
			r.silent = true
		} else {
			qp.dev.counters.add(cntDropGap, 1)
		}
		return
	case ahead < 0:
		qp.dev.counters.add(cntDupReq, 1)
		qp.receiveDuplicate(k)
		return
	}
	psn := r.psn
	switch qp.execute(p, k) {
	case accepted:
		r.silent = false
		if k.BTH().AckReq() && k.Flags&flagAnswered == 0 {
			qp.acknowledge(roce.ACKUnlimited, r.psn.Add(-1))
		}
	case notReady:
		qp.dev.counters.add(cntSndRNR, 1)
		qp.acknowledge(roce.RNRNAK(roce.RNRTimer(qp.attr.MinRNRTimer)), psn)
		r.silent = true
	case invalid:
		qp.refuse(psn, roce.NAKInvalidRequest, uapi.WCRemInvReqErr)
	case denied:
		qp.refuse(psn, roce.NAKRemoteAccessError, uapi.WCRemAccessErr)
	}
}

// receiveUnreliable: a gap costs the message in progress, and the next one begins anew (IBA 9.8.2).
func (qp *QP) receiveUnreliable(p *pass, k *packet) {
	r := &qp.resp
	starts := k.Flags&roce.FlagStarts != 0
	if k.psn != r.psn || starts {
		if r.op != opNone {
			qp.settle(p) // what has come may have been stored; nobody is told
			r.op = opNone
			r.wqe.filled = 0
		}
		r.drop = !starts
		r.psn = k.psn
	}
	if r.drop {
		r.psn = k.psn.Next()
		qp.dev.counters.add(cntDropUnreliable, 1)
		return
	}
	if qp.execute(p, k) != accepted && qp.state != ib.QPErr {
		r.op, r.drop, r.psn = opNone, true, k.psn.Next()
		r.wqe.filled = 0
		qp.dev.counters.add(cntDropUnreliable, 1)
	}
}

// acknowledge has an answer sent after the replies that are due before it.
func (qp *QP) acknowledge(s roce.Syndrome, psn roce.PSN) {
	a := &qp.resp.ack
	a.due, a.syndrome, a.psn = true, s, psn
}

// refuse ends the queue pair for what the peer, or the receive, has wrong, as status says: the receive in progress
// completes with it, or else the consumer is told by an event. A peer that waits for an answer gets a NAK. On an
// unreliable connection what the peer has wrong costs the message only (classes A, C and D of IBA 9.9.3).
func (qp *QP) refuse(psn roce.PSN, s roce.Syndrome, status uapi.WCStatus) {
	r := &qp.resp
	own := status == uapi.WCLocProtErr || status == uapi.WCLocQPOpErr
	switch {
	case qp.state == ib.QPErr:
		return
	case qp.reliable():
		qp.acknowledge(s, psn)
	case !own:
		r.op, r.drop = opNone, true
		return
	}
	switch {
	case r.wqe.taken && (own || status == uapi.WCLocLenErr || r.op == opSend):
		qp.completeRecv(&uapi.WC{Status: status}, false)
	case s == roce.NAKRemoteAccessError:
		qp.obj.Raise(ib.EventQPAccessErr)
	case s == roce.NAKInvalidRequest:
		qp.obj.Raise(ib.EventQPReqErr)
	default:
		qp.obj.Raise(ib.EventQPFatal)
	}
	qp.responderFails(status)
}

// notInvalidated ends the queue pair for a SEND whose invalidation failed (class J of IBA 9.9.6.3): the receive
// completes with a memory management operation error, which is what libibverbs calls WCMWBindErr. The peer gets no
// answer, neither a NAK nor an acknowledgement, to this request; to those before it, it does.
func (qp *QP) notInvalidated() {
	qp.completeRecv(&uapi.WC{Status: uapi.WCMWBindErr}, false)
	qp.responderFails(uapi.WCMWBindErr)
}

// responderFails takes the queue pair to the error state, for a status of the request; what is due to requests before the one that failed is still
// sent.
func (qp *QP) responderFails(status uapi.WCStatus) {
	why := ""
	if qp.dev.qpFailed != nil {
		why = "a request of its peer failed: " + status.String()
	}
	due := qp.resp.replies
	qp.enterError(why)
	qp.resp.replies = due
}

// execute checks and does what the packet with the expected PSN asks for (IBA 9.7.4.1.2 and on).
func (qp *QP) execute(p *pass, k *packet) verdict {
	r := &qp.resp
	op := kindOfRequest(k.Flags)
	starts, ends := k.Flags&roce.FlagStarts != 0, k.Flags&roce.FlagEnds != 0
	if op == opNone || starts != (r.op == opNone) || !starts && op != r.op {
		return invalid
	}
	switch n := len(k.Payload); {
	case op.answered():
	case !ends && n != qp.mtu, n > qp.mtu, !starts && n == 0:
		return invalid
	}
	if qp.typ == ib.QPTypeXRCTgt {
		if v := qp.nameQueue(k); v != accepted {
			return v
		}
	}
	var v verdict
	switch op {
	case opSend:
		v = qp.executeSend(p, k, starts, ends)
	case opWrite:
		v = qp.executeWrite(p, k, starts, ends)
	case opRead:
		return qp.executeRead(k)
	case opAtomic:
		return qp.executeAtomic(p, k)
	case opAtomicWrite:
		return qp.executeAtomicWrite(p, k)
	case opFlush:
		return qp.executeFlush(p, k)
	}
	if v != accepted {
		return v
	}
	r.op = op
	if ends {
		r.op = opNone
		r.msn++
	}
	r.psn = r.psn.Next()
	return accepted
}

// takeRecv sees to it that there is a receive for the message.
func (qp *QP) takeRecv(p *pass) verdict {
	r := &qp.resp
	if r.wqe.taken {
		return accepted
	}
	switch {
	case qp.typ == ib.QPTypeXRCTgt:
		return qp.takeShared(p, r.named)
	case qp.srq != nil:
		return qp.takeShared(p, qp.srq)
	}
	slot := qp.recvSlot(p)
	filled, ok := qp.rq.peek(qp.rqNext, slot)
	if !ok {
		qp.ringGone()
		return notReady
	}
	if !filled {
		return notReady
	}
	status := decodeRecv(&r.wqe, slot, qp.cap.MaxRecvSGE)
	r.wqe.pd = qp.pd
	if status != uapi.WCSuccess {
		qp.refuse(r.psn, roce.NAKRemoteOperationalError, status)
		return refused
	}
	return accepted
}

// takeShared takes the receive out of a shared queue.
func (qp *QP) takeShared(p *pass, s *srq) verdict {
	r := &qp.resp
	status, taken := s.take(&r.wqe, p.slot[:])
	if !taken {
		return notReady
	}
	if status != uapi.WCSuccess {
		qp.refuse(r.psn, roce.NAKRemoteOperationalError, status)
		return refused
	}
	return accepted
}

func (qp *QP) executeSend(p *pass, k *packet, starts, ends bool) verdict {
	r := &qp.resp
	if starts {
		if qp.reliable() && qp.dev.faults.NotReady(qp.num, k.src) {
			return notReady
		}
		if v := qp.takeRecv(p); v != accepted {
			return v
		}
	}
	if r.wqe.filled+len(k.Payload) > r.wqe.length {
		if qp.settle(p) {
			qp.refuse(k.psn, roce.NAKInvalidRequest, uapi.WCLocLenErr)
		}
		return refused
	}
	if !qp.store(p, scatterSend, k.psn, r.wqe.sges, r.wqe.filled, k.Payload) {
		return refused
	}
	r.wqe.filled += len(k.Payload)
	if !ends {
		return accepted
	}
	if !qp.settle(p) {
		return refused
	}
	wc := uapi.WC{Opcode: uapi.WCRecv, ByteLen: uint32(r.wqe.filled)}
	if h := k.IETH(); h != nil {
		p.enter(qp)
		ended := qp.invalidate(h.RKey())
		p.leave()
		if !ended {
			qp.notInvalidated()
			return refused
		}
		wc.Ex, wc.WCFlags = uapi.NewImmRKey(h.RKey()), uapi.WCFlags(uapi.IBVWCWithInv)
	}
	if h := k.ImmDt(); h != nil {
		copy(wc.Ex[:], h)
		wc.WCFlags = uapi.WCFlags(uapi.IBVWCWithImm)
	}
	qp.completeRecv(&wc, k.BTH().SolicitedEvent())
	return accepted
}

func (qp *QP) executeWrite(p *pass, k *packet, starts, ends bool) verdict {
	r := &qp.resp
	w := &r.write
	if starts {
		if qp.attr.AccessFlags&ib.AccessRemoteWrite == 0 {
			return invalid
		}
		h := k.RETH()
		if h.DMALen() > maxMsgSize {
			return invalid
		}
		w.addr, w.key, w.length, w.got = h.VA(), h.RKey(), int(h.DMALen()), 0
		if !qp.permits(w.key, ib.AccessRemoteWrite, w.addr, w.length) {
			return denied
		}
	}
	if n := w.got + len(k.Payload); n > w.length || ends && n != w.length {
		return invalid
	}
	takes := k.Flags&roce.FlagCompletesReceive != 0
	if takes {
		if qp.reliable() && qp.dev.faults.NotReady(qp.num, k.src) {
			return notReady
		}
		if v := qp.takeRecv(p); v != accepted {
			return v
		}
	}
	if len(k.Payload) > 0 {
		if !qp.storeAt(p, scatterWrite, k.psn, w.key, ib.AccessRemoteWrite, w.addr+uint64(w.got), k.Payload) {
			return refused
		}
		w.got += len(k.Payload)
	}
	if !takes {
		return accepted
	}
	if !qp.settle(p) {
		return refused
	}
	wc := uapi.WC{
		Opcode: uapi.WCRecvRDMAWithImm, ByteLen: uint32(w.length), WCFlags: uapi.WCFlags(uapi.IBVWCWithImm),
	}
	copy(wc.Ex[:], k.ImmDt())
	qp.completeRecv(&wc, k.BTH().SolicitedEvent())
	return accepted
}

// permits reports whether a peer may do to a range what right says. An empty range needs no key.
func (qp *QP) permits(key uint32, right ib.AccessFlags, addr uint64, length int) bool {
	if length == 0 {
		return true
	}
	m := qp.memory(qp.domain(), key, right)
	if m == nil {
		return false
	}
	defer m.put()
	return m.contains(addr, uint64(length))
}

func (qp *QP) executeRead(k *packet) verdict {
	r := &qp.resp
	h := k.RETH()
	length := int(h.DMALen())
	if qp.attr.AccessFlags&ib.AccessRemoteRead == 0 || length > maxMsgSize || !qp.admits() {
		return invalid
	}
	if !qp.permits(h.RKey(), ib.AccessRemoteRead, h.VA(), length) {
		return denied
	}
	r.msn++
	x := past{psn: k.psn, packets: qp.pathMTU.Packets(uint32(length)), kind: opRead, length: length, msn: r.msn}
	x.in, x.addr, x.key = qp.domain(), h.VA(), h.RKey()
	r.psn = r.psn.Add(x.packets)
	qp.remember(&x)
	r.replies = append(r.replies, x.reply())
	return accepted
}

func (qp *QP) executeAtomic(p *pass, k *packet) verdict {
	r := &qp.resp
	h := k.AtomicETH()
	if qp.attr.AccessFlags&ib.AccessRemoteAtomic == 0 || h.VA()%atomicLen != 0 || !qp.admits() {
		return invalid
	}
	if !qp.settle(p) { // it finds what was written before
		return refused
	}
	m := qp.memory(qp.domain(), h.RKey(), ib.AccessRemoteAtomic)
	if m == nil {
		return denied
	}
	p.enter(qp)
	result, err := m.atomic(k.Opcode, h)
	p.leave()
	m.put()
	if err != nil {
		return denied
	}
	r.msn++
	x := past{psn: k.psn, packets: 1, kind: opAtomic, result: result, msn: r.msn}
	r.psn = r.psn.Next()
	qp.remember(&x)
	r.replies = append(r.replies, x.reply())
	return accepted
}

// admits reports whether one more request may be answered: as many are outstanding as was agreed on, at most. A repetition
// that is still waiting does not count, for who asks for more has had the answer before it came to that.
func (qp *QP) admits() bool {
	r := &qp.resp
	if len(r.replies) < int(qp.attr.MaxDestRdAtomic) {
		return true
	}
	i := slices.IndexFunc(r.replies, func(y reply) bool { return y.repeat })
	if i >= 0 {
		r.replies = slices.Delete(r.replies, i, i+1)
	}
	return i >= 0
}

// remember keeps a request for as long as the requester may repeat it.
func (qp *QP) remember(x *past) {
	r := &qp.resp
	if len(r.past) < int(qp.attr.MaxDestRdAtomic) {
		r.past = append(r.past, *x)
		return
	}
	r.oldest %= len(r.past)
	r.past[r.oldest] = *x
	r.oldest++
}

// receiveDuplicate handles a request that was executed before (IBA 9.7.4.1.3): SEND and RDMA WRITE are
// acknowledged again, RDMA READ is executed again, and of an atomic the result is sent again. A request of which
// nothing is known is dropped.
func (qp *QP) receiveDuplicate(k *packet) {
	r := &qp.resp
	if k.Flags&flagAnswered == 0 {
		if !r.ack.due {
			qp.acknowledge(roce.ACKUnlimited, r.psn.Add(-1))
		}
		return
	}
	for i := range r.past {
		x := &r.past[i]
		at := k.psn.Diff(x.psn)
		if at < 0 || at >= x.packets || x.kind != kindOfRequest(k.Flags) {
			continue
		}
		again := x.reply()
		again.psn, again.repeat = k.psn, true
		if x.kind == opRead {
			h, off := k.RETH(), at*qp.mtu
			if h.RKey() != x.key || h.VA() != x.addr+uint64(off) || int(h.DMALen()) > x.length-off {
				return
			}
			again.addr, again.left = h.VA(), int(h.DMALen())
		}
		// What was still to be sent from here on will be asked for again.
		for n, y := range r.replies {
			if !y.psn.Less(k.psn) {
				r.replies = r.replies[:n]
				break
			}
		}
		if len(r.replies) < int(qp.attr.MaxDestRdAtomic) {
			r.replies = append(r.replies, again)
		}
		return
	}
	qp.dev.counters.add(cntDropDuplicate, 1)
}

// answer makes the replies and the acknowledgement that are due, as far as there is room. qp.mu is held.
func (qp *QP) answer(p *pass) {
	r := &qp.resp
	for len(r.replies) > 0 {
		if qp.egress.full() || qp.egress.blocked {
			return
		}
		if !qp.makeReply(p, &r.replies[0]) {
			break
		}
		if r.replies[0].left == 0 {
			r.replies = r.replies[:copy(r.replies, r.replies[1:])]
		}
	}
	if !r.ack.due || qp.egress.full() || qp.egress.blocked || qp.path == nil {
		return // what is due waits, and may be joined by more
	}
	r.ack.due = false
	op := qp.opcode(roce.Acknowledge)
	size := op.PacketLen(0)
	p.build.start(&ackPool, qp.path, size)
	k := roce.NewPacket(p.build.add(size), &roce.BTHFields{
		Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: r.ack.psn,
	}, 0)
	k.AETH().Encode(r.ack.syndrome, r.msn)
	p.build.finish(&qp.egress)
}

// makeReply makes one part of a reply, as much as fits into the egress queue at once. It reports false where the
// memory cannot be read; the queue pair is in error then.
func (qp *QP) makeReply(p *pass, y *reply) bool {
	if y.kind == opAtomic {
		op := qp.opcode(roce.AtomicAcknowledge)
		size := op.PacketLen(0)
		p.build.start(&ackPool, qp.path, size)
		k := roce.NewPacket(p.build.add(size), &roce.BTHFields{
			Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: y.psn,
		}, 0)
		k.AETH().Encode(roce.ACKUnlimited, y.msn)
		k.AtomicAckETH().Encode(y.result)
		p.build.finish(&qp.egress)
		return true
	}
	psn := y.psn
	for done := false; !done; {
		n := min(qp.mtu, y.left)
		last := n == y.left
		what := roce.RDMAReadResponseMiddle
		switch {
		case y.first && last:
			what = roce.RDMAReadResponseOnly
		case y.first:
			what = roce.RDMAReadResponseFirst
		case last:
			what = roce.RDMAReadResponseLast
		}
		op := qp.opcode(what)
		size := op.PacketLen(n)
		if !p.build.fits(qp.path, size) {
			if !p.gather.flush(qp) {
				break
			}
			p.build.finish(&qp.egress)
			if qp.egress.full() {
				return true
			}
			p.build.start(&trainPool, qp.path, size)
			psn = y.psn
		}
		k := roce.NewPacket(p.build.add(size), &roce.BTHFields{
			Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: y.psn,
		}, n)
		if h := k.AETH(); h != nil {
			h.Encode(roce.ACKUnlimited, y.msn)
		}
		if n > 0 && !qp.gatherRemote(p, y, k.Payload) {
			break
		}
		y.psn, y.first = y.psn.Next(), false
		y.addr += uint64(n)
		y.left -= n
		done = last
	}
	if p.gather.flush(qp) && y.left == 0 {
		p.build.finish(&qp.egress)
		return true
	}
	p.gather.reset()
	p.build.cut(0)
	p.build.finish(&qp.egress)
	qp.resp.replies = qp.resp.replies[:0]
	if qp.state == ib.QPErr {
		qp.acknowledge(roce.NAKRemoteAccessError, psn) // comes before the one that is due
	}
	qp.refuse(psn, roce.NAKRemoteAccessError, uapi.WCRemAccessErr)
	return false
}

// gatherRemote has a place filled from the memory that a reply is about, if the peer may still read it.
func (qp *QP) gatherRemote(p *pass, y *reply, dst []byte) bool {
	g := &p.gather
	if g.from == nil {
		if g.from = qp.memory(y.in, y.key, ib.AccessRemoteRead); g.from == nil {
			return false
		}
		g.addr = y.addr
	}
	g.vec = append(g.vec, dst)
	g.n += uint64(len(dst))
	return true
}

// receiveDatagram handles a datagram (IBA 9.8.3): without a receive, or with one that is too small, it is lost.
func (qp *QP) receiveDatagram(p *pass, k *packet) {
	r := &qp.resp
	if len(k.Payload) > qp.mtu || qp.takeRecv(p) != accepted || grhLen+len(k.Payload) > r.wqe.length {
		qp.dev.counters.add(cntDropUnreliable, 1)
		return
	}
	if !qp.store(p, scatterSend, k.psn, r.wqe.sges, 0, grhOf(p, k)) ||
		!qp.store(p, scatterSend, k.psn, r.wqe.sges, grhLen, k.Payload) || !qp.settle(p) {
		return
	}
	wc := uapi.WC{
		Opcode: uapi.WCRecv, ByteLen: uint32(grhLen + len(k.Payload)), SrcQP: k.DETH().SrcQPN(),
		WCFlags: uapi.WCFlags(uapi.IBVWCGRH), SL: qp.headerType(k),
	}
	if h := k.ImmDt(); h != nil {
		copy(wc.Ex[:], h)
		wc.WCFlags |= uapi.WCFlags(uapi.IBVWCWithImm)
	}
	qp.completeRecv(&wc, k.BTH().SolicitedEvent())
}

// The types of network header that mlx5 reports in the three low bits of a completion's service level, which RoCEv2 has
// no other use for. Communication libraries look there for how much of the GRH is the destination (UCX does, in
// releases up to 2024).
const (
	headerIPv6 = 1
	headerIPv4 = 2
)

// headerType returns the SL of a datagram's completion. On the GSI queue pair, whose completions the kernel's mlx5
// makes, it is the VLAN's priority, and so 0.
func (qp *QP) headerType(k *packet) uint8 {
	switch {
	case qp.typ != ib.QPTypeUD:
		return 0
	case k.dst.Is4():
		return headerIPv4
	}
	return headerIPv6
}

// completeRecv completes the receive that was taken.
func (qp *QP) completeRecv(wc *uapi.WC, solicited bool) {
	qp.note(traceRecvDone, uint32(wc.Status))
	r := &qp.resp
	if r.wqe.from == nil {
		qp.rqNext = qp.rq.next(qp.rqNext)
		if !qp.rq.setConsumer(qp.rqNext) {
			qp.ringGone()
		}
	}
	r.wqe.taken = false
	if wc.Status == uapi.WCSuccess {
		qp.dev.counters.add(cntRDMARecv, 1)
	} else {
		wc.Opcode = uapi.WCRecv // consumers tell sends and receives apart by it
	}
	wc.WRID, wc.PortNum = r.wqe.id, 1
	qp.complete(qp.recvQueue(), wc, solicited)
}

// grhLen is the length of what precedes a datagram in its receive buffer.
const grhLen = roce.GRHLen

// grhOf makes the header that a datagram came with. It lies in the pass until it has been stored.
func grhOf(p *pass, k *packet) []byte {
	roce.GRH(p.grh[:]).Encode(&roce.GRHFields{
		TrafficClass: k.tos, HopLimit: k.ttl, PacketLen: len(k.Data) + roce.ICRCLen,
		SGID: roce.GID(k.src.As16()), DGID: roce.GID(k.dst.As16()),
	})
	return p.grh[:]
}
