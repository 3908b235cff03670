// Package base_method_shadowed: an embedded base has a post receive that sleeps, which the queue pair shadows by its own.
package base_method_shadowed

import (
	"time"

	"verbena/ib"
)

type base struct {
	posted int
	pause  time.Duration
}

// PostRecv is for tools, which have time.
func (b *base) PostRecv(n int) {
	b.posted += n
	time.Sleep(b.pause)
}

type qp struct {
	base
}

// PostRecv implements ib.DriverQP.
func (q *qp) PostRecv(wrs []ib.RecvWR) (int, error) {
	q.posted += len(wrs)
	return len(wrs), nil
}

// Slowly is for tools.
func Slowly(q *qp) { q.base.PostRecv(1) }

func (*qp) PostSend(wrs []ib.SendWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &qp{}, nil
}
