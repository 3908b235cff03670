package engine

import (
	"verbena/driver"
	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

// responder is the receiving half of a queue pair. transport.Receiver implements the order of requests, duplicates
// and answers. The responder executes requests and completes receives.
type responder struct {
	qp      *QP
	rcv     transport.Receiver
	lastWQE bool    // EventQPLastWQEReached has been raised
	named   *srq    // XRC: the queue that the request names
	wqe     recvWQE // receive for the present message; if it is not used, it serves the next message

	noted violated // see reporter.refusal
}

func (r *responder) reset() {
	r.rcv.Reset()
	r.named, r.lastWQE, r.wqe = nil, false, recvWQE{Recv: queue.Recv{SGEs: r.wqe.SGEs[:0]}}
}

// receive handles a packet of the peer's requester. (rxe_responder)
func (r *responder) receive(p *pass, k *packet) {
	qp := r.qp
	switch qp.typ {
	case ib.QPTypeRC, ib.QPTypeXRCTgt:
		r.receiveReliable(p, k)
	case ib.QPTypeUC:
		r.receiveUnreliable(p, k)
	case ib.QPTypeUD, ib.QPTypeGSI:
		r.receiveDatagram(p, k)
	}
}

// receiveSpan handles several packets of a SEND or RDMA WRITE at once, if they only have to be stored. It returns the
// number of handled packets: all; 1 if the memory has refused them; or 0 if they must be handled one by one.
func (r *responder) receiveSpan(p *pass, k *packet) int {
	a := arrivalOf(k)
	if r.qp.typ != ib.QPTypeRC && r.qp.typ != ib.QPTypeUC ||
		k.psn != r.rcv.PSN() || !r.rcv.Follows(&a) || !r.rcv.Fits(&a) {
		return 0
	}
	switch n := len(k.Payload); a.Kind {
	case transport.Send:
		if i, at := sgeAt(r.wqe.SGEs, r.wqe.filled); i == len(r.wqe.SGEs) || at+n > int(r.wqe.SGEs[i].Length) {
			return 0
		}
	case transport.Write:
		if !r.rcv.WriteFits(n, false) {
			return 0
		}
	default:
		return 0
	}
	r.receive(p, k)
	return max(1, r.rcv.PSN().Diff(k.psn))
}

// verdict is the result of a request.
type verdict uint8

const (
	accepted verdict = iota
	refused          // the queue pair is in error
	notReady         // there is no receive
	invalid          // NAK invalid request
	denied           // NAK remote access error
)

// receiveReliable checks the PSN of a packet, and executes the packet (IBA 9.7.4.1.1, 9.9.3).
func (r *responder) receiveReliable(p *pass, k *packet) {
	qp := r.qp
	rcv := &r.rcv
	switch rcv.Arrive(k.psn) {
	case transport.Gap:
		qp.dev.counters.add(cntOutOfSeqReq, 1)
		r.refused(k, transport.CheckPSN)
		return
	case transport.LaterGap:
		qp.dev.counters.add(cntDropGap, 1)
		r.refused(k, transport.CheckPSN)
		return
	case transport.Duplicate:
		qp.dev.counters.add(cntDupReq, 1)
		r.receiveDuplicate(k)
		return
	}
	switch r.execute(p, k) {
	case notReady:
		qp.dev.counters.add(cntSndRNR, 1)
		rcv.NotReady(roce.RNRTimer(qp.attr.MinRNRTimer))
	case invalid:
		r.refuseInTurn(p, k.psn, roce.NAKInvalidRequest, uapi.WCRemInvReqErr)
	case denied:
		r.refuseInTurn(p, k.psn, roce.NAKRemoteAccessError, uapi.WCRemAccessErr)
	}
}

// receiveUnreliable checks the PSN of a packet, and executes the packet. A gap ends the message in progress without a
// completion, and the next message begins anew (IBA 9.8.2).
func (r *responder) receiveUnreliable(p *pass, k *packet) {
	qp := r.qp
	rcv := &r.rcv
	starts := k.Flags&roce.FlagStarts != 0
	if rcv.Interrupts(k.psn, starts) {
		if starts {
			qp.report().refusal(k, invalid, transport.CheckPSN)
		}
		p.settle(qp) // the data of an incomplete message may be stored, without a completion
		r.wqe.filled = 0
	}
	if !rcv.ArriveUnreliable(k.psn, starts) {
		qp.report().refusal(k, invalid, transport.CheckPSN)
		r.refused(k, transport.CheckPSN)
		qp.dev.counters.add(cntDropUnreliable, 1)
		return
	}
	if r.execute(p, k) != accepted {
		r.abandon(k.psn)
	}
}

// abandon drops the current message of an unreliable connection, at a packet that was not accepted.
func (r *responder) abandon(psn roce.PSN) {
	if r.qp.state == ib.QPErr {
		return
	}
	r.rcv.Abandon(psn)
	r.wqe.filled = 0
	r.qp.dev.counters.add(cntDropUnreliable, 1)
}

// refuseInTurn refuses a request after the data of the earlier requests has been stored. If the store fails, the
// earlier request is refused: the NAK of a later one would acknowledge it.
func (r *responder) refuseInTurn(p *pass, psn roce.PSN, s roce.Syndrome, status uapi.WCStatus) {
	p.settle(r.qp)
	r.refuse(psn, s, status)
}

// refuse ends the queue pair for a fault of the peer or of the receive. The receive in progress completes with the
// status; without such a receive, the consumer gets an event. Completion and event follow the change to ERR. A peer
// that waits for an answer gets a NAK. On an unreliable connection, a peer's fault ends only the message (classes A,
// C and D of IBA 9.9.3).
func (r *responder) refuse(psn roce.PSN, s roce.Syndrome, status uapi.WCStatus) {
	qp := r.qp
	own := status == uapi.WCLocProtErr || status == uapi.WCLocQPOpErr
	if qp.srd != nil { // only the message is lost
		if r.wqe.taken && own {
			r.completeRecv(&uapi.WC{Status: status}, false)
		}
		return
	}
	switch {
	case qp.state == ib.QPErr:
		return
	case qp.reliable:
		qp.report().nak(psn, s, status)
		r.rcv.Refuse(s, psn)
	case !own:
		qp.report().loss(psn, status)
		r.rcv.AbandonRest()
		return
	}
	completes := r.wqe.taken && (own || status == uapi.WCLocLenErr || r.rcv.Within() == transport.Send)
	r.fail(status)
	switch {
	case completes:
		r.completeRecv(&uapi.WC{Status: status}, false)
	case s == roce.NAKRemoteAccessError:
		qp.raise(ib.EventQPAccessErr)
	case s == roce.NAKInvalidRequest:
		qp.raise(ib.EventQPReqErr)
	default:
		qp.raise(ib.EventQPFatal)
	}
}

// notInvalidated ends the queue pair for a SEND with a failed invalidation (class J of IBA 9.9.6.3). The receive
// completes with a memory management operation error, which is WCMWBindErr in libibverbs. The peer gets answers to
// the earlier requests. It gets no answer to this request, neither a NAK nor an acknowledgement.
func (r *responder) notInvalidated() {
	r.fail(uapi.WCMWBindErr)
	r.completeRecv(&uapi.WC{Status: uapi.WCMWBindErr}, false)
}

// fail moves the queue pair to the error state, with the status of the request. The responses to earlier requests are
// still sent.
func (r *responder) fail(status uapi.WCStatus) {
	qp := r.qp
	qp.enterErrorReplying(driver.StateCause{Reason: driver.ByPeer, Status: status})
}

// refused records in the trace the check that has refused a packet.
func (r *responder) refused(k *packet, c transport.Check) {
	r.qp.trace.packet(traceRefuse, k.Data, uint32(c))
}

// execute checks a packet with the expected PSN, in the order of transport.Check, and executes the packet.
func (r *responder) execute(p *pass, k *packet) verdict {
	a := arrivalOf(k)
	v, by := r.executeKind(p, k, &a)
	if v != accepted {
		qp := r.qp
		qp.report().refusal(k, v, by)
		r.refused(k, by)
	}
	return v
}

// arrivalOf returns the description of each packet of a span, for transport.Receiver.
func arrivalOf(k *packet) transport.Arrival {
	a := transport.Arrival{
		Kind: transport.KindOf(k.Flags), Starts: k.Flags&roce.FlagStarts != 0, Ends: k.Flags&roce.FlagEnds != 0,
		Length: len(k.Payload),
	}
	if k.packets > 1 {
		a.Length /= k.packets
	}
	return a
}

// executeKind executes a packet. For a packet that is not accepted, executeKind returns the check that has refused
// it.
func (r *responder) executeKind(p *pass, k *packet, a *transport.Arrival) (v verdict, by transport.Check) {
	if !r.rcv.Follows(a) {
		return invalid, transport.CheckSequence
	}
	if r.qp.typ == ib.QPTypeXRCTgt && !r.nameQueue(k) {
		return invalid, transport.CheckOpcode
	}
	switch a.Kind {
	case transport.Send:
		v, by = r.executeSend(p, k, a)
	case transport.Write:
		v, by = r.executeWrite(p, k, a)
	case transport.Read:
		return r.executeRead(k)
	case transport.Atomic:
		return r.executeAtomic(p, k)
	case transport.AtomicWrite:
		return r.executeAtomicWrite(p, k)
	case transport.Flush:
		return r.executeFlush(p, k)
	}
	if v == accepted {
		r.rcv.ExecutedAll(a, k.packets, r.qp.reliable && k.BTH().AckReq())
	}
	return v, by
}

// takeRecv takes a receive for the message, unless the message has one already.
func (r *responder) takeRecv(p *pass) verdict {
	qp := r.qp
	if r.wqe.taken {
		return accepted
	}
	switch {
	case qp.typ == ib.QPTypeXRCTgt:
		return r.takeShared(p, r.named)
	case qp.srq != nil:
		return r.takeShared(p, qp.srq)
	}
	status, found, ok := r.wqe.fetch(qp.rq, qp.cap.MaxRecvSGE)
	if !found && ok && qp.refill != nil {
		qp.refill()
		status, found, ok = r.wqe.fetch(qp.rq, qp.cap.MaxRecvSGE)
	}
	if !ok {
		qp.ringGone()
		return notReady
	}
	if !found {
		return notReady
	}
	r.wqe.pd = qp.pd
	r.wqe.began = qp.trace.requestLog().runBegan()
	if status != uapi.WCSuccess {
		r.refuseInTurn(p, r.rcv.PSN(), roce.NAKRemoteOperationalError, status)
		return refused
	}
	return accepted
}

// takeShared takes a receive for the message out of a shared queue.
func (r *responder) takeShared(p *pass, s *srq) verdict {
	status, taken := s.take(&r.wqe)
	if !taken {
		return notReady
	}
	r.wqe.began = r.qp.trace.requestLog().runBegan()
	if status != uapi.WCSuccess {
		r.refuseInTurn(p, r.rcv.PSN(), roce.NAKRemoteOperationalError, status)
		return refused
	}
	return accepted
}

func (r *responder) executeSend(p *pass, k *packet, a *transport.Arrival) (verdict, transport.Check) {
	qp := r.qp
	if a.Starts {
		if v := r.takeRecvFor(p, k); v != accepted {
			return v, transport.CheckResources
		}
	}
	if !r.rcv.Fits(a) {
		return invalid, transport.CheckLength
	}
	if r.wqe.filled+len(k.Payload) > r.wqe.Length {
		r.noteShortReceive(k)
		r.refuseInTurn(p, k.psn, roce.NAKInvalidRequest, uapi.WCLocLenErr)
		return refused, transport.CheckLength
	}
	if !p.store(qp, scatterSend, k.psn, r.wqe.SGEs, r.wqe.filled, k.Payload) {
		return refused, transport.CheckLocal
	}
	r.wqe.filled += len(k.Payload)
	if !a.Ends {
		return accepted, 0
	}
	if !p.settle(qp) {
		return refused, transport.CheckLocal
	}
	p.storeHeld(qp)
	wc := uapi.WC{Opcode: uapi.WCRecv, ByteLen: uint32(r.wqe.filled)}
	if h := k.IETH(); h != nil {
		p.enter(qp)
		ended := qp.invalidate(h.RKey())
		qp.storeHeldByKeys()
		p.leave()
		if !ended {
			r.notInvalidated()
			return refused, transport.CheckLocal
		}
		wc.Ex, wc.WCFlags = uapi.NewImmRKey(h.RKey()), uapi.WCFlags(uapi.IBVWCWithInv)
	}
	if h := k.ImmDt(); h != nil {
		copy(wc.Ex[:], h)
		wc.WCFlags = uapi.WCFlags(uapi.IBVWCWithImm)
	}
	r.completeRecv(&wc, k.BTH().SolicitedEvent())
	return accepted, 0
}

func (r *responder) executeWrite(p *pass, k *packet, a *transport.Arrival) (verdict, transport.Check) {
	qp := r.qp
	rcv := &r.rcv
	if a.Starts && qp.attr.AccessFlags&ib.AccessRemoteWrite == 0 {
		return invalid, transport.CheckOpcode
	}
	takes := k.Flags&roce.FlagCompletesReceive != 0
	if takes {
		if v := r.takeRecvFor(p, k); v != accepted {
			return v, transport.CheckResources
		}
	}
	if a.Starts {
		h := k.RETH()
		rcv.BeginWrite(h.VA(), h.RKey(), int(h.DMALen()))
		if !r.permits(h.RKey(), ib.AccessRemoteWrite, h.VA(), int(h.DMALen())) {
			return denied, transport.CheckRKey
		}
	}
	addr, key, length := rcv.Write()
	if length > maxMsgSize || !rcv.Fits(a) || !rcv.WriteFits(a.Length, a.Ends) {
		return invalid, transport.CheckLength
	}
	if len(k.Payload) > 0 {
		if !p.storeAt(qp, scatterWrite, k.psn, key, ib.AccessRemoteWrite, addr, k.Payload) {
			return refused, transport.CheckLocal
		}
		rcv.Wrote(len(k.Payload))
	}
	if !takes {
		return accepted, 0
	}
	if !p.settle(qp) {
		return refused, transport.CheckLocal
	}
	p.storeHeld(qp)
	wc := uapi.WC{
		Opcode: uapi.WCRecvRDMAWithImm, ByteLen: uint32(length), WCFlags: uapi.WCFlags(uapi.IBVWCWithImm),
	}
	copy(wc.Ex[:], k.ImmDt())
	r.completeRecv(&wc, k.BTH().SolicitedEvent())
	return accepted, 0
}

// takeRecvFor takes the receive that a packet needs. A fault rule may simulate an empty queue.
func (r *responder) takeRecvFor(p *pass, k *packet) verdict {
	if r.qp.reliable && r.qp.dev.faults.NotReady(
		link.Packet{Peer: k.src, Local: k.dst, QP: r.qp.num, TOS: k.tos}, k.BTH()) {
		return notReady
	}
	return r.takeRecv(p)
}

// permits reports whether a peer has a right to a range. An empty range needs no key.
func (r *responder) permits(key uint32, right ib.AccessFlags, addr uint64, length int) bool {
	qp := r.qp
	if length == 0 {
		return true
	}
	m := qp.memory(r.domain(), key, right)
	if m == nil {
		return false
	}
	defer m.put()
	return m.contains(addr, uint64(length))
}

func (r *responder) executeRead(k *packet) (verdict, transport.Check) {
	qp, rcv, h := r.qp, &r.rcv, k.RETH()
	length := int(h.DMALen())
	switch {
	case qp.attr.AccessFlags&ib.AccessRemoteRead == 0:
		return invalid, transport.CheckOpcode
	case !rcv.Admits():
		return invalid, transport.CheckResources
	case !r.permits(h.RKey(), ib.AccessRemoteRead, h.VA(), length):
		return denied, transport.CheckRKey
	case length > maxMsgSize:
		return invalid, transport.CheckLength
	}
	rcv.Answer(&transport.Answer{
		Kind: transport.Read, Packets: qp.pathMTU.Packets(uint32(length)),
		Domain: r.domain(), Addr: h.VA(), Key: h.RKey(), Length: length,
	})
	return accepted, 0
}

func (r *responder) executeAtomic(p *pass, k *packet) (verdict, transport.Check) {
	qp, rcv, h := r.qp, &r.rcv, k.AtomicETH()
	switch {
	case qp.attr.AccessFlags&ib.AccessRemoteAtomic == 0 || h.VA()%atomicLen != 0:
		return invalid, transport.CheckOpcode
	case !rcv.Admits():
		return invalid, transport.CheckResources
	case !p.settle(qp): // the operation reads the data of earlier writes
		return refused, transport.CheckLocal
	}
	m := qp.memory(r.domain(), h.RKey(), ib.AccessRemoteAtomic)
	if m == nil {
		return denied, transport.CheckRKey
	}
	p.storeHeld(qp)
	p.storeHeldFor(qp, m, h.VA(), atomicLen)
	p.enter(qp)
	result, err := m.atomic(k.Opcode, h)
	p.leave()
	m.put()
	if err != nil {
		return denied, transport.CheckRKey
	}
	rcv.Answer(&transport.Answer{Kind: transport.Atomic, Packets: 1, Result: result})
	return accepted, 0
}

// receiveDuplicate handles a request that was executed before. A request that is no longer remembered is dropped.
func (r *responder) receiveDuplicate(k *packet) {
	qp := r.qp
	q := transport.Repeat{PSN: k.psn, Kind: transport.KindOf(k.Flags)}
	if q.Kind == transport.Read {
		h := k.RETH()
		q.Addr, q.Key, q.Length = h.VA(), h.RKey(), int(h.DMALen())
	}
	if !r.rcv.Duplicate(&q) {
		qp.dev.counters.add(cntDropDuplicate, 1)
	}
}

// answer makes the due replies and the due acknowledgement, as far as there is room.
func (r *responder) answer(p *pass) {
	qp := r.qp
	rcv := &r.rcv
	room := r.reply(p)
	p.build.finish(&qp.egress)
	if !room {
		return
	}
	a, due := rcv.Ack()
	if !due || qp.egress.full() || qp.egress.blocked || qp.path == nil {
		return // a due acknowledgement waits, and may cover further requests
	}
	rcv.AckSent()
	op := qp.wire.Opcode(roce.Acknowledge)
	size := op.PacketLen(0)
	p.build.start(&ackPool, qp.path, qp.attr.DestQPN, size)
	k := roce.NewPacket(p.build.add(size, size, 0), &roce.BTHFields{
		Opcode: op, MigReq: true, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: a.PSN,
	}, 0)
	k.AETH().Encode(a.Syndrome, rcv.MSN())
	p.build.finish(&qp.egress)
}

// reply makes the due replies, as far as there is room, and reports whether there is room. The last train may be
// open.
func (r *responder) reply(p *pass) (room bool) {
	qp := r.qp
	for y := r.rcv.Reply(); y != nil; y = r.rcv.Reply() {
		if qp.egress.full() || qp.egress.blocked {
			return false
		}
		if !r.makeReply(p, y) {
			break
		}
		if y.Left == 0 {
			r.rcv.Replied()
		}
	}
	return true
}

// makeReply makes one part of a reply, as much as fits into the egress queue at once. It returns false if the memory
// cannot be read; the queue pair is then in error.
func (r *responder) makeReply(p *pass, y *transport.Reply) bool {
	qp := r.qp
	p.storeHeld(qp)
	mark := 0 // packets of the train that stay if the memory cannot be read
	if p.build.t != nil {
		mark = p.build.t.packets
	}
	pool := &trainPool
	if y.Kind == transport.Atomic {
		pool = &ackPool
	}
	psn := y.PSN
	for done := false; !done; {
		if packets := y.Middles(qp.mtu, p.build.stretches(qp.mtu)); packets > 0 {
			n := packets * qp.mtu
			payload, _ := p.build.stretch(packets, n, false)
			if !p.gather.addRemote(qp, y, payload) {
				break
			}
			y.Sent(packets, n)
			continue
		}
		what, n := y.Packet(qp.mtu)
		op := qp.wire.Opcode(what)
		size := op.PacketLen(n)
		if !p.build.fits(qp.path, qp.attr.DestQPN, size) {
			if !p.gather.flush(qp) {
				break
			}
			p.build.finish(&qp.egress)
			if qp.egress.full() {
				return true
			}
			p.build.start(pool, qp.path, qp.attr.DestQPN, size)
			psn, mark = y.PSN, 0
		}
		place := p.build.add(size, op.HeaderLen(), y.Addr)
		k := roce.NewPacket(place, &roce.BTHFields{
			Opcode: op, MigReq: true, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: y.PSN,
		}, n)
		if h := k.AETH(); h != nil {
			h.Encode(roce.ACKUnlimited, y.MSN)
		}
		if h := k.AtomicAckETH(); h != nil {
			h.Encode(y.Result)
		}
		if what == roce.RDMAReadResponseMiddle {
			p.build.added(false)
		}
		if n > 0 && !p.gather.addRemote(qp, y, place[op.HeaderLen():][:n]) {
			break
		}
		y.Sent(1, n)
		done = y.Left == 0
	}
	if p.gather.flush(qp) && y.Left == 0 {
		if !p.build.t.mixed {
			p.build.finish(&qp.egress)
		}
		return true
	}
	p.gather.reset()
	p.build.cut(mark)
	p.build.finish(&qp.egress)
	if y.Repeats() && qp.state != ib.QPErr {
		// The network may have delayed this request until the peer had its response to another copy, and the consumer
		// removed the memory. In that case the peer drops the NAK.
		if _, due := r.rcv.Ack(); !due {
			r.rcv.Acknowledge(roce.NAKRemoteAccessError, psn)
		}
		y.Left = 0
		return true
	}
	r.rcv.DropReplies()
	if qp.state == ib.QPErr {
		r.rcv.Acknowledge(roce.NAKRemoteAccessError, psn) // precedes the due acknowledgement
	}
	r.refuse(psn, roce.NAKRemoteAccessError, uapi.WCRemAccessErr)
	return false
}

// receiveDatagram handles a datagram (IBA 9.8.3). The datagram is lost if there is no receive, or the receive is too
// small.
func (r *responder) receiveDatagram(p *pass, k *packet) {
	qp := r.qp
	if len(k.Payload) > qp.mtu || r.takeRecv(p) != accepted || grhLen+len(k.Payload) > r.wqe.Length {
		qp.dev.counters.add(cntDropUnreliable, 1)
		qp.report().datagram(k)
		return
	}
	if !p.store(qp, scatterSend, k.psn, r.wqe.SGEs, 0, grhOf(p, k)) ||
		!p.store(qp, scatterSend, k.psn, r.wqe.SGEs, grhLen, k.Payload) || !p.settle(qp) {
		return
	}
	wc := uapi.WC{
		Opcode: uapi.WCRecv, ByteLen: uint32(grhLen + len(k.Payload)), SrcQP: k.DETH().SrcQPN(),
		WCFlags: uapi.WCFlags(uapi.IBVWCGRH), SL: headerType(qp, k),
	}
	if d := qp.pd.destinations; d != nil {
		wc.SLID = uint16(d.find(k.src))
	}
	if h := k.ImmDt(); h != nil {
		copy(wc.Ex[:], h)
		wc.WCFlags |= uapi.WCFlags(uapi.IBVWCWithImm)
	}
	r.completeRecv(&wc, k.BTH().SolicitedEvent())
}

// mlx5 reports the type of the network header in the three low bits of a completion's service level, which RoCEv2
// does not use otherwise. Communication libraries use the type to find the destination in the GRH (UCX does, in
// releases up to 2024).
const (
	headerIPv6 = 1
	headerIPv4 = 2
)

// headerType returns the SL of a datagram's completion. On the GSI queue pair the SL is the VLAN's priority, and so
// 0, because the kernel's mlx5 makes the completions of that queue pair.
func headerType(qp *QP, k *packet) uint8 {
	switch {
	case qp.typ != ib.QPTypeUD:
		return 0
	case k.dst.Is4():
		return headerIPv4
	}
	return headerIPv6
}

// completeRecv completes the taken receive.
func (r *responder) completeRecv(wc *uapi.WC, solicited bool) {
	qp := r.qp
	qp.trace.note(traceRecvDone, uint32(wc.Status))
	if r.wqe.from == nil {
		qp.rq.Take()
		if !qp.rq.Complete() {
			qp.ringGone()
		}
	}
	r.wqe.taken = false
	if wc.Status == uapi.WCSuccess {
		qp.dev.counters.add(cntRDMARecv, 1)
		if wc.Opcode == uapi.WCRecv {
			qp.dev.countMessage(cntRecvWRs, 1)
			qp.dev.countMessage(cntRecvBytes, int(wc.ByteLen))
		}
	} else {
		qp.failures++
		qp.report().receive(wc.Status)
		wc.Opcode = uapi.WCRecv // consumers distinguish sends and receives by the opcode
	}
	wc.WRID, wc.PortNum = r.wqe.ID, 1
	traced := qp.trace.requestLog().receiveDone(r, wc)
	qp.complete(r.recvQueue(), wc, solicited, traced)
}

// grhLen is the length of the header before a datagram in its receive buffer.
const grhLen = roce.GRHLen

// grhOf builds the GRH of a datagram. The header is in the pass until it has been stored.
func grhOf(p *pass, k *packet) []byte {
	roce.GRH(p.grh[:]).Encode(&roce.GRHFields{
		TrafficClass: k.tos, HopLimit: k.ttl, PacketLen: len(k.Data) + roce.ICRCLen,
		SGID: roce.GID(k.src.As16()), DGID: roce.GID(k.dst.As16()),
	})
	return p.grh[:]
}

// flush completes everything in the receive queue with a flush error. (rxe_drain_req_pkts)
func (r *responder) flush() {
	qp := r.qp
	if r.wqe.taken {
		r.completeRecv(&uapi.WC{Status: uapi.WCWRFlushErr}, false)
	}
	r.lastReached()
	for range qp.rq.Capacity() {
		if _, found, ok := r.wqe.fetch(qp.rq, qp.cap.MaxRecvSGE); !ok {
			qp.ringGone()
			return
		} else if !found {
			break
		}
		qp.timer.quiet = 0
		r.completeRecv(&uapi.WC{Status: uapi.WCWRFlushErr}, false)
	}
}

// domain returns the protection domain for the keys in requests of the peer.
func (r *responder) domain() *pd {
	qp := r.qp
	if s := r.named; s != nil {
		return s.pd
	}
	return qp.pd
}

// recvQueue returns the completion queue of the receive in progress.
func (r *responder) recvQueue() *cq {
	qp := r.qp
	if s := r.wqe.from; s != nil && s.cq != nil {
		return s.cq
	}
	return qp.recvCQ
}

// recvWQE is a receive work request that the responder has taken out of the queue and checked.
type recvWQE struct {
	queue.Recv
	filled int // bytes that have arrived
	taken  bool
	pd     *pd  // domain of its memory
	from   *srq // its shared queue; nil: the queue pair's own queue

	began int64  // when it was taken, in nanoseconds; only with a trace
	left  uint32 // receives left in the shared queue; only with a trace
}

// fetch fetches the next receive of a queue. status is not success for a receive with more than limit elements.
func (w *recvWQE) fetch(q queue.RecvQueue, limit uint32) (status uapi.WCStatus, found, ok bool) {
	if found, ok = q.Fetch(0, &w.Recv); !found || !ok {
		return uapi.WCSuccess, false, ok
	}
	w.filled, w.taken, w.pd, w.from, w.began = 0, true, nil, nil, 0
	if w.NumSGE > limit {
		w.SGEs, w.Length, status = w.SGEs[:0], 0, uapi.WCLocQPOpErr
	}
	return status, true, true
}
