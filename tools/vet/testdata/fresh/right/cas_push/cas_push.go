// Package cas_push: request notify and post send push onto a lock-free list, whose loop makes progress.
package cas_push

import (
	"sync/atomic"

	"verbena/ib"
)

type item struct {
	next *item
	wr   ib.SendWR
}

type qp struct{ head atomic.Pointer[item] }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	for _, wr := range wrs {
		it := &item{wr: wr}
		for {
			old := q.head.Load()
			it.next = old
			if q.head.CompareAndSwap(old, it) {
				break
			}
		}
	}
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
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
