package loopback

import "verbena/ib"

// memoryWindow is a memory window.
type memoryWindow struct {
	*memoryKey
	obj  ib.MWHandle
	kind ib.MWType
}

// AllocMW implements ib.MWDriver.
func (d *Device) AllocMW(obj ib.MWHandle, p ib.DriverPD, kind ib.MWType, u *ib.Udata) (ib.DriverMW, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &memoryWindow{memoryKey: d.newKey(p), obj: obj, kind: kind}
	w.mw = w
	obj.SetRKey(w.num)
	return w, nil
}

// Dealloc implements ib.DriverMW.
func (w *memoryWindow) Dealloc() error {
	w.dev.mu.Lock()
	defer w.dev.mu.Unlock()
	w.unbindWindow()
	delete(w.dev.keys, w.num>>8)
	return nil
}

// unbindWindow removes the window from its region.
//
//verbena:held k.dev.mu
func (k *memoryKey) unbindWindow() {
	if k.of != nil {
		k.of.bound--
	}
	k.of, k.qp, k.region, k.valid = nil, nil, nil, false
}

// executeBind executes WRBindMW (IBA 10.6.7.2.1).
//
//verbena:held q.dev.mu
func (q *QP) executeBind(w *sendWQE) ib.WCStatus {
	b, win := &w.bind, w.window
	if win.isDestroyed() || win.pd != q.pd {
		return ib.WCMWBindErr
	}
	num := win.num&^0xff | b.RKey&0xff
	type2 := win.kind == ib.MWType2
	switch {
	case type2 && win.valid, num == win.num: // the window must be invalidated first, or the key must change
		return ib.WCMWBindErr
	case !type2 && b.Access&ib.AccessZeroBased != 0: // o10-36.2.2
		return ib.WCMWBindErr
	}
	if b.Length == 0 && !type2 {
		win.unbindWindow()
		win.num = num
		win.obj.SetRKey(num)
		return ib.WCSuccess
	}
	mr := q.dev.lookupKey(w.region)
	const write = ib.AccessRemoteWrite | ib.AccessRemoteAtomic
	switch {
	case mr == nil || mr.mw != nil || mr.pd != q.pd || mr.access&ib.AccessMWBind == 0,
		b.Access&write != 0 && mr.access&ib.AccessLocalWrite == 0,
		b.Access&^(write|ib.AccessRemoteRead|ib.AccessZeroBased) != 0,
		!mr.containsRange(b.Addr, b.Length):
		return ib.WCMWBindErr
	}
	win.unbindWindow()
	win.num, win.region, win.access, win.valid = num, mr.region, b.Access, true
	win.first, win.n, win.shift = b.Addr, b.Length, 0
	if b.Access&ib.AccessZeroBased != 0 {
		win.first, win.shift = 0, b.Addr
	}
	win.of = mr
	mr.bound++
	if type2 {
		win.qp = q
	}
	win.obj.SetRKey(num)
	return ib.WCSuccess
}
