package loopback

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// fastMR is a region that work requests register.
type fastMR struct {
	*memoryKey
	mapped *umem.Region // under Device.mu; nil if Map was not called yet
}

// AllocMR implements ib.FastRegDriver.
func (d *Device) AllocMR(obj ib.MRHandle, p ib.DriverPD, maxPages int) (ib.DriverMR, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.newKey(p)
	k.fast = true
	obj.SetKeys(k.num, k.num)
	return &fastMR{memoryKey: k}, nil
}

// Map implements ib.FastMR.
func (m *fastMR) Map(r *umem.Region) error {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	if m.valid {
		return fmt.Errorf("the region is registered: %w", syscall.EBUSY)
	}
	m.mapped = r
	return nil
}

// executeRegMR executes WRRegMR.
//
//verbena:held q.dev.mu
func (q *QP) executeRegMR(w *sendWQE) ib.WCStatus {
	m := w.fast
	const writes = ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	switch {
	case m == nil, m.isDestroyed(), m.valid, m.mapped == nil, m.pd != q.pd, w.reg.Key>>8 != m.num>>8,
		checkAccess(w.reg.Access) != nil, w.reg.Access&writes != 0 && w.reg.Access&ib.AccessLocalWrite == 0: // as for RegMR
		return ib.WCLocQPOpErr
	}
	m.num = w.reg.Key
	m.setRegion(m.mapped, w.reg.Access)
	return ib.WCSuccess
}
