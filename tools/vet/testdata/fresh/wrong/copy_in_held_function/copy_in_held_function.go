// Package copy_in_held_function: a function that says that its callers hold the lock copies from a process, through the interface.
package copy_in_held_function

import (
	"sync"

	"verbena/ib"
	"verbena/umem"
)

type srq struct {
	mu    sync.Mutex
	space umem.Space
	head  [64]byte
}

// refill reads the head of the ring.
//
//verbena:held mu
func (s *srq) refill(at uint64) error {
	return s.space.ReadV([][]byte{s.head[:]}, at) // want "copy"
}

// PostRecv implements ib.DriverSRQ.
func (s *srq) PostRecv(wrs []ib.RecvWR) (int, error) {
	s.mu.Lock()
	err := s.refill(0)
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return len(wrs), nil
}

func (*srq) Modify(*ib.SRQAttr, ib.SRQAttrMask, *ib.Udata) error { return nil }
func (*srq) Query() (ib.SRQAttr, error)                          { return ib.SRQAttr{}, nil }
func (*srq) Destroy() error                                      { return nil }

func open(pid int) *srq {
	p, err := umem.OpenProcess(pid)
	if err != nil {
		return nil
	}
	return &srq{space: p}
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateSRQ implements ib.SRQDriver.
func (d *driver) CreateSRQ(h ib.SRQHandle, init *ib.DriverSRQInit, _ *ib.Udata) (ib.DriverSRQ, error) {
	return open(1), nil
}
