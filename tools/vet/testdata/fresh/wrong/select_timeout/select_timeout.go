// Package select_timeout: post receive waits for a slot, though for a second at most.
package select_timeout

import (
	"syscall"
	"time"

	"verbena/ib"
)

type qp struct {
	slots chan int
	rq    [64]uint64
}

// PostRecv implements ib.DriverQP.
func (q *qp) PostRecv(wrs []ib.RecvWR) (int, error) {
	for i, wr := range wrs {
		select { // want "nosleep"
		case s := <-q.slots:
			q.rq[s] = wr.ID
		case <-time.After(time.Second):
			return i, syscall.ENOMEM
		}
	}
	return len(wrs), nil
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
	return &qp{slots: make(chan int, 64)}, nil
}
