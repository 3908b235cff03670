// Package base_method_sleeps: a queue pair type has its post receive from an embedded base, which sleeps.
package base_method_sleeps

import (
	"time"

	"verbena/ib"
)

type base struct {
	posted int
	pause  time.Duration
}

// PostRecv is promoted to each kind of queue pair.
func (b *base) PostRecv(wrs []ib.RecvWR) (int, error) {
	b.posted += len(wrs)
	if b.posted > 1000 {
		b.throttle()
	}
	return len(wrs), nil
}

func (b *base) throttle() {
	time.Sleep(b.pause) // want "nosleep"
}

type common struct{ *base }

type qp struct {
	common
}

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
	return &qp{common{&base{pause: time.Millisecond}}}, nil
}
