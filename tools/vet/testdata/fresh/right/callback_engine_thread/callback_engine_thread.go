// Package callback_engine_thread: the driver's engine, a thread of its own, holds and runs callbacks, with no lock.
package callback_engine_thread

import (
	"sync"

	"verbena/ib"
)

type engine struct {
	mu   sync.Mutex
	due  []ib.CQHandle
	h    *ib.DeviceHandle
	wake chan struct{}
}

func (e *engine) loop() {
	for range e.wake {
		e.h.HoldCallbacks()
		e.step()
		e.h.RunCallbacks()
	}
}

func (e *engine) step() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, cq := range e.due {
		cq.Completed()
	}
	e.due = e.due[:0]
}

type qp struct{ e *engine }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	select {
	case q.e.wake <- struct{}{}:
	default:
	}
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

type driver struct {
	ib.Driver
	e *engine
}

// New makes a device.
func New(lower ib.Driver) *ib.DeviceHandle {
	d := &driver{lower, &engine{wake: make(chan struct{}, 1)}}
	d.e.h = ib.NewDevice("x0", d, nil)
	go d.e.loop()
	return d.e.h
}

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(ib.QPHandle, *ib.DriverQPInit, *ib.Udata) (ib.DriverQP, error) {
	return &qp{d.e}, nil
}
