package engine

import (
	"fmt"
	"syscall"

	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// FLUSH and ATOMIC WRITE (IBA annex A19) have one packet each. The response is an RDMA READ response without payload.

// executeAtomicWrite stores 8 bytes at once, after the data of all earlier requests.
func (r *responder) executeAtomicWrite(p *pass, k *packet) (verdict, transport.Check) {
	qp, h := r.qp, k.RETH()
	switch {
	case qp.attr.AccessFlags&ib.AccessRemoteWrite == 0 || h.VA()%atomicLen != 0:
		return invalid, transport.CheckOpcode
	case !r.rcv.Admits():
		return invalid, transport.CheckResources
	case !r.permits(h.RKey(), ib.AccessRemoteWrite, h.VA(), atomicLen):
		return denied, transport.CheckRKey
	case h.DMALen() != atomicLen || len(k.Payload) != atomicLen:
		return invalid, transport.CheckLength
	case !p.settle(qp):
		return refused, transport.CheckLocal
	}
	g := qp.memory(r.domain(), h.RKey(), ib.AccessRemoteWrite)
	if g == nil {
		return denied, transport.CheckRKey
	}
	p.storeHeld(qp)
	p.storeHeldFor(qp, g, h.VA(), atomicLen)
	p.enter(qp)
	err := g.atomicWrite(h.VA(), k.Payload)
	p.leave()
	g.put()
	if err != nil {
		return denied, transport.CheckRKey
	}
	r.rcv.Answer(&transport.Answer{Kind: transport.AtomicWrite, Packets: 1})
	return accepted, 0
}

// atomicWrite stores 8 bytes. The store is atomic with regard to the atomic operations.
func (g *grant) atomicWrite(addr uint64, b []byte) error {
	a := g.mr.atomics
	a.Lock()
	defer a.Unlock()
	copy(a.buf[:], b)
	a.vec[0] = a.buf[:]
	return g.write(a.vec[:], addr, atomicLen)
}

// executeFlush stores the data of all earlier requests in memory, visible to all processors (IBA A19.4). The device
// does not offer persistent memory: no region can have the right to it, even if the queue pair has.
func (r *responder) executeFlush(p *pass, k *packet) (verdict, transport.Check) {
	qp, f, h := r.qp, k.FETH(), k.RETH()
	need := ib.AccessFlags(0)
	if f.Type()&roce.FlushGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if f.Type()&roce.FlushPersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	switch {
	case need == 0 || f.Type()&^(roce.FlushGlobal|roce.FlushPersistent) != 0 || f.Level() > roce.FlushMR ||
		qp.attr.AccessFlags&need != need:
		return invalid, transport.CheckOpcode
	case !r.rcv.Admits():
		return invalid, transport.CheckResources
	}
	g := qp.memory(r.domain(), h.RKey(), need)
	if g == nil {
		return denied, transport.CheckRKey
	}
	within := f.Level() == roce.FlushMR || g.contains(h.VA(), uint64(h.DMALen()))
	g.put()
	switch {
	case !within:
		return denied, transport.CheckRKey
	case !p.settle(qp):
		return refused, transport.CheckLocal
	}
	p.storeHeld(qp)
	r.rcv.Answer(&transport.Answer{Kind: transport.Flush, Packets: 1})
	return accepted, 0
}

// checkSingle checks a FLUSH or an ATOMIC WRITE. The data of an ATOMIC WRITE is always inline.
func (r *requester) checkSingle(w *sendWQE) uapi.WCStatus {
	w.Flags &^= uapi.SendInline
	switch {
	case r.qp.attr.MaxRdAtomic == 0:
		return uapi.WCLocQPOpErr
	case w.kind == transport.Flush:
		f := &w.Send.Flush
		if bad := f.Type &^ (uapi.FlushGlobal | uapi.FlushPersistent); bad != 0 || f.Type == 0 || f.Level > uapi.FlushMR {
			return uapi.WCLocQPOpErr
		}
		return uapi.WCSuccess
	case w.Length != atomicLen || len(w.Inline) < atomicLen:
		return uapi.WCLocLenErr
	}
	w.length = atomicLen
	return uapi.WCSuccess
}

// describeMemory implements describe for the work requests on memory, windows and regions.
func (r *requester) describeMemory(w *queue.Send, wr *ib.SendWR) error {
	qp := r.qp
	invalid := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, syscall.EINVAL)...)
	}
	switch wr.Opcode {
	case ib.WRBindMW:
		if wr.Bind == nil || wr.Bind.MW == nil || wr.Bind.MR == nil && wr.Bind.Length != 0 {
			return invalid("bind without window or region")
		}
		if _, ok := ib.As[*mw](qp.obj.MW(wr.Bind.MW)); !ok {
			return invalid("the window is destroyed or of another device")
		}
		w.Bind = queue.Bind{
			Addr: wr.Bind.Addr, Length: wr.Bind.Length, MWRKey: wr.Bind.MW.RKey(), RKey: wr.Bind.RKey, Access: wr.Bind.Access,
		}
		if wr.Bind.MR != nil {
			if qp.obj.MR(wr.Bind.MR) == nil {
				return invalid("the region is destroyed or of another device")
			}
			w.Bind.MRLKey = qp.obj.LKey(wr.Bind.MR)
		}
	case ib.WRRegMR:
		if wr.Reg == nil || wr.Reg.MR == nil {
			return invalid("registration without region")
		}
		if _, ok := ib.As[*mr](qp.obj.MR(wr.Reg.MR)); !ok {
			return invalid("the region is destroyed or of another device")
		}
		w.Bind = queue.Bind{MRLKey: qp.obj.LKey(wr.Reg.MR), RKey: wr.Reg.Key, Access: wr.Reg.Access}
	case ib.WRFlush:
		w.RemoteAddr, w.RKey = wr.RemoteAddr, wr.RKey
		w.Flush = queue.Flush{Length: wr.Flush.Length, Type: wr.Flush.Placement, Level: wr.Flush.Level}
	case ib.WRAtomicWrite:
		if len(wr.Inline) != atomicLen {
			return invalid("atomic write of %d bytes, must be 8", len(wr.Inline))
		}
		w.RemoteAddr, w.RKey = wr.RemoteAddr, wr.RKey
		w.Inline, w.Length = append(w.Inline, wr.Inline...), atomicLen
	}
	return nil
}
