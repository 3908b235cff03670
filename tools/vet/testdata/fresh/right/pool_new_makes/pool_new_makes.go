// Package pool_new_makes: the New function of a sync.Pool makes a buffer; another pool reads a file for others.
package pool_new_makes

import (
	"os"
	"sync"

	"verbena/ib"
)

type qp struct{ n int }

type buffer struct{ b [64]byte }

var buffers = sync.Pool{New: func() any { return new(buffer) }}

var seeds = sync.Pool{New: func() any {
	b, _ := os.ReadFile("/etc/machine-id")
	return &b
}}

// Seed is for those who have time.
func Seed() byte {
	b := seeds.Get().(*[]byte)
	defer seeds.Put(b)
	return (*b)[0]
}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	for i := range wrs {
		q.n += copy(b.b[:], wrs[i].Inline)
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
