package ib

import "syscall"

// The handles give drivers access to the midlayer's objects. Drivers use them for operations such as reporting a
// completion, setting the number of a queue pair, or declaring a device failed. A driver obtains them from NewDevice
// and in its Create methods. Consumers cannot obtain handles.

// DeviceHandle is a driver's handle of its [Device].
type DeviceHandle struct{ dev *Device }

// Device returns the device for consumers.
func (h *DeviceHandle) Device() *Device { return h.dev }

// Wrap replaces the driver of the device with the result of f. f receives the current driver and returns a wrapper of
// it (see [As]). The owner of the device calls Wrap before Register.
func (h *DeviceHandle) Wrap(f func(Driver) Driver) { h.dev.drv = f(h.dev.drv) }

// The following methods return the driver's side of an object. The methods return nil for a nil object or an object of
// another device. [As] finds the driver's own type, even behind wrappers. [QPHandle] has the equivalent methods for the
// objects of work requests.

// PD returns the driver's side of a protection domain. PD may not sleep.
func (h *DeviceHandle) PD(pd *PD) DriverPD {
	if pd == nil || !pd.dev.Same(h.dev) {
		return nil
	}
	return pd.drv
}

// MR returns the driver's side of a memory region. MR may not sleep.
func (h *DeviceHandle) MR(mr *MR) DriverMR {
	if mr == nil || !mr.dev.Same(h.dev) {
		return nil
	}
	return mr.drv
}

// MW returns the driver's side of a memory window. MW may not sleep.
func (h *DeviceHandle) MW(mw *MW) DriverMW {
	if mw == nil || !mw.dev.Same(h.dev) {
		return nil
	}
	return mw.drv
}

// CQ returns the driver's side of a completion queue. CQ may not sleep.
func (h *DeviceHandle) CQ(cq *CQ) DriverCQ {
	if cq == nil || !cq.dev.Same(h.dev) {
		return nil
	}
	return cq.drv
}

// QP returns the driver's side of a queue pair. QP may not sleep.
func (h *DeviceHandle) QP(qp *QP) DriverQP {
	if qp == nil || !qp.dev.Same(h.dev) {
		return nil
	}
	return qp.drv
}

// SRQ returns the driver's side of a shared receive queue. SRQ may not sleep.
func (h *DeviceHandle) SRQ(srq *SRQ) DriverSRQ {
	if srq == nil || !srq.dev.Same(h.dev) {
		return nil
	}
	return srq.drv
}

// AH returns the driver's side of an address handle. AH may not sleep.
func (h *DeviceHandle) AH(ah *AH) DriverAH {
	if ah == nil || !ah.dev.Same(h.dev) {
		return nil
	}
	return ah.drv
}

// XRCD returns the driver's side of an XRC domain. XRCD may not sleep.
func (h *DeviceHandle) XRCD(x *XRCD) DriverXRCD {
	if x == nil || !x.dev.Same(h.dev) {
		return nil
	}
	return x.drv
}

// MRHandle is a driver's handle of a memory region.
type MRHandle struct {
	mr  *MR
	set func(lkey, rkey uint32) // called in place of the midlayer; see Redirect
}

// SetKeys sets the local and the remote key of the region. RegMR, AllocMR and Rereg call SetKeys. SetKeys may not
// sleep.
func (h MRHandle) SetKeys(lkey, rkey uint32) {
	if h.set != nil {
		h.set(lkey, rkey)
	} else {
		h.mr.lkey.Store(lkey)
		h.mr.rkey.Store(rkey)
	}
	if h.mr != nil {
		h.mr.driverKey.Store(lkey)
	}
}

// Redirect returns a handle with a SetKeys that calls f. A wrapper passes the handle to the wrapped driver. A wrapper
// may also redirect the zero MRHandle for its own region, which has no MR. f may not sleep.
func (h MRHandle) Redirect(f func(lkey, rkey uint32)) MRHandle {
	h.set = f
	return h
}

// MR returns the region for consumers, for use in BindMW.MR. MR may not sleep.
func (h MRHandle) MR() *MR { return h.mr }

// MWHandle is a driver's handle of a memory window.
type MWHandle struct{ mw *MW }

// MW returns the window for consumers, for use in BindMW.MW. MW may not sleep.
func (h MWHandle) MW() *MW { return h.mw }

// SetRKey sets the key of the window. The driver calls SetRKey in AllocMW and at the completion of a bind. SetRKey may
// not sleep.
func (h MWHandle) SetRKey(k uint32) { h.mw.rkey.Store(k) }

// CQHandle is a driver's handle of a completion queue.
type CQHandle struct {
	cq        *CQ
	completed func() // called in place of the midlayer; see Redirect
}

// Redirect returns a handle with a Completed that calls f. A wrapper passes the handle to the wrapped driver, which may
// hold any of its locks during the call. f may not sleep, and must not call the wrapped driver.
func (h CQHandle) Redirect(f func()) CQHandle {
	h.completed = f
	return h
}

// CQ returns the completion queue for consumers. CQ may not sleep.
func (h CQHandle) CQ() *CQ { return h.cq }

// NewCallback returns a function that schedules f. A thread without locks calls f later, like a completion handler:
// calls of f do not overlap, and a call of f begins after each call of the function. f may not sleep. The function
// may not sleep, and may be called with any locks held.
func (h CQHandle) NewCallback(f func()) (schedule func()) {
	cq := &CQ{handler: func(*CQ) { f() }, object: object{dev: h.cq.dev, kind: kindCQ}}
	return CQHandle{cq: cq}.Completed
}

// SetEntries sets the actual capacity. CreateCQ and Resize call it.
func (h CQHandle) SetEntries(n int) { h.cq.entries.Store(int64(n)) }

// QPHandle is a driver's handle of a queue pair.
type QPHandle struct {
	qp    *QP
	raise func(EventType) // called in place of the midlayer; see Redirect
}

// Redirect returns a handle with a Raise that calls f. A wrapper passes the handle to the wrapped driver, which may
// hold any of its locks during the call. f may not sleep, and must not call the wrapped driver.
func (h QPHandle) Redirect(f func(EventType)) QPHandle {
	h.raise = f
	return h
}

// QP returns the queue pair for consumers, for use in WC.QP.
func (h QPHandle) QP() *QP { return h.qp }

// SetNum sets the number of the queue pair. CreateQP calls it.
func (h QPHandle) SetNum(n uint32) { h.qp.num = n }

// Num returns the number of the queue pair.
func (h QPHandle) Num() uint32 { return h.qp.num }

// The following methods return the driver's side of an object of a work request. The methods return nil for an object
// that is nil, destroyed, or on another device than the queue pair. The methods may be called under the driver's locks.
// The object can be destroyed after the call. A driver that retains the result until it executes the request must
// therefore check the object again.

// AH returns the driver's side of an address handle. AH may not sleep.
func (h QPHandle) AH(ah *AH) DriverAH {
	if ah == nil || !ah.lifeState().IsAlive() {
		return nil
	}
	return h.qp.dev.handle.AH(ah)
}

// CopyAH returns a copy of an address handle. Driver d creates the driver's side of the copy. Changes to ah, and its
// destruction, do not affect the copy. A wrapper uses the copy in a work request that it posts to d later. Afterwards
// the wrapper destroys the driver's side of the copy. CopyAH may not sleep.
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

// NewAH returns an address handle with a given driver's side, which a wrapper has created in the domain pd, for use in
// the wrapper's work requests. The handle has no reference to the GID. NewAH may not sleep.
func (h QPHandle) NewAH(side DriverAH, pd DriverPD) *AH {
	return &AH{object: object{dev: h.qp.dev, kind: kindAH}, drv: side, pd: &PD{drv: pd}}
}

// MR returns the driver's side of a memory region. MR may not sleep.
func (h QPHandle) MR(mr *MR) DriverMR {
	if mr == nil || !mr.lifeState().IsAlive() {
		return nil
	}
	return h.qp.dev.handle.MR(mr)
}

// MW returns the driver's side of a memory window. MW may not sleep.
func (h QPHandle) MW(mw *MW) DriverMW {
	if mw == nil || !mw.lifeState().IsAlive() {
		return nil
	}
	return h.qp.dev.handle.MW(mw)
}

// LKey returns the local key that the driver has set for a region. A wrapper may give another key to consumers: see
// [MRHandle.Redirect].
func (h QPHandle) LKey(mr *MR) uint32 { return mr.driverKey.Load() }

// DriverQPInit holds the parameters of a new queue pair: [QPInitAttr] with the driver's side of each object.
type DriverQPInit struct {
	PD             DriverPD
	SendCQ, RecvCQ DriverCQ // nil if the queue pair type has no such CQ
	Cap            QPCap    // requested capacities; the driver stores the actual ones
	SigAll         bool
	Type           QPType
	Port           uint8
	SRQ            DriverSRQ  // may be nil
	XRCD           DriverXRCD // QPTypeXRCTgt

	// The next fields are set by a wrapper that posts the requests of a user context.

	// User is the context that the queue pair works for, or nil. The driver uses it in reports, and does not access the
	// memory of User's queues.
	User UserContext
	// Refill, if not nil, posts receives with PostRecv. A driver with [Refiller] calls Refill before it refuses a message
	// because the receive queue is empty. The driver calls Refill on the thread that executes the message, without a lock
	// that PostRecv takes. Refill may not sleep, and calls no other method of the driver.
	Refill func()
	// Writes, if not nil, may hold the data of the peer's RDMA WRITEs. A driver may ignore it.
	Writes WriteHolder
	// FixedNumber makes the number independent of random numbers, so that it equals that of another device with the same
	// history. A driver may ignore it.
	FixedNumber bool
}

// SRQHandle is a driver's handle of a shared receive queue.
type SRQHandle struct{ srq *SRQ }

// SetNum sets the number of the queue. CreateSRQ calls it for XRC.
func (h SRQHandle) SetNum(n uint32) { h.srq.num = n }

// SRQ returns the queue for consumers. SRQ may not sleep.
func (h SRQHandle) SRQ() *SRQ { return h.srq }

// Num returns the number of the queue.
func (h SRQHandle) Num() uint32 { return h.srq.num }

// DriverSRQInit holds the parameters of a new shared receive queue: [SRQInitAttr] with the driver's side of each
// object.
type DriverSRQInit struct {
	PD   DriverPD
	Type SRQType
	Attr SRQAttr    // requested capacities; the driver stores the actual ones
	XRCD DriverXRCD // SRQXRC
	CQ   DriverCQ   // SRQXRC
	// Refill is the equivalent of [DriverQPInit.Refill]. The driver also calls Refill before it raises
	// EventSRQLimitReached.
	Refill func()
}
