// Package serial_modify_unlocked: modify numbers its command under the lock of the device, and waits without it.
package serial_modify_unlocked

import (
	"sync"

	"verbena/ib"
)

type firmware struct {
	mu   sync.Mutex
	next int
	wait map[int]chan error
}

func (f *firmware) begin() chan error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	c := make(chan error, 1)
	f.wait[f.next] = c
	return c
}

// Answer is called by the firmware's thread.
func (f *firmware) Answer(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case f.wait[n] <- err:
	default:
	}
	delete(f.wait, n)
}

type qp struct{ fw *firmware }

// Modify implements ib.DriverQP. It may sleep.
func (q *qp) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, _ *ib.Udata) error {
	return <-q.fw.begin()
}

func (*qp) PostSend(wrs []ib.SendWR) (int, error)  { return len(wrs), nil }
func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)  { return len(wrs), nil }
func (*qp) State() ib.QPState                      { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error) { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                         { return nil }

var fw = &firmware{wait: map[int]chan error{}}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &qp{fw: fw}, nil
}
