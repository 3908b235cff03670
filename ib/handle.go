package ib

import "syscall"

// The handles are the driver's side of the midlayer's objects: what only a driver may do, such as to complete work, to
// number a queue pair, or to declare a device dead. A driver gets them from NewDevice and in its Create methods; a consumer
// has no way to them.

// DeviceHandle is a driver's handle of its [Device].
type DeviceHandle struct{ dev *Device }

// Device is the device as consumers see it.
func (h *DeviceHandle) Device() *Device { return h.dev }

// Wrap replaces the device's driver by the result of f, which gets the present one and wraps it (see [As]). It is for the owner of the
// device, before it is registered.
func (h *DeviceHandle) Wrap(f func(Driver) Driver) { h.dev.drv = f(h.dev.drv) }

// The following methods return the driver's side of a consumer's object: nil for one that is nil or of another device. A driver's own
// type is found in it with [As], which also looks behind wrappers. For what a work request names see [QPHandle].

// PD returns the driver's side of a protection domain. It may not sleep.
func (h *DeviceHandle) PD(pd *PD) DriverPD {
	if pd == nil || !pd.dev.Same(h.dev) {
		return nil
	}
	return pd.drv
}

// MR returns the driver's side of a memory region. It may not sleep.
func (h *DeviceHandle) MR(mr *MR) DriverMR {
	if mr == nil || !mr.dev.Same(h.dev) {
		return nil
	}
	return mr.drv
}

// MW returns the driver's side of a memory window. It may not sleep.
func (h *DeviceHandle) MW(mw *MW) DriverMW {
	if mw == nil || !mw.dev.Same(h.dev) {
		return nil
	}
	return mw.drv
}

// CQ returns the driver's side of a completion queue. It may not sleep.
func (h *DeviceHandle) CQ(cq *CQ) DriverCQ {
	if cq == nil || !cq.dev.Same(h.dev) {
		return nil
	}
	return cq.drv
}

// QP returns the driver's side of a queue pair. It may not sleep.
func (h *DeviceHandle) QP(qp *QP) DriverQP {
	if qp == nil || !qp.dev.Same(h.dev) {
		return nil
	}
	return qp.drv
}

// SRQ returns the driver's side of a shared receive queue. It may not sleep.
func (h *DeviceHandle) SRQ(srq *SRQ) DriverSRQ {
	if srq == nil || !srq.dev.Same(h.dev) {
		return nil
	}
	return srq.drv
}

// AH returns the driver's side of an address handle. It may not sleep.
func (h *DeviceHandle) AH(ah *AH) DriverAH {
	if ah == nil || !ah.dev.Same(h.dev) {
		return nil
	}
	return ah.drv
}

// XRCD returns the driver's side of an XRC domain. It may not sleep.
func (h *DeviceHandle) XRCD(x *XRCD) DriverXRCD {
	if x == nil || !x.dev.Same(h.dev) {
		return nil
	}
	return x.drv
}

// MRHandle is a driver's handle of a memory region.
type MRHandle struct {
	mr  *MR
	set func(lkey, rkey uint32) // instead of mr; see Redirect
}

// SetKeys sets the keys by which work requests and peers name the region. It is called by RegMR, AllocMR and Rereg. It may not sleep.
func (h MRHandle) SetKeys(lkey, rkey uint32) {
	if h.set != nil {
		h.set(lkey, rkey)
	} else {
		h.mr.lkey, h.mr.rkey = lkey, rkey
	}
	if h.mr != nil {
		h.mr.driverKey = lkey
	}
}

// Redirect returns a handle whose SetKeys calls f. A driver passes it to the driver that it wraps. The zero MRHandle, redirected, stands
// for a region that the wrapper alone knows. f may not sleep.
func (h MRHandle) Redirect(f func(lkey, rkey uint32)) MRHandle {
	h.set = f
	return h
}

// MWHandle is a driver's handle of a memory window.
type MWHandle struct{ mw *MW }

// SetRKey sets the window's key: by AllocMW, and when a bind is done. It may not sleep.
func (h MWHandle) SetRKey(k uint32) { h.mw.rkey.Store(k) }

// CQHandle is a driver's handle of a completion queue.
type CQHandle struct {
	cq        *CQ
	completed func() // instead of the midlayer; see Redirect
}

// Redirect returns a handle whose Completed calls f. A driver passes it to the driver that it wraps, which may hold any of its locks in
// the call: f may not sleep, and calls no method of that driver.
func (h CQHandle) Redirect(f func()) CQHandle {
	h.completed = f
	return h
}

// SetEntries sets the capacity that CreateCQ or Resize grants.
func (h CQHandle) SetEntries(n int) { h.cq.entries.Store(int64(n)) }

// QPHandle is a driver's handle of a queue pair.
type QPHandle struct {
	qp    *QP
	raise func(EventType) // instead of the midlayer; see Redirect
}

// Redirect returns a handle whose Raise calls f. A driver passes it to the driver that it wraps, which may hold any of its locks in
// the call: f may not sleep, and calls no method of that driver.
func (h QPHandle) Redirect(f func(EventType)) QPHandle {
	h.raise = f
	return h
}

// QP is the queue pair as consumers see it, for WC.QP.
func (h QPHandle) QP() *QP { return h.qp }

// SetNum sets the queue pair's number. It is called by CreateQP.
func (h QPHandle) SetNum(n uint32) { h.qp.num = n }

// Num is the queue pair's number.
func (h QPHandle) Num() uint32 { return h.qp.num }

// The following methods return the driver's side of an object that a work request names. They return nil for an object that is nil,
// of another device than the queue pair's, or destroyed. They may be called under the driver's locks. After the call the object can
// still be destroyed: a driver that keeps its side until the request is executed checks again then.

// AH returns the driver's side of an address handle. It may not sleep.
func (h QPHandle) AH(ah *AH) DriverAH {
	if ah == nil || !ah.now().Alive() {
		return nil
	}
	return h.qp.dev.handle.AH(ah)
}

// CopyAH returns a copy of an address handle, of which d makes the driver's side. The copy stays when ah is changed or destroyed. A
// wrapper names it in a work request that it posts later to d, and destroys its driver's side afterwards. It may not sleep.
func (h QPHandle) CopyAH(ah *AH, d AHDriver) (*AH, error) {
	side := h.AH(ah)
	if side == nil {
		return nil, syscall.EINVAL
	}
	attr, err := side.Query()
	if err != nil {
		return nil, err
	}
	twin := &AH{object: object{dev: ah.dev, kind: kindAH}, pd: ah.pd}
	twin.drv, err = d.CreateAH(ah.pd.drv, &attr, nil)
	return twin, err
}

// MR returns the driver's side of a memory region. It may not sleep.
func (h QPHandle) MR(mr *MR) DriverMR {
	if mr == nil || !mr.now().Alive() {
		return nil
	}
	return h.qp.dev.handle.MR(mr)
}

// MW returns the driver's side of a memory window. It may not sleep.
func (h QPHandle) MW(mw *MW) DriverMW {
	if mw == nil || !mw.now().Alive() {
		return nil
	}
	return h.qp.dev.handle.MW(mw)
}

// LKey returns the local key that the driver has set for a region. A wrapper may show consumers another one: see [MRHandle.Redirect].
func (h QPHandle) LKey(mr *MR) uint32 { return mr.driverKey }

// DriverQPInit is what a driver makes a queue pair of: [QPInitAttr] with the driver's side of what it refers to.
type DriverQPInit struct {
	PD             DriverPD
	SendCQ, RecvCQ DriverCQ // nil where the type has none
	Cap            QPCap    // those asked for; the driver stores those granted
	SigAll         bool
	Type           QPType
	Port           uint8
	SRQ            DriverSRQ  // may be nil
	XRCD           DriverXRCD // QPTypeXRCTgt
}

// SRQHandle is a driver's handle of a shared receive queue.
type SRQHandle struct{ srq *SRQ }

// SetNum sets the queue's number. It is called by CreateSRQ for XRC.
func (h SRQHandle) SetNum(n uint32) { h.srq.num = n }

// Num is the queue's number.
func (h SRQHandle) Num() uint32 { return h.srq.num }

// DriverSRQInit is what a driver makes a shared receive queue of: [SRQInitAttr] with the driver's side of what it refers to.
type DriverSRQInit struct {
	PD   DriverPD
	Type SRQType
	Attr SRQAttr    // the capacities asked for; the driver stores those granted
	XRCD DriverXRCD // SRQXRC
	CQ   DriverCQ   // SRQXRC
}
