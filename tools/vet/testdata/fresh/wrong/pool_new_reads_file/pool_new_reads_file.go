// Package pool_new_reads_file: the New function of a sync.Pool, that post send takes buffers from, reads a file.
package pool_new_reads_file

import (
	"os"
	"sync"

	"verbena/ib"
)

type qp struct{ n int }

var buffers = sync.Pool{New: func() any {
	seed, err := os.ReadFile("/etc/machine-id") // want "nosleep"
	if err != nil {
		return make([]byte, 64)
	}
	return seed
}}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	b := buffers.Get().([]byte)
	defer buffers.Put(b) //nolint
	for i := range wrs {
		q.n += copy(b, wrs[i].Inline)
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
