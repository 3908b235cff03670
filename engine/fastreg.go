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

// fastReg executes a WRRegMR. The region must be free, mapped, and in the queue pair's domain. The consumer chooses
// only the low bits of the key (IBA 10.6.3). The addresses are those of Map. The pass has no access in flight.
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

// invalidate makes a region of AllocMR free again. It fails while windows are bound to the region.
// (rxe_invalidate_mr, which accepts any region)
func (m *mr) invalidate(qp *QP, key uint32) bool {
	is := func(g *grant) bool { return m.fast && g != nil && g.key == key && g.pd == qp.resp.domain() }
	if !is(m.grant.Load()) { // mu can wait for the memory of another program
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

// invalidate ends a registration or a bind of a work request, for a LOCAL_INV or for a SEND with invalidate of the
// peer. When invalidate returns, no access by the key is in flight. The pass has no access in flight.
func (qp *QP) invalidate(key uint32) bool {
	if m := qp.dev.mrs.get(key >> 8); m != nil {
		return m.invalidate(qp, key)
	}
	w := qp.dev.mws.get(key >> 8)
	return w != nil && w.invalidate(qp, key)
}

// doLocal executes a work request that makes no packets. It reports whether the requester may continue. A bind or a
// registration takes effect for the next work request. An invalidation waits until all earlier work requests are
// complete, since a retransmission reads their memory again. A retry does not repeat the execution.
func (r *requester) doLocal(p *pass, w *sendWQE) bool {
	qp := r.qp
	if !r.snd.LocalDone() {
		if n, _ := r.snd.Current(); w.Opcode == uapi.WRLocalInv && n != r.snd.Head() {
			return false
		}
		p.fill(qp)
		p.enter(qp) // the operations below wait for copies
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
		qp.storeHeldByKeys()
		p.leave()
		if w.status != uapi.WCSuccess {
			return true // completes with this status after the earlier requests
		}
	}
	r.succeed(r.snd.SkipLocal())
	return true
}
