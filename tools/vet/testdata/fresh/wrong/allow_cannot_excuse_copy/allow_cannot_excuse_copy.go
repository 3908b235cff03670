// Package allow_cannot_excuse_copy: an escape tries to excuse a copy under a lock.
package allow_cannot_excuse_copy

import (
	"sync"

	"verbena/ib"
	"verbena/umem"
)

type qp struct {
	mu   sync.Mutex
	proc *umem.Process
	hdr  [16]byte
}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		err := q.proc.ReadV([][]byte{q.hdr[:]}, wrs[i].RemoteAddr) /* // want "copy" "directive" */ //verbena:allow copy the process is one of ours
		if err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

func open(pid int) *qp {
	p, _ := umem.OpenProcess(pid)
	return &qp{proc: p}
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return open(1), nil
}
