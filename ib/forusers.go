package ib

import "verbena/ib/internal/gate"

// ForUser returns what package ib/user is made of. Other packages cannot make the key. It may not sleep.
func ForUser(k gate.Key) UserSide {
	k.Check()
	return UserSide{k}
}

// UserSide has the consumer's calls with what a user context adds to them: the driver's private data ([Udata]), and
// addresses as the program gives them. Package ib/user says what each does; the zero UserSide does nothing but panic.
type UserSide struct{ key gate.Key }

// AllocPD may sleep.
func (s UserSide) AllocPD(d *Device, u *Udata) (*PD, error) {
	s.key.Check()
	defer d.sleeps("user.AllocPD").leave()
	return d.allocPD(u)
}

// RegMR may sleep.
func (s UserSide) RegMR(pd *PD, init MRInit, u *Udata) (*MR, error) {
	s.key.Check()
	defer pd.sleeps("user.RegMR").leave()
	return pd.regMR(init, u)
}

// ReregMR may sleep.
func (s UserSide) ReregMR(mr *MR, flags MRChangeFlags, to MRChange, u *Udata) error {
	s.key.Check()
	defer mr.sleeps("user.ReregMR").leave()
	return mr.reregister(flags, to, u)
}

// AllocMW may sleep.
func (s UserSide) AllocMW(pd *PD, kind MWType, u *Udata) (*MW, error) {
	s.key.Check()
	defer pd.sleeps("user.AllocMW").leave()
	return pd.allocMW(kind, u)
}

// CreateCQ may sleep.
func (s UserSide) CreateCQ(d *Device, init CQInit, u *Udata) (*CQ, error) {
	s.key.Check()
	defer d.sleeps("user.CreateCQ").leave()
	return d.createCQ(init, u)
}

// ResizeCQ may sleep.
func (s UserSide) ResizeCQ(cq *CQ, entries int, u *Udata) error {
	s.key.Check()
	defer cq.sleeps("user.ResizeCQ").leave()
	return cq.resizeTo(entries, u)
}

// CreateQP may sleep.
func (s UserSide) CreateQP(pd *PD, init QPInitAttr, u *Udata) (*QP, error) {
	s.key.Check()
	defer pd.sleeps("user.CreateQP").leave()
	return pd.createQP(init, u)
}

// ModifyQP may sleep.
func (s UserSide) ModifyQP(qp *QP, attr QPAttr, mask QPAttrMask, u *Udata) error {
	s.key.Check()
	defer qp.sleeps("user.ModifyQP").leave()
	return qp.change(attr, mask, u)
}

// CreateSRQ may sleep.
func (s UserSide) CreateSRQ(pd *PD, init SRQInitAttr, u *Udata) (*SRQ, error) {
	s.key.Check()
	defer pd.sleeps("user.CreateSRQ").leave()
	return pd.createSRQ(init, u)
}

// ModifySRQ may sleep.
func (s UserSide) ModifySRQ(srq *SRQ, attr SRQAttr, mask SRQAttrMask, u *Udata) error {
	s.key.Check()
	defer srq.sleeps("user.ModifySRQ").leave()
	return srq.change(attr, mask, u)
}

// CreateAH may not sleep.
func (s UserSide) CreateAH(pd *PD, attr *AHAttr, u *Udata) (*AH, error) {
	s.key.Check()
	return pd.createAH(attr, u)
}

// AllocXRCD may sleep.
func (s UserSide) AllocXRCD(d *Device, u *Udata) (*XRCD, error) {
	s.key.Check()
	defer d.sleeps("user.AllocXRCD").leave()
	return d.allocXRCD(u)
}

// Driver may not sleep.
func (s UserSide) Driver(d *Device) Driver {
	s.key.Check()
	return d.drv
}

// Queue may not sleep.
func (s UserSide) Queue(qp *QP) (UserQP, bool) {
	s.key.Check()
	q, ok := As[UserQP](qp.drv)
	if ok && qp.check != nil {
		q = &checkedQueue{q, qp}
	}
	return q, ok
}

// HoldCallbacks may not sleep.
func (s UserSide) HoldCallbacks(d *Device, h *Hold) {
	s.key.Check()
	h.Add(&d.handle)
}

// Fail may not sleep.
func (s UserSide) Fail(d *Device, why error) {
	s.key.Check()
	d.handle.Fail(why)
}
