package rxe

import (
	"time"

	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// flight holds the send work requests that the requester has taken and that are not complete, oldest first. Each
// has a number that counts up.
type flight struct {
	q    []sendWQE // a power of two of them
	head uint32    // number of the oldest
	tail uint32    // number of the next
}

func (f *flight) len() int { return int(f.tail - f.head) }

func (f *flight) at(n uint32) *sendWQE { return &f.q[n&uint32(len(f.q)-1)] }

// push returns the place for the next one.
func (f *flight) push() *sendWQE {
	if f.len() == len(f.q) {
		q := make([]sendWQE, max(4, 2*len(f.q)))
		for n := f.head; n != f.tail; n++ {
			q[n&uint32(len(q)-1)] = *f.at(n)
		}
		f.q = q
	}
	f.tail++
	return f.at(f.tail - 1)
}

// requester is the state of the sending side of a queue pair.
//
// The PSNs from una to the requester's place have been sent and are not acknowledged. Where something was lost the
// place goes back to una (go-back-N), and everything from there is sent again, read again from the consumer's
// memory.
//
//	completed |  sent, unacknowledged  |  sent before, to be sent again  |  never sent
//	          una                    place                              sent          next
type requester struct {
	flight flight
	at     uint32 // number of the work request whose packets are sent now; flight.tail if there is none
	pkt    int    // next packet of it

	una  roce.PSN // oldest PSN that is not acknowledged; of RDMA READ, whose response has not come
	sent roce.PSN // one past the newest PSN ever sent
	next roce.PSN // first PSN of the next work request

	window  int // bytes that may be unacknowledged
	out     int // bytes between una and the place
	unasked int // bytes since the last request for an acknowledgement
	reads   int // requests between una and the place that are answered (opKind.answered)
	ordered int // work requests in flight that are answered, which a fence waits for

	retries    uint8
	rnrRetries uint8
	gap        bool // among the responses, as gapEnd has shown; everything was asked for again
	gapEnd     roce.PSN

	deadline time.Time // of the acknowledgement of una; noTime: nothing is outstanding
	rnrUntil time.Time // nothing is sent before

	probe     time.Time // while there is a deadline: una is sent again
	probeWait time.Duration
	flushed   sendWQE // scratch
	result    [atomicLen]byte
}

const (
	startWindow = 256 << 10
	maxWindow   = 1 << 20
	// packetCost is what a packet counts for beside its payload.
	packetCost = 64
	// readChunk is the number of bytes that one RDMA READ request asks for, at most: a message is read in parts,
	// so that the window bounds what may come in at once.
	readChunk = 64 << 10
)

func (r *requester) reset() {
	*r = requester{flight: flight{q: r.flight.q}, flushed: r.flushed, window: startWindow}
}

// begin sets the first PSN (RTR to RTS).
func (r *requester) begin(psn roce.PSN) { r.una, r.sent, r.next = psn, psn, psn }

// place is the PSN of the next packet.
func (r *requester) place() roce.PSN {
	if r.at == r.flight.tail {
		return r.next
	}
	return r.flight.at(r.at).first.Add(r.pkt)
}

// rewind takes the place back, or forward, to una.
func (r *requester) rewind() {
	r.at, r.pkt = r.flight.head, 0
	if r.at != r.flight.tail {
		r.pkt = r.una.Since(r.flight.at(r.at).first)
	}
	r.out, r.unasked, r.reads = 0, 0, 0
}

// cost is what the packets from a to b, b excluded, of a work request count for in the window.
func (w *sendWQE) cost(mtu, a, b int) int {
	return (b-a)*packetCost + min(b*mtu, w.length) - min(a*mtu, w.length)
}

// chunkPackets is the number of responses to an RDMA READ request that is not the last of its work request. The
// boundaries do not depend on what was lost, so that a repeated request stays within the original one.
func (qp *QP) chunkPackets() int { return readChunk / qp.mtu }

// request sends what may be sent. qp.mu is held. (rxe_requester)
func (qp *QP) request(p *pass) {
	r := &qp.req
	for r.rnrUntil.IsZero() && (qp.state == ib.QPRTS || qp.state == ib.QPSQD) {
		if r.at == r.flight.tail && !qp.fetch(p) {
			break
		}
		w := r.flight.at(r.at)
		if w.status != uapi.WCSuccess {
			// It completes when everything before it has.
			if r.at == r.flight.head {
				qp.fail(w.status)
			}
			break
		}
		var more bool
		switch {
		case qp.datagram():
			more = qp.sendDatagram(p, w)
		case w.kind == opRead:
			more = qp.sendRead(p, w)
		case w.kind == opAtomic:
			more = qp.sendAtomic(p, w)
		case w.kind.local():
			more = qp.doLocal(p, w)
		case w.kind.answered():
			more = qp.sendSingle(p, w)
		default:
			more = qp.sendMessage(p, w)
		}
		if !more {
			break
		}
	}
	p.build.finish(&qp.egress)
	if qp.reliable() && r.deadline.IsZero() && r.rnrUntil.IsZero() && r.una != r.place() {
		qp.startTimeout()
	}
	if qp.state == ib.QPSQD && r.flight.len() == 0 && !qp.drained {
		qp.drained = true
		if qp.attr.EnSQDAsyncNotify {
			qp.obj.Raise(ib.EventSQDrained)
		}
	}
}

// fetch takes the next work request out of the ring, false if there is none or it has to wait.
func (qp *QP) fetch(p *pass) bool {
	r := &qp.req
	if qp.state == ib.QPSQD || r.flight.len() >= qp.sq.capacity() {
		return false
	}
	slot, next := qp.sendSlot(p), qp.sqNext.Load()
	filled, ok := qp.sq.peek(next, slot)
	if !ok {
		qp.ringGone()
		qp.enterError(ringsGone)
		return false
	}
	if !filled {
		return false
	}
	w := r.flight.push()
	qp.decodeSend(w, slot)
	if w.flags&uapi.SendFence != 0 && r.ordered > 0 || qp.dev.stopAt() {
		r.flight.tail-- // again when what it waits for is complete
		return false
	}
	qp.sqNext.Store(qp.sq.next(next))
	w.first, r.pkt = r.next, 0
	if w.status == uapi.WCSuccess {
		r.next = r.next.Add(w.packets)
		if w.kind.answered() {
			r.ordered++
		}
	} else {
		w.packets = 0
	}
	return true
}

// messageOpcodes are the operations of SEND and RDMA WRITE by place in the message.
var messageOpcodes = [2][4]roce.Operation{
	{roce.SendMiddle, roce.SendFirst, roce.SendLast, roce.SendOnly},
	{roce.RDMAWriteMiddle, roce.RDMAWriteFirst, roce.RDMAWriteLast, roce.RDMAWriteOnly},
}

// operation is what the pkt-th packet of a SEND or RDMA WRITE does.
func (w *sendWQE) operation(pkt int) roce.Operation {
	place := 0
	if pkt == 0 {
		place |= 1
	}
	last := pkt == w.packets-1
	if last {
		place |= 2
	}
	kind := 0
	if w.kind == opWrite {
		kind = 1
	}
	op := messageOpcodes[kind][place]
	if last && (w.opcode == uapi.WRSendWithImm || w.opcode == uapi.WRRDMAWriteWithImm) {
		op++ // "with Immediate" follows its plain form
	}
	if last && w.opcode == uapi.WRSendWithInv {
		op = roce.SendLastWithInvalidate
		if pkt == 0 {
			op = roce.SendOnlyWithInvalidate
		}
	}
	return op
}

// sendMessage sends packets of a SEND or RDMA WRITE of a connected queue pair. It reports whether the requester
// may go on with the next work request.
func (qp *QP) sendMessage(p *pass, w *sendWQE) bool {
	r := &qp.req
	reliable := qp.reliable()
	mark, start := 0, r.pkt // what has to be taken back when the memory cannot be read
	if p.build.t != nil {
		mark = p.build.t.packets
	}
	undo := func() bool {
		p.build.cut(mark)
		p.gather.reset()
		r.pkt = start
		return qp.unreadable(w)
	}
	for r.pkt < w.packets {
		off := r.pkt * qp.mtu
		n := min(qp.mtu, w.length-off)
		last := r.pkt == w.packets-1
		op := qp.opcode(w.operation(r.pkt))
		if reliable && r.out > 0 && r.out+n+packetCost > r.window {
			break
		}
		size := op.PacketLen(n)
		if !p.build.fits(qp.path, size) {
			if !p.gather.flush(qp) {
				return undo()
			}
			p.build.finish(&qp.egress)
			if qp.egress.full() {
				break
			}
			p.build.start(&trainPool, qp.path, size)
			mark, start = 0, r.pkt
		}
		f := roce.BTHFields{
			Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: w.first.Add(r.pkt),
			SolicitedEvent: last && w.flags&uapi.SendSolicited != 0,
		}
		if reliable {
			r.out += n + packetCost
			r.unasked += n + packetCost
			// The window must not fill up without an acknowledgement on its way.
			f.AckReq = last || r.unasked >= r.window/2 || r.out+qp.mtu+packetCost > r.window
			if f.AckReq {
				r.unasked = 0
			}
		}
		k := roce.NewPacket(p.build.add(size), &f, n)
		w.name(&k)
		if h := k.RETH(); h != nil {
			h.Encode(w.remote, w.rkey, uint32(w.length))
		}
		if h := k.ImmDt(); h != nil {
			copy(h, w.imm[:])
		}
		if h := k.IETH(); h != nil {
			h.Encode(w.imm.InvalidateRKey())
		}
		r.pkt++
		if w.flags&uapi.SendInline != 0 {
			copy(k.Payload, w.inline[off:])
		} else if !p.gather.fill(qp, w.sges, off, k.Payload) {
			return undo()
		}
	}
	if !p.gather.flush(qp) {
		return undo()
	}
	done := r.pkt == w.packets
	qp.advanced(w)
	return done
}

// sendProbe sends the packet of una again and asks for an acknowledgement, long before the timeout, which may be a second:
// if it, or the NAK for it, was lost, that gets things going, and if an acknowledgement was, the responder repeats it, as for
// any duplicate (IBA 9.7.5.1.1). It is no retry: nothing else is sent again, and the timeout runs on.
func (qp *QP) sendProbe(p *pass) {
	r := &qp.req
	if r.deadline.IsZero() || !r.rnrUntil.IsZero() || r.una == r.place() || r.flight.len() == 0 || qp.egress.full() || qp.egress.blocked ||
		qp.state != ib.QPRTS && qp.state != ib.QPSQD {
		return
	}
	r.probeWait *= 2
	r.probe = qp.dev.clock.Now().Add(r.probeWait)
	w := r.flight.at(r.flight.head)
	if w.kind != opSend && w.kind != opWrite || w.status != uapi.WCSuccess {
		return
	}
	at, pkt, out, unasked, window := r.at, r.pkt, r.out, r.unasked, r.window
	r.at, r.pkt, r.out, r.window = r.flight.head, r.una.Diff(w.first), 0, 0 // room for one packet
	qp.sendMessage(p, w)
	p.build.finish(&qp.egress)
	r.at, r.pkt, r.out, r.unasked, r.window = at, pkt, out, unasked, window
}

// unreadable has the work request end with a protection error when its turn comes.
func (qp *QP) unreadable(w *sendWQE) bool {
	w.status = uapi.WCLocProtErr
	return true
}

// advanced goes on to the next work request when all packets of w have been made.
func (qp *QP) advanced(w *sendWQE) {
	r := &qp.req
	if place := w.first.Add(r.pkt); r.sent.Less(place) {
		r.sent = place
	}
	if r.pkt < w.packets {
		return
	}
	r.at, r.pkt = r.at+1, 0
	if !qp.reliable() {
		// Nobody acknowledges: it is complete.
		r.una = w.first.Add(w.packets)
		qp.completeHead(uapi.WCSuccess)
	}
}

// name has a request of XRC name the queue that it is for.
func (w *sendWQE) name(k *roce.Packet) {
	if h := k.XRCETH(); h != nil {
		h.Encode(w.srqn)
	}
}

// sendRead sends RDMA READ requests.
func (qp *QP) sendRead(p *pass, w *sendWQE) bool {
	r := &qp.req
	op := qp.opcode(roce.RDMAReadRequest)
	size := op.PacketLen(0)
	chunk := qp.chunkPackets()
	for r.pkt < w.packets {
		end := min((r.pkt/chunk+1)*chunk, w.packets)
		cost := w.cost(qp.mtu, r.pkt, end)
		if r.reads >= int(qp.attr.MaxRdAtomic) || r.out > 0 && r.out+cost > r.window || !qp.room(p, size) {
			break
		}
		off := r.pkt * qp.mtu
		k := roce.NewPacket(p.build.add(size), &roce.BTHFields{
			Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN,
			PSN: w.first.Add(r.pkt), AckReq: true,
		}, 0)
		w.name(&k)
		k.RETH().Encode(w.remote+uint64(off), w.rkey, uint32(min(end*qp.mtu, w.length)-off))
		r.reads++
		r.out += cost
		r.pkt = end
	}
	done := r.pkt == w.packets
	qp.advanced(w)
	return done
}

// sendAtomic sends an atomic request.
func (qp *QP) sendAtomic(p *pass, w *sendWQE) bool {
	r := &qp.req
	op, swapAdd, compare := qp.opcode(roce.FetchAdd), w.a, uint64(0)
	if w.opcode == uapi.WRAtomicCmpAndSwp {
		op, swapAdd, compare = qp.opcode(roce.CmpSwap), w.b, w.a
	}
	size := op.PacketLen(0)
	cost := w.cost(qp.mtu, 0, 1)
	if r.reads >= int(qp.attr.MaxRdAtomic) || r.out > 0 && r.out+cost > r.window || !qp.room(p, size) {
		return false
	}
	k := roce.NewPacket(p.build.add(size), &roce.BTHFields{
		Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: w.first, AckReq: true,
	}, 0)
	w.name(&k)
	k.AtomicETH().Encode(w.remote, w.rkey, swapAdd, compare)
	r.reads++
	r.out += cost
	r.pkt = 1
	qp.advanced(w)
	return true
}

// room sees to it that a packet without payload of size bytes can be added, false where the egress queue is full.
func (qp *QP) room(p *pass, size int) bool {
	if p.build.fits(qp.path, size) {
		return true
	}
	p.build.finish(&qp.egress)
	if qp.egress.full() {
		return false
	}
	p.build.start(&trainPool, qp.path, size)
	return true
}

// sendDatagram sends a datagram.
func (qp *QP) sendDatagram(p *pass, w *sendWQE) bool {
	op := roce.UDSendOnly
	if w.opcode == uapi.WRSendWithImm {
		op = roce.UDSendOnlyWithImmediate
	}
	size := op.PacketLen(w.length)
	if !p.build.fits(w.path, size) {
		p.build.finish(&qp.egress)
		if qp.egress.full() {
			return false
		}
		p.build.start(&trainPool, w.path, size)
	}
	mark := p.build.t.packets
	k := roce.NewPacket(p.build.add(size), &roce.BTHFields{
		Opcode: op, PKey: roce.DefaultPKey, DestQPN: w.qpn, PSN: w.first,
		SolicitedEvent: w.flags&uapi.SendSolicited != 0,
	}, w.length)
	k.DETH().Encode(w.qkey, qp.num)
	if h := k.ImmDt(); h != nil {
		copy(h, w.imm[:])
	}
	if w.flags&uapi.SendInline != 0 {
		copy(k.Payload, w.inline)
	} else if !p.gather.fill(qp, w.sges, 0, k.Payload) || !p.gather.flush(qp) {
		p.build.cut(mark)
		p.gather.reset()
		return qp.unreadable(w)
	}
	qp.req.pkt = 1
	qp.advanced(w)
	return true
}
