package engine

import (
	"fmt"
	"syscall"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/uapi"
	"verbena/umem"
)

// AllocMR implements ib.FastRegDriver. (rxe_alloc_mr)
func (o ops) AllocMR(obj ib.MRHandle, p ib.DriverPD, maxPages int) (ib.DriverMR, error) {
	d := o.dev
	m, key, err := d.newMR(obj, p, nil)
	if err != nil {
		return nil, err
	}
	m.fast = true
	d.mrs.set(m.index, m)
	obj.SetKeys(key, key)
	return m, nil
}

// Map implements ib.FastMR.
func (m *mr) Map(r *umem.Region) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.fast:
		return fmt.Errorf("the region was not made by AllocMR: %w", syscall.EINVAL)
	case m.grant.Load() != nil:
		return fmt.Errorf("the region is registered: %w", syscall.EBUSY)
	}
	m.mapped = r
	return nil
}

// fastReg carries out a WRRegMR: the region must be free, of the queue pair's domain, and mapped; of the key only the
// low bits are the consumer's (IBA 10.6.3). The addresses are those of Map. Its pass has no access in flight.
// (rxe_reg_fast_mr)
func (r *requester) fastReg(b *queue.Bind) uapi.WCStatus {
	qp := r.qp
	const writes = ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	access := b.Access
	m := qp.dev.mrs.get(b.MRLKey >> 8)
	if m == nil || !m.fast || checkMRAccess(access) != nil || access&ib.AccessZeroBased != 0 ||
		access&writes != 0 && access&ib.AccessLocalWrite == 0 {
		return uapi.WCLocQPOpErr
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone || m.grant.Load() != nil || m.mapped == nil || m.pd != qp.pd || b.RKey>>8 != m.index {
		return uapi.WCLocQPOpErr
	}
	m.replace(m.cover(b.RKey, m.mapped, access))
	return uapi.WCSuccess
}

// invalidate makes a region of AllocMR free again; not while windows are bound to it. (rxe_invalidate_mr, which takes
// any region)
func (m *mr) invalidate(qp *QP, key uint32) bool {
	is := func(g *grant) bool { return m.fast && g != nil && g.key == key && g.pd == qp.resp.domain() }
	if !is(m.grant.Load()) { // the lock may wait for memory of the program that has the region
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !is(m.grant.Load()) || m.windows > 0 {
		return false
	}
	m.replace(nil)
	return true
}

// invalidate ends what a work request registered or bound: for a LOCAL_INV, or a SEND with invalidate of the peer. When
// it returns no access by the key is in flight. Its pass has no access in flight.
func (qp *QP) invalidate(key uint32) bool {
	if m := qp.dev.mrs.get(key >> 8); m != nil {
		return m.invalidate(qp, key)
	}
	w := qp.dev.mws.get(key >> 8)
	return w != nil && w.invalidate(qp, key)
}

// doLocal carries out a work request that makes no packets. It reports whether the requester may go on. What it binds or
// registers is there for the work requests behind it; an invalidation waits until those before it are complete, since
// they may be sent again, and need their memory then. Once done it is not done again after a retry.
func (r *requester) doLocal(p *pass, w *sendWQE) bool {
	qp := r.qp
	if !r.snd.LocalDone() {
		if n, _ := r.snd.Current(); w.Opcode == uapi.WRLocalInv && n != r.snd.Head() {
			return false
		}
		p.fill(qp)
		p.enter(qp) // these wait for copies
		switch w.Opcode {
		case uapi.WRLocalInv:
			if !qp.invalidate(w.Imm.InvalidateRKey()) {
				w.status = uapi.WCLocQPOpErr
			}
		case uapi.WRBindMW:
			w.status = r.bindMW(&w.Bind)
		case wrRegMR:
			w.status = r.fastReg(&w.Bind)
		}
		p.leave()
		if w.status != uapi.WCSuccess {
			return true // it ends with that when those before it are complete
		}
	}
	r.succeed(r.snd.SkipLocal())
	return true
}
