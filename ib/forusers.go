package ib

import "verbena/internal/gate"

// ForUser returns the calls for user contexts. Only package uverbs acts as a user context. internal/layers checks that
// no other package imports the key. ForUser may not sleep.
func ForUser(k gate.Key) UserSide {
	k.MustBeValid()
	return UserSide{k}
}

// UserSide has the consumer's calls with two additions for user contexts. One is driver-private data ([Udata]). The
// other is unmodified addresses, because a program may register a region at address 0. The zero UserSide panics.
type UserSide struct{ key gate.Key }

// AllocPD is [Device.AllocPD]. AllocPD may sleep.
func (s UserSide) AllocPD(d *Device, u *Udata) (*PD, error) {
	s.key.MustBeValid()
	defer d.enterSleeping("user.AllocPD").leave()
	return d.allocPD(u)
}

// RegMR is [PD.RegMR], but does not change init.IOVA. RegMR may sleep.
func (s UserSide) RegMR(pd *PD, init MRInit, u *Udata) (*MR, error) {
	s.key.MustBeValid()
	defer pd.enterSleeping("user.RegMR").leave()
	return pd.regMR(init, u)
}

// ReregMR is [MR.Rereg], but does not change to.IOVA. ReregMR may sleep.
func (s UserSide) ReregMR(mr *MR, flags MRChangeFlags, to MRChange, u *Udata) error {
	s.key.MustBeValid()
	defer mr.enterSleeping("user.ReregMR").leave()
	return mr.changeRegionNamingErrors(flags, to, u)
}

// AllocMW is [PD.AllocMW]. AllocMW may sleep.
func (s UserSide) AllocMW(pd *PD, kind MWType, u *Udata) (*MW, error) {
	s.key.MustBeValid()
	defer pd.enterSleeping("user.AllocMW").leave()
	return pd.allocMW(kind, u)
}

// CreateCQ is [Device.CreateCQ]. CreateCQ may sleep.
func (s UserSide) CreateCQ(d *Device, init CQInit, u *Udata) (*CQ, error) {
	s.key.MustBeValid()
	defer d.enterSleeping("user.CreateCQ").leave()
	return d.createCQ(init, u)
}

// ResizeCQ is [CQ.Resize]. ResizeCQ may sleep.
func (s UserSide) ResizeCQ(cq *CQ, entries int, u *Udata) error {
	s.key.MustBeValid()
	defer cq.enterSleeping("user.ResizeCQ").leave()
	return cq.resize(entries, u)
}

// CreateQP is [PD.CreateQP]. CreateQP may sleep.
func (s UserSide) CreateQP(pd *PD, init QPInitAttr, u *Udata) (*QP, error) {
	s.key.MustBeValid()
	defer pd.enterSleeping("user.CreateQP").leave()
	return pd.createQP(init, u)
}

// ModifyQP is [QP.Modify]. ModifyQP may sleep.
func (s UserSide) ModifyQP(qp *QP, attr QPAttr, mask QPAttrMask, u *Udata) error {
	s.key.MustBeValid()
	defer qp.enterSleeping("user.ModifyQP").leave()
	return qp.modify(attr, mask, u)
}

// CreateSRQ is [PD.CreateSRQ]. CreateSRQ may sleep.
func (s UserSide) CreateSRQ(pd *PD, init SRQInitAttr, u *Udata) (*SRQ, error) {
	s.key.MustBeValid()
	defer pd.enterSleeping("user.CreateSRQ").leave()
	return pd.createSRQ(init, u)
}

// ModifySRQ is [SRQ.Modify]. ModifySRQ may sleep.
func (s UserSide) ModifySRQ(srq *SRQ, attr SRQAttr, mask SRQAttrMask, u *Udata) error {
	s.key.MustBeValid()
	defer srq.enterSleeping("user.ModifySRQ").leave()
	return srq.modify(attr, mask, u)
}

// CreateAH is [PD.CreateAH]. CreateAH may not sleep.
func (s UserSide) CreateAH(pd *PD, attr *AHAttr, u *Udata) (*AH, error) {
	s.key.MustBeValid()
	return pd.createAH(attr, u)
}

// AllocXRCD is [Device.AllocXRCD]. AllocXRCD may sleep.
func (s UserSide) AllocXRCD(d *Device, u *Udata) (*XRCD, error) {
	s.key.MustBeValid()
	defer d.enterSleeping("user.AllocXRCD").leave()
	return d.allocXRCD(u)
}

// Driver returns the driver of the device, for [As]. Driver may not sleep.
func (s UserSide) Driver(d *Device) Driver {
	s.key.MustBeValid()
	return d.drv
}

// DriverSide returns the driver's side of an object of package ib, such as the [DriverMR] of an [MR]. DriverSide may
// not sleep.
func (s UserSide) DriverSide(o any) any {
	s.key.MustBeValid()
	return o.(driverSide).driverSide()
}

// driverSide is implemented by objects that have a driver's side.
type driverSide interface{ driverSide() any }

func (pd *PD) driverSide() any  { return pd.drv }
func (ah *AH) driverSide() any  { return ah.drv }
func (mr *MR) driverSide() any  { return mr.drv }
func (mw *MW) driverSide() any  { return mw.drv }
func (cq *CQ) driverSide() any  { return cq.drv }
func (qp *QP) driverSide() any  { return qp.drv }
func (s *SRQ) driverSide() any  { return s.drv }
func (x *XRCD) driverSide() any { return x.drv }

// Queue returns the send queue that the queue pair shares with the program. Queue may not sleep.
func (s UserSide) Queue(qp *QP) (UserQP, bool) {
	s.key.MustBeValid()
	return As[UserQP](qp.queue)
}

// HoldCallbacks adds the device to h ([Hold.Add]) on behalf of the thread that executes a program's call. This thread
// must call [Hold.TakeLater] after each [Hold.Run]. HoldCallbacks may not sleep.
func (s UserSide) HoldCallbacks(d *Device, h *Hold) {
	s.key.MustBeValid()
	h.Add(&d.handle)
	h.takes = true
}

// RunLater leaves w to the thread that runs the completion handler of cq now, if that thread holds callbacks by
// [UserSide.HoldCallbacks]. It receives w from [Hold.TakeLater]. RunLater returns false on any other thread. Only the
// completion handler of cq may call RunLater, on its own thread. RunLater may not sleep.
func (s UserSide) RunLater(cq *CQ, w LateWork) bool {
	s.key.MustBeValid()
	h := cq.runBy
	if h == nil || !h.takes {
		return false
	}
	if h.later == nil {
		h.later = h.few[:0]
	}
	h.later = append(h.later, w)
	return true
}

// Fail is [DeviceHandle.Fail], for a panic in a program's call. Fail may not sleep.
func (s UserSide) Fail(d *Device, why error) {
	s.key.MustBeValid()
	d.handle.Fail(why)
}
