package rxe

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// FLUSH and ATOMIC WRITE (IBA annex A19): one packet each, answered by an RDMA READ response of no length.

// sendSingle sends one of them.
func (qp *QP) sendSingle(p *pass, w *sendWQE) bool {
	r := &qp.req
	op, n := qp.opcode(roce.Flush), 0
	if w.kind == opAtomicWrite {
		op, n = qp.opcode(roce.AtomicWrite), atomicLen
	}
	size := op.PacketLen(n)
	cost := w.cost(qp.mtu, 0, 1)
	if r.reads >= int(qp.attr.MaxRdAtomic) || r.out > 0 && r.out+cost > r.window || !qp.room(p, size) {
		return false
	}
	k := roce.NewPacket(p.build.add(size), &roce.BTHFields{
		Opcode: op, PKey: roce.DefaultPKey, DestQPN: qp.attr.DestQPN, PSN: w.first, AckReq: true,
	}, n)
	w.name(&k)
	if w.kind == opAtomicWrite {
		k.RETH().Encode(w.remote, w.rkey, atomicLen)
		copy(k.Payload, w.inline)
	} else {
		k.FETH().Encode(w.flush.placement, w.flush.level)
		k.RETH().Encode(w.remote, w.rkey, w.flush.length)
	}
	r.reads++
	r.out += cost
	r.pkt = 1
	qp.advanced(w)
	return true
}

// receiveDone completes one of them, or retires it, with its response.
func (qp *QP) receiveDone(w *sendWQE, k *packet) {
	r := &qp.req
	if k.Opcode.Operation() != roce.RDMAReadResponseOnly || !k.AETH().Syndrome().IsACK() || len(k.Payload) != 0 {
		qp.fail(uapi.WCBadRespErr)
		return
	}
	bytes := w.cost(qp.mtu, 0, 1)
	r.reads--
	r.ordered--
	r.una = k.psn.Next()
	qp.completeHead(uapi.WCSuccess)
	qp.progressed(bytes)
}

// executeAtomicWrite stores 8 bytes at once, after all that came before.
func (qp *QP) executeAtomicWrite(p *pass, k *packet) verdict {
	h := k.RETH()
	if qp.attr.AccessFlags&ib.AccessRemoteWrite == 0 || h.DMALen() != atomicLen || len(k.Payload) != atomicLen ||
		h.VA()%atomicLen != 0 || !qp.admits() {
		return invalid
	}
	if !qp.settle(p) {
		return refused
	}
	g := qp.memory(qp.domain(), h.RKey(), ib.AccessRemoteWrite)
	if g == nil {
		return denied
	}
	p.enter(qp)
	err := g.atomicWrite(h.VA(), k.Payload)
	p.leave()
	g.put()
	if err != nil {
		return denied
	}
	qp.answered(k, opAtomicWrite)
	return accepted
}

// atomicWrite stores 8 bytes, also as far as the atomic operations see.
func (g *grant) atomicWrite(addr uint64, b []byte) error {
	a := g.mr.atomics
	a.Lock()
	defer a.Unlock()
	copy(a.buf[:], b)
	a.vec[0] = a.buf[:]
	return g.write(a.vec[:], addr, atomicLen)
}

// executeFlush sees to it that what came before is in memory, where all processors see it (IBA A19.4). Memory that keeps
// it without power is not offered: no region can have the right for that placement, whatever the queue pair's are.
func (qp *QP) executeFlush(p *pass, k *packet) verdict {
	f, h := k.FETH(), k.RETH()
	need := ib.AccessFlags(0)
	if f.Type()&roce.FlushGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if f.Type()&roce.FlushPersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	if need == 0 || f.Type()&^(roce.FlushGlobal|roce.FlushPersistent) != 0 || f.Level() > roce.FlushMR ||
		qp.attr.AccessFlags&need != need || !qp.admits() {
		return invalid
	}
	g := qp.memory(qp.domain(), h.RKey(), need)
	if g == nil {
		return denied
	}
	within := f.Level() == roce.FlushMR || g.contains(h.VA(), uint64(h.DMALen()))
	g.put()
	switch {
	case !within:
		return denied
	case !qp.settle(p):
		return refused
	}
	qp.answered(k, opFlush)
	return accepted
}

// answered has the response to a request that was executed sent, and sent again if the request comes again.
func (qp *QP) answered(k *packet, kind opKind) {
	r := &qp.resp
	r.msn++
	r.psn = r.psn.Next()
	x := past{psn: k.psn, packets: 1, kind: kind, msn: r.msn}
	qp.remember(&x)
	r.replies = append(r.replies, x.reply())
}

// decodeSingle takes what is particular of the work request. The data of an ATOMIC WRITE are always inline.
func (qp *QP) decodeSingle(w *sendWQE, h *uapi.RXESendWQE, data []byte) uapi.WCStatus {
	w.flags &^= uapi.SendInline
	switch {
	case qp.attr.MaxRdAtomic == 0:
		return uapi.WCLocQPOpErr
	case w.kind == opFlush:
		f := h.WR.Flush()
		w.remote, w.rkey = f.RemoteAddr, f.RKey
		w.flush.placement, w.flush.level, w.flush.length = roce.FlushType(f.Type), roce.FlushLevel(f.Level), f.Length
		if bad := f.Type &^ (uapi.FlushGlobal | uapi.FlushPersistent); bad != 0 || f.Type == 0 || f.Level > uapi.FlushMR {
			return uapi.WCLocQPOpErr
		}
		return uapi.WCSuccess
	case h.DMA.Length != atomicLen || len(data) < atomicLen:
		return uapi.WCLocLenErr
	}
	a := h.WR.RDMA()
	w.remote, w.rkey = a.RemoteAddr, a.RKey
	if w.remote%atomicLen != 0 {
		return uapi.WCLocQPOpErr
	}
	w.length = atomicLen
	w.inline = append(w.inline, data[:atomicLen]...)
	return uapi.WCSuccess
}

// encodeMemory is encodeSend for the work requests about memory, windows and regions.
func (qp *QP) encodeMemory(b []byte, wr *ib.SendWR, kind opKind, h *uapi.RXESendWQE) (int, error) {
	invalid := func(format string, args ...any) (int, error) {
		return 0, fmt.Errorf(format+": %w", append(args, syscall.EINVAL)...)
	}
	n := uapi.RXESendWQESGEOffset
	switch kind {
	case opBind:
		if wr.Bind == nil || wr.Bind.MW == nil || wr.Bind.MR == nil && wr.Bind.Length != 0 {
			return invalid("bind without window or region")
		}
		if _, ok := ib.As[*mw](qp.obj.MW(wr.Bind.MW)); !ok {
			return invalid("window of another device")
		}
		*h.WR.MW() = uapi.RXESendWRMW{
			Addr: wr.Bind.Addr, Length: wr.Bind.Length, MWRKey: wr.Bind.MW.RKey(), RKey: wr.Bind.RKey,
			Access: wr.Bind.Access,
		}
		if wr.Bind.MR != nil {
			h.WR.MW().MRLKey = wr.Bind.MR.LKey()
		}
	case opRegister:
		if wr.Reg == nil || wr.Reg.MR == nil {
			return invalid("registration without region")
		}
		if _, ok := ib.As[*mr](qp.obj.MR(wr.Reg.MR)); !ok {
			return invalid("region of another device")
		}
		*h.WR.MW() = uapi.RXESendWRMW{MRLKey: wr.Reg.MR.LKey(), RKey: wr.Reg.Key, Access: wr.Reg.Access}
	case opFlush:
		*h.WR.Flush() = uapi.RXESendWRFlush{
			RemoteAddr: wr.RemoteAddr, RKey: wr.RKey, Length: wr.Flush.Length,
			Type: wr.Flush.Placement, Level: wr.Flush.Level,
		}
	case opAtomicWrite:
		if len(wr.Inline) != atomicLen || wr.RemoteAddr%atomicLen != 0 {
			return invalid("atomic write of %d bytes at %#x, must be 8 at a multiple of 8", len(wr.Inline), wr.RemoteAddr)
		}
		*h.WR.RDMA() = uapi.RXESendWRRDMA{RemoteAddr: wr.RemoteAddr, RKey: wr.RKey}
		h.DMA.Length = atomicLen
		n += copy(b[n:], wr.Inline)
	}
	uapi.Encode(b, h)
	return n, nil
}
