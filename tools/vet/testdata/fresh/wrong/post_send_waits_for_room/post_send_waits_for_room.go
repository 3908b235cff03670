// Package post_send_waits_for_room: post send waits on a condition until the ring has room.
package post_send_waits_for_room

import (
	"sync"

	"verbena/ib"
)

type qp struct {
	mu   sync.Mutex
	room *sync.Cond
	ring []uint64
	size int
}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		for len(q.ring) == q.size {
			q.room.Wait() // want "nosleep"
		}
		q.ring = append(q.ring, wrs[i].ID)
	}
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

func newQP(size int) *qp {
	q := &qp{size: size}
	q.room = sync.NewCond(&q.mu)
	return q
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return newQP(int(init.Cap.MaxSendWR)), nil
}
