package engine

import (
	"sync/atomic"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// requester is the sending half of a queue pair. transport.Sender implements the protocol: it chooses the next
// packet, processes acknowledgements, and decides on retransmissions. The requester builds the packets from the
// consumer's memory for each transmission, and completes the requests (comp.go).
type requester struct {
	qp  *QP
	snd transport.Sender
	// wqes holds the work requests in flight by their number in snd, modulo the length, which is a power of two.
	wqes    []sendWQE
	scratch sendWQE
	vector  vector
	result  [atomicLen]byte

	aimd  transport.AIMD
	drain drain
	waits waits

	retransmits uint64 // QPStatus.Retransmits
}

func (r *requester) init(qp *QP) {
	r.qp = qp
	var recovery transport.Recovery = &r.aimd
	if qp.dev.noProbe {
		recovery = transport.Unprobed{Recovery: recovery}
	}
	r.snd.Init(recovery)
	r.snd.Reliable = qp.reliable
	r.waits.told = true
}

// grow doubles the room for work requests, which must be full.
func (r *requester) grow() {
	old, q := r.wqes, make([]sendWQE, max(4, 2*len(r.wqes)))
	for n := r.snd.Head(); n != r.snd.Tail(); n++ {
		q[n&uint32(len(q)-1)] = old[n&uint32(len(old)-1)]
	}
	r.wqes = q
}

// release drops the requests in flight, and their memory.
func (r *requester) release() {
	r.snd.Reset()
	r.wqes = nil
}

// run sends all packets that may be sent. (rxe_requester)
func (r *requester) run(p *pass) {
	qp := r.qp
	if qp.srd != nil {
		qp.srd.run(p)
		return
	}
	r.waits.begin(r.snd.Len() == 0)
	for r.snd.Open() && (qp.state == ib.QPRTS || qp.state == ib.QPSQD) {
		n, ok := r.snd.Current()
		if !ok && !r.fetch() {
			break
		}
		w := r.wqe(n)
		if w.status != uapi.WCSuccess {
			// The request completes after all earlier requests.
			if n == r.snd.Head() {
				p.fill(qp)
				r.fail(w.status)
			}
			break
		}
		if w.kind == transport.Local {
			ok = r.doLocal(p, w)
		} else {
			ok = r.send(p, w)
		}
		if !ok {
			break
		}
	}
	p.gather.ahead.from = nil
	p.build.finish(&qp.egress)
	if t := qp.trace.requestLog(); t != nil {
		t.runEnds()
	}
	if r.snd.Unarmed() {
		r.snd.Arm(qp.dev.clock.Now())
	}
	r.drained(r.snd.Len())
}

// drained ends the drain of the send queue if no request is in flight.
func (r *requester) drained(inFlight int) {
	qp := r.qp
	if r.drain == draining && inFlight == 0 {
		r.drain = drained
		if qp.attr.EnSQDAsyncNotify {
			qp.raise(ib.EventSQDrained)
		}
	}
}

// fetch takes the next work request out of the ring. It returns false if there is none, or the request has to wait.
func (r *requester) fetch() bool {
	qp := r.qp
	if qp.state == ib.QPSQD || r.snd.Len() >= qp.sq.Capacity() {
		return false
	}
	if r.snd.Len() == len(r.wqes) { // an idle queue pair has no room for requests
		if _, some := qp.sq.Posted(); !some {
			return false
		}
		r.grow()
	}
	w := r.wqe(r.snd.Tail())
	found, ok := qp.sq.Fetch(0, &w.Send)
	if !ok {
		qp.ringGone()
		qp.enterError(driver.StateCause{Reason: driver.ByQueueMemory})
		return false
	}
	if !found {
		return false
	}
	r.check(w)
	w.number = r.snd.Tail()
	if w.Flags&uapi.SendFence != 0 && r.snd.Ordered() > 0 || qp.dev.stopAt() {
		return false // fetched again when the earlier requests are complete
	}
	if w.LengthLost && w.status == uapi.WCSuccess && qp.ctx != nil {
		qp.ctx.libraryFault(ib.LengthLost)
	}
	qp.sq.Take()
	q := transport.Request{Kind: w.kind, Length: w.length, Packets: w.packets}
	if w.status != uapi.WCSuccess {
		q.Packets = 0
	}
	r.snd.Push(q)
	r.waits.posted(qp.sigAll || w.Flags&uapi.SendSignaled != 0)
	return true
}

// messageOpcodes holds the operations of SEND and RDMA WRITE, by the position of the packet in the message.
var messageOpcodes = [2][4]roce.Operation{
	{roce.SendMiddle, roce.SendFirst, roce.SendLast, roce.SendOnly},
	{roce.RDMAWriteMiddle, roce.RDMAWriteFirst, roce.RDMAWriteLast, roce.RDMAWriteOnly},
}

// operation returns the operation of a packet of the work request.
func (w *sendWQE) operation(k *transport.Packet) roce.Operation {
	switch w.kind {
	case transport.Read:
		return roce.RDMAReadRequest
	case transport.Atomic:
		if w.Opcode == uapi.WRAtomicCmpAndSwp {
			return roce.CmpSwap
		}
		return roce.FetchAdd
	case transport.AtomicWrite:
		return roce.AtomicWrite
	case transport.Flush:
		return roce.Flush
	}
	place, kind := 0, 0
	if k.First {
		place |= 1
	}
	if k.Last {
		place |= 2
	}
	if w.kind == transport.Write {
		kind = 1
	}
	op := messageOpcodes[kind][place]
	switch {
	case !k.Last:
	case w.Opcode == uapi.WRSendWithImm, w.Opcode == uapi.WRRDMAWriteWithImm:
		op++ // "with Immediate" follows its plain form
	case w.Opcode == uapi.WRSendWithInv && k.First:
		op = roce.SendOnlyWithInvalidate
	case w.Opcode == uapi.WRSendWithInv:
		op = roce.SendLastWithInvalidate
	}
	return op
}

// send builds the packets of the current work request that may be sent now. It reports whether the requester may
// continue with the next work request.
func (r *requester) send(p *pass, w *sendWQE) bool {
	qp := r.qp
	to, num := qp.path, qp.attr.DestQPN
	if qp.datagram {
		to, num = w.path, w.QPN
	}
	unread := p.build.mark(&qp.egress, -1)
	for {
		k, ok := r.middles(p, w)
		if !ok {
			if k, ok = r.snd.Next(); !ok {
				break
			}
		}
		if unread.index < 0 {
			unread.index = k.Index
		}
		if !k.First && !k.Last {
			if payload, ok := p.build.stretch(k.Packets, k.Length, k.AckReq); ok {
				r.snd.Sent(&k)
				if !p.gather.fill(qp, w.SGEs, k.Offset, payload) {
					return r.unreadable(p, w, unread)
				}
				continue
			}
		}
		op := qp.wire.Opcode(w.operation(&k))
		size := op.PacketLen(w.payload(&k))
		if !p.build.fits(to, num, size) || !p.build.t.joins(w) {
			if !p.gather.spans(p.build.t) && !p.gather.flush(qp) {
				return r.unreadable(p, w, unread)
			}
			p.build.finish(&qp.egress)
			if p.gather.from == nil {
				unread = p.build.mark(&qp.egress, k.Index)
			}
			if qp.egress.full() {
				break
			}
			p.build.start(&trainPool, to, num, size)
			if p.build.t.mixed && !p.gather.flush(qp) { // the path has changed: a mixed train has a gather of its own
				return r.unreadable(p, w, unread)
			}
			p.build.t.begin(qp, w)
		}
		r.snd.Sent(&k)
		if t := qp.trace.requestLog(); t != nil {
			t.started(w, &k, num)
		}
		if !r.build(p, w, &k, op, size) {
			return r.unreadable(p, w, unread)
		}
	}
	if !r.read(p) {
		return r.unreadable(p, w, unread)
	}
	completed, next := r.snd.Advance()
	r.succeed(completed)
	return next
}

// middles returns the next packets that may join the last span of the open train. In a train that may refer to
// memory, no packet has bytes of two elements, unless the elements are short.
func (r *requester) middles(p *pass, w *sendWQE) (k transport.Packet, ok bool) {
	mtu := r.snd.MTU
	most := p.build.stretches(mtu)
	if most == 0 {
		return k, false
	}
	k, ok = r.snd.NextMiddles(most)
	if !ok || len(w.SGEs) < 2 || !p.build.t.writes || w.length < minRefer*len(w.SGEs) {
		return k, ok
	}
	i, at := sgeAt(w.SGEs, k.Offset)
	whole := (int(w.SGEs[i].Length) - at) / mtu
	if at < mtu || whole == 0 { // the packet before, or this one, has bytes of two elements
		p.build.middle = false
		return k, false
	}
	return r.snd.NextMiddles(min(k.Packets, whole))
}

// source returns the address of a byte of the work request's payload, or 0 if there is none.
func (w *sendWQE) source(off int) uint64 {
	i, at := sgeAt(w.SGEs, off)
	if i == len(w.SGEs) {
		return 0
	}
	return w.SGEs[i].Addr + uint64(at)
}

// payload returns the number of bytes that a packet of the work request carries.
func (w *sendWQE) payload(k *transport.Packet) int {
	switch w.kind {
	case transport.Send, transport.Write, transport.AtomicWrite:
		return k.Length
	}
	return 0
}

// build adds a packet of size bytes to the open train, which has room for it. It returns false if the memory cannot
// be read. A failure to read may also be found later, at the end of the train.
func (r *requester) build(p *pass, w *sendWQE, k *transport.Packet, op roce.Opcode, size int) bool {
	qp := r.qp
	message := w.kind == transport.Send || w.kind == transport.Write
	f := roce.BTHFields{
		Opcode: op, MigReq: true, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: k.PSN, AckReq: k.AckReq,
		SolicitedEvent: message && k.Last && w.Flags&uapi.SendSolicited != 0,
	}
	if qp.datagram {
		f.DestQPN = w.QPN
	}
	place := p.build.add(size, op.HeaderLen(), w.source(k.Offset))
	b := roce.NewPacket(place, &f, w.payload(k))
	if op.HeaderLen() > roce.BTHLen {
		r.extend(&b, w, k)
	}
	if w.Flags&uapi.SendInline != 0 || w.kind == transport.AtomicWrite {
		copy(b.Payload, w.Inline[k.Offset:])
		return true
	}
	if message && !k.First && !k.Last {
		p.build.added(k.AckReq)
	}
	return p.gather.fill(qp, w.SGEs, k.Offset, place[op.HeaderLen():][:len(b.Payload)])
}

// extend writes the headers that follow the BTH.
func (r *requester) extend(b *roce.Packet, w *sendWQE, k *transport.Packet) {
	if h := b.XRCETH(); h != nil {
		h.Encode(w.SRQN)
	}
	if h := b.DETH(); h != nil {
		h.Encode(w.QKey, r.qp.num)
	}
	if h := b.RETH(); h != nil {
		n := k.Length
		switch w.kind {
		case transport.Write:
			n = w.length
		case transport.Flush:
			b.FETH().Encode(roce.FlushType(w.Flush.Type), roce.FlushLevel(w.Flush.Level))
			n = int(w.Flush.Length)
		}
		h.Encode(w.RemoteAddr+uint64(k.Offset), w.RKey, uint32(n))
	}
	if h := b.AtomicETH(); h != nil {
		swapAdd, compare := w.CompareAdd, uint64(0)
		if w.Opcode == uapi.WRAtomicCmpAndSwp {
			swapAdd, compare = w.Swap, w.CompareAdd
		}
		h.Encode(w.RemoteAddr, w.RKey, swapAdd, compare)
	}
	if h := b.ImmDt(); h != nil {
		copy(h, w.Imm[:])
	}
	if h := b.IETH(); h != nil {
		h.Encode(w.Imm.InvalidateRKey())
	}
}

// unreadable removes the unread packets. The work request completes with a protection error after all earlier
// requests.
func (r *requester) unreadable(p *pass, w *sendWQE, unread mark) bool {
	p.build.cutBack(&r.qp.egress, unread)
	p.gather.reset()
	r.snd.Unsend(unread.index)
	w.status = uapi.WCLocProtErr
	return true
}

// probe retransmits the oldest packet without an acknowledgement, if there is room for it.
func (r *requester) probe(p *pass) {
	qp := r.qp
	if qp.egress.full() || qp.egress.blocked {
		return
	}
	k, ok := r.snd.Probe(qp.dev.clock.Now())
	if !ok {
		return
	}
	w := r.wqe(r.snd.Head())
	if w.status != uapi.WCSuccess {
		return
	}
	op := qp.wire.Opcode(w.operation(&k))
	size := op.PacketLen(w.payload(&k))
	p.build.start(&trainPool, qp.path, qp.attr.DestQPN, size)
	if !r.build(p, w, &k, op, size) || !p.gather.flush(qp) {
		p.build.cut(0)
		p.gather.reset()
		w.status = uapi.WCLocProtErr
	} else {
		qp.dev.counters.add(cntSentProbe, 1)
		r.retransmits++
		if t := qp.trace.requestLog(); t != nil {
			t.repeated(driver.RepeatProbe, 0)
		}
	}
	p.build.finish(&qp.egress)
}

// waits distinguishes messages for which a program waits from messages of a stream. Two threads on two processors
// move a stream faster than one, because the receive thread works at the same time. A program waits if it posts a
// message after it has seen the completion of the last one, or if a request of the peer has arrived since the last
// one.
type waits struct {
	idle  bool // no request was in flight when the run began
	fresh bool // no work request of this run has been fetched
	heard bool // a request has arrived since the last run with a fetched work request
	told  bool // the last work request generates a completion

	answers bool // a request has arrived since the last message
	polls   bool // the program has seen the last completion, if the queue is empty
}

// begin is called before the requester fetches work requests.
func (w *waits) begin(idle bool) { w.idle, w.fresh = idle, true }

// posted is called for each fetched work request.
func (w *waits) posted(signaled bool) {
	if w.fresh {
		w.answers = w.idle && w.heard
		w.polls = w.idle && w.told
		w.fresh, w.heard = false, false
	}
	w.told = signaled
}

// kindOf returns the kind of a work request, or transport.None if queue pairs of type t do not support the request.
func kindOf(t ib.QPType, op uapi.WROpcode) transport.Kind {
	if int(op) >= len(kinds) {
		return transport.None
	}
	k := kinds[op]
	switch {
	case t == ib.QPTypeRC, t == ib.QPTypeXRCInit,
		t == ib.QPTypeUC && (k == transport.Send && op != uapi.WRSendWithInv || k == transport.Write || k == transport.Local),
		t == ib.QPTypeSRD && (k == transport.Send && op != uapi.WRSendWithInv || k == transport.Write ||
			k == transport.Read),
		(t == ib.QPTypeUD || t == ib.QPTypeGSI) && k == transport.Send && op != uapi.WRSendWithInv:
		return k
	}
	return transport.None
}

// check validates a fetched work request, which a program may have written, and sets its kind, length, packets and
// path. An invalid request gets the status of its completion. (validate_send_wr)
func (r *requester) check(w *sendWQE) {
	qp := r.qp
	w.kind, w.status, w.length, w.packets, w.path = kindOf(qp.typ, w.Opcode), uapi.WCSuccess, 0, 1, nil
	w.began, w.attempts, w.number = 0, 0, driver.NoNumber
	if w.kind == transport.None || w.Opcode == wrRegMR && qp.ctx != nil {
		w.kind, w.status = transport.None, uapi.WCLocQPOpErr
		return
	}
	if w.kind == transport.Local {
		w.packets = 0
		return
	}
	if w.kind == transport.Flush || w.kind == transport.AtomicWrite {
		w.status = r.checkSingle(w)
		return
	}
	if w.Flags&uapi.SendInline != 0 {
		if w.kind == transport.Read || w.kind == transport.Atomic { // the slot holds data in place of its elements
			w.status = uapi.WCLocQPOpErr
			return
		}
		if w.Length > uint64(qp.cap.MaxInlineData) {
			w.status = uapi.WCLocLenErr
			return
		}
		w.length = int(w.Length)
	} else {
		w.length = queue.Length(w.SGEs)
		w.Length = uint64(w.length) // for requestViolation
		if w.NumSGE > qp.cap.MaxSendSGE {
			w.status = uapi.WCLocQPOpErr
		} else if w.length > maxMsgSize {
			w.status = uapi.WCLocLenErr
		}
		if w.status != uapi.WCSuccess {
			return
		}
	}
	if w.kind == transport.Atomic {
		if w.length < atomicLen {
			w.status = uapi.WCLocLenErr
			return
		}
		w.length = atomicLen
	}
	if (w.kind == transport.Read || w.kind == transport.Atomic) && qp.attr.MaxRdAtomic == 0 && qp.srd == nil {
		w.status = uapi.WCLocQPOpErr
		return
	}
	if qp.datagram {
		w.status = r.checkUD(w)
		return
	}
	if w.kind != transport.Atomic {
		w.packets = qp.pathMTU.Packets(uint32(w.length))
	}
}

// checkUD checks a datagram, and sets its path.
func (r *requester) checkUD(w *sendWQE) uapi.WCStatus {
	qp := r.qp
	if qp.ctx == nil {
		w.path, _ = w.To.(*path)
	} else if w.AH == 0 {
		w.path = r.vector.path(qp.dev, &w.Vector)
	} else if h := qp.dev.ahs.get(w.AH); h != nil {
		w.path = h.pathFor(qp)
	}
	if w.path == nil {
		return uapi.WCLocQPOpErr
	}
	if w.kind == transport.Send && w.length > qp.mtu || w.kind != transport.Send && w.length > qp.dev.traits.MaxRDMASize {
		return uapi.WCLocLenErr
	}
	w.QPN &= roce.PSNMask
	if w.QKey>>31 != 0 || qp.typ == ib.QPTypeGSI {
		w.QKey = qkeyOf(qp) // a controlled Q_Key: the queue pair's own is sent (IBA 10.2.5)
	}
	return uapi.WCSuccess
}

// breakpoint calls a function before a work request. The device may stop there.
type breakpoint struct {
	left atomic.Uint64
	hit  func()
}

// stopAt counts a work request, and reports whether the device has stopped before the request.
func (d *Device) stopAt() bool {
	if b := d.watchpoint.Load(); b != nil && !d.stopped.Load() && b.left.Add(^uint64(0)) == 0 {
		d.watchpoint.CompareAndSwap(b, nil)
		b.hit()
	}
	if b := d.breakpoint.Load(); b != nil && b.left.Add(^uint64(0)) == 0 {
		d.breakpoint.Store(nil)
		d.stopped.Store(true)
		b.hit()
	}
	return d.stopped.Load()
}

// begin sets the fields for the work request of the train's first packet.
func (t *train) begin(qp *QP, w *sendWQE) {
	t.writes, t.key = t.mixed && qp.typ == ib.QPTypeRC && w.kind == transport.Write, w.RKey
}

// joins reports whether packets of a work request may follow in the train. A train that refers to memory has only
// RDMA WRITEs by one key, so that their destination is known.
func (t *train) joins(w *sendWQE) bool {
	if !t.writes || w.kind == transport.Write && w.RKey == t.key {
		return true
	}
	if t.refers() {
		return false
	}
	t.writes = false
	return true
}
