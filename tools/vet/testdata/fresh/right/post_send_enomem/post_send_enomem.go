// Package post_send_enomem: post send refuses when the ring is full; only destroy waits on the condition, which lets go of the lock.
package post_send_enomem

import (
	"sync"
	"syscall"

	"verbena/ib"
)

type qp struct {
	mu   sync.Mutex
	idle *sync.Cond
	ring []uint64
	size int
}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		if len(q.ring) == q.size {
			return i, syscall.ENOMEM
		}
		q.ring = append(q.ring, wrs[i].ID)
	}
	q.idle.Broadcast()
	return len(wrs), nil
}

// Destroy implements ib.DriverQP. It may sleep.
func (q *qp) Destroy() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ring) > 0 {
		q.idle.Wait()
	}
	return nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }

func newQP(size int) *qp {
	q := &qp{size: size}
	q.idle = sync.NewCond(&q.mu)
	return q
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return newQP(int(init.Cap.MaxSendWR)), nil
}
