// Package callback_run_in_method: post send holds the callbacks, and runs them before it returns.
package callback_run_in_method

import (
	"verbena/ib"
)

type runner interface {
	HoldCallbacks()
	RunCallbacks()
}

type qp struct {
	dev runner
	cq  ib.CQHandle
}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.dev.HoldCallbacks()
	for range wrs {
		q.cq.Completed()
	}
	q.dev.RunCallbacks() // want "callback"
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

type driver struct {
	ib.Driver
	h *ib.DeviceHandle
}

// New makes a device.
func New(lower ib.Driver) *ib.DeviceHandle {
	d := &driver{Driver: lower}
	d.h = ib.NewDevice("x0", d, nil)
	return d.h
}

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &qp{dev: d.h}, nil
}
