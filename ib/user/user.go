package user

import (
	"verbena/ib"
	"verbena/ib/internal/gate"
)

var side = ib.ForUser(gate.Open())

// AllocPD is [ib.Device.AllocPD]. It may sleep.
func AllocPD(d *ib.Device, u *ib.Udata) (*ib.PD, error) { return side.AllocPD(d, u) }

// RegMR is [ib.PD.RegMR], with init.IOVA as it is. It may sleep.
func RegMR(pd *ib.PD, init ib.MRInit, u *ib.Udata) (*ib.MR, error) { return side.RegMR(pd, init, u) }

// ReregMR is [ib.MR.Rereg], with to.IOVA as it is. It may sleep.
func ReregMR(mr *ib.MR, flags ib.MRChangeFlags, to ib.MRChange, u *ib.Udata) error {
	return side.ReregMR(mr, flags, to, u)
}

// AllocMW is [ib.PD.AllocMW]. It may sleep.
func AllocMW(pd *ib.PD, kind ib.MWType, u *ib.Udata) (*ib.MW, error) {
	return side.AllocMW(pd, kind, u)
}

// CreateCQ is [ib.Device.CreateCQ]. It may sleep.
func CreateCQ(d *ib.Device, init ib.CQInit, u *ib.Udata) (*ib.CQ, error) {
	return side.CreateCQ(d, init, u)
}

// ResizeCQ is [ib.CQ.Resize]. It may sleep.
func ResizeCQ(cq *ib.CQ, entries int, u *ib.Udata) error { return side.ResizeCQ(cq, entries, u) }

// CreateQP is [ib.PD.CreateQP]. It may sleep.
func CreateQP(pd *ib.PD, init ib.QPInitAttr, u *ib.Udata) (*ib.QP, error) {
	return side.CreateQP(pd, init, u)
}

// ModifyQP is [ib.QP.Modify]. It may sleep.
func ModifyQP(qp *ib.QP, attr ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	return side.ModifyQP(qp, attr, mask, u)
}

// CreateSRQ is [ib.PD.CreateSRQ]. It may sleep.
func CreateSRQ(pd *ib.PD, init ib.SRQInitAttr, u *ib.Udata) (*ib.SRQ, error) {
	return side.CreateSRQ(pd, init, u)
}

// ModifySRQ is [ib.SRQ.Modify]. It may sleep.
func ModifySRQ(srq *ib.SRQ, attr ib.SRQAttr, mask ib.SRQAttrMask, u *ib.Udata) error {
	return side.ModifySRQ(srq, attr, mask, u)
}

// CreateAH is [ib.PD.CreateAH]. It may not sleep.
func CreateAH(pd *ib.PD, attr *ib.AHAttr, u *ib.Udata) (*ib.AH, error) {
	return side.CreateAH(pd, attr, u)
}

// AllocXRCD is [ib.Device.AllocXRCD]. It may sleep.
func AllocXRCD(d *ib.Device, u *ib.Udata) (*ib.XRCD, error) { return side.AllocXRCD(d, u) }

// AllocContext announces a user context to a driver that wants to hear of them ([ib.UserContexter]). It may sleep.
func AllocContext(d *ib.Device, u *ib.Udata) error {
	if c, ok := DriverAs[ib.UserContexter](d); ok {
		return c.AllocUserContext(u)
	}
	return nil
}

// DeallocContext ends what AllocContext began. It may sleep.
func DeallocContext(d *ib.Device, c ib.UserContext) {
	if u, ok := DriverAs[ib.UserContexter](d); ok {
		u.DeallocUserContext(c)
	}
}

// Disassociate cuts a context off from the device ([ib.Disassociator]). It reports false if the driver cannot. It may sleep.
func Disassociate(d *ib.Device, c ib.UserContext) bool {
	h, ok := DriverAs[ib.Disassociator](d)
	if ok {
		h.Disassociate(c)
	}
	return ok
}

// Queue returns the queue pair's send queue that is shared with the program, for its doorbell. It may not sleep.
func Queue(qp *ib.QP) (ib.UserQP, bool) { return side.Queue(qp) }

// DriverAs returns an ability of the device's driver, such as its version of the user ABI. It may not sleep.
func DriverAs[T any](d *ib.Device) (T, bool) { return ib.As[T](side.Driver(d)) }

// HoldCallbacks adds the device to h ([ib.Hold.Add]), for the thread that carries out a program's call. It may not sleep.
func HoldCallbacks(d *ib.Device, h *ib.Hold) { side.HoldCallbacks(d, h) }

// Fail is [ib.DeviceHandle.Fail], for a panic in a program's call. It may not sleep.
func Fail(d *ib.Device, why error) { side.Fail(d, why) }
