package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/uapi"
)

// mw is a memory window (IBA 10.6.7.2).
//
//	type 1:  unbound <--bind--> bound        A bind of no length unbinds. Any queue pair of the domain may bind it
//	                  +---bind--> bound      again, and the peers of any may use it.
//
//	type 2B: free --bind--> bound --LOCAL_INV, SEND with invalidate--> free
//	                                         Only the queue pair that bound it may invalidate it, and only its peer may
//	                                         use it. The end of the queue pair ends the bind.
type mw struct {
	dev   *Device
	obj   ib.MWHandle
	index uint32
	kind  ib.MWType
	pd    *pd
	grant atomic.Pointer[grant] // nil: not bound; set under mu

	mu   sync.Mutex //verbena:program see mr.mu; the domain of the window
	key  uint32     // the last key
	gone bool
}

// AllocMW implements ib.MWDriver.
func (o ops) AllocMW(obj ib.MWHandle, p ib.DriverPD, kind ib.MWType, _ *ib.Udata) (ib.DriverMW, error) {
	d := o.dev
	index, ok := d.mws.reserve()
	if !ok {
		return nil, fmt.Errorf("%d memory windows exist: %w", maxMW, syscall.ENOMEM)
	}
	w := &mw{
		dev: d, obj: obj, index: index, kind: kind, pd: domain(p),
		key: index<<8 | uint32(d.keys.take(index, uint8(d.random()))),
	}
	obj.SetRKey(w.key)
	d.mws.set(index, w)
	return w, nil
}

// Dealloc implements ib.DriverMW.
func (w *mw) Dealloc() error {
	w.mu.Lock()
	w.gone = true
	w.dev.mws.set(w.index, nil)
	w.replace(nil)
	w.dev.keys.used(w.key)
	w.mu.Unlock()
	w.dev.mws.drop(w.index)
	return nil
}

// replace stores new rights, or none, under the key. The window counts for the region of the old rights until no
// access uses them any more.
//
//verbena:held w.mu
func (w *mw) replace(g *grant) {
	old := w.grant.Swap(g)
	if old == nil {
		return
	}
	old.revoke()
	switch {
	case w.gone:
		old.observeEnd(driver.WindowDeallocated)
	case g != nil:
		old.observeEnd(driver.WindowRebound)
	default:
		old.observeEnd(driver.Invalidated)
	}
	old.mr.mu.Lock()
	old.mr.windows--
	old.mr.mu.Unlock()
}

// bindMW executes a WRBindMW. The pass has no access in flight.
func (r *requester) bindMW(b *queue.Bind) uapi.WCStatus {
	qp := r.qp
	w := qp.dev.mws.get(b.MWRKey >> 8)
	if w == nil || !w.bind(qp, b) {
		return uapi.WCMWBindErr
	}
	return uapi.WCSuccess
}

// bind checks and executes a bind (IBA 10.6.7.2; C10-70 to C10-75, o10-36, o10-37). As in adapters and in the kernel,
// only the low 8 bits of the requested key count, and the window's index goes above them. For type 1 the low bits
// must differ from the present ones. (rxe_check_bind_mw, rxe_do_bind_mw)
func (w *mw) bind(qp *QP, b *queue.Bind) bool {
	// AccessLocalWrite has no effect on a window, but programs set it.
	const known = remoteAccess | ib.AccessZeroBased | ib.AccessLocalWrite
	access, key := b.Access, w.index<<8|b.RKey&0xff
	if w.pd != qp.pd { // mu can wait for the memory of another program
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.gone, access&^known != 0:
		return false
	case w.kind == ib.MWType1 && (key == w.key || access&ib.AccessZeroBased != 0):
		return false
	case w.kind == ib.MWType2 && (b.Length == 0 || w.grant.Load() != nil):
		return false
	}
	var g *grant
	if b.Length > 0 {
		if g = w.window(qp, b, key); g == nil {
			return false
		}
	}
	w.replace(g)
	w.key = key
	w.obj.SetRKey(key)
	return true
}

// window returns the rights of a key to a part of a region, or nil if the region does not allow the bind.
//
//verbena:held w.mu
func (w *mw) window(qp *QP, b *queue.Bind, key uint32) *grant {
	m := qp.dev.mrs.get(b.MRLKey >> 8)
	if m == nil {
		return nil
	}
	if of := m.grant.Load(); of == nil || of.pd != qp.pd { // mu can wait for the memory of another program
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	const writes = ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	access := b.Access
	of := m.grant.Load()
	switch {
	case of == nil, of.key != b.MRLKey, of.pd != qp.pd,
		of.access&ib.AccessMWBind == 0,
		access&writes != 0 && of.access&ib.AccessLocalWrite == 0,
		!of.contains(b.Addr, b.Length):
		return nil
	}
	m.windows++
	g := &grant{
		key: key, pd: w.pd, region: of.region, access: access & remoteAccess, first: b.Addr, length: b.Length, mr: m,
	}
	if access&ib.AccessZeroBased != 0 {
		g.first, g.shift = 0, b.Addr
	}
	if w.kind == ib.MWType2 {
		g.qp, qp.bound = qp, true
	}
	return g
}

// unbindWindows ends the binds of type 2B of a queue pair that executes no more work requests.
func unbindWindows(d *Device, qp *QP) {
	for w := range d.mws.all() {
		if g := w.grant.Load(); g == nil || g.qp != qp {
			continue
		}
		w.mu.Lock()
		if g := w.grant.Load(); g != nil && g.qp == qp {
			w.replace(nil)
		}
		w.mu.Unlock()
	}
}

// invalidate ends a bind of type 2B, for the consumer of its queue pair or for the peer. (rxe_invalidate_mw)
func (w *mw) invalidate(qp *QP, key uint32) bool {
	is := func(g *grant) bool { return g != nil && g.key == key && g.qp == qp }
	if !is(w.grant.Load()) { // mu can wait for the memory of another program
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !is(w.grant.Load()) {
		return false
	}
	w.replace(nil)
	return true
}
