// Package optional_interface: post send asks the transport for an optional ability by a type assertion, and waits for it.
package optional_interface

import (
	"verbena/ib"
)

type transport interface{ send(b []byte) bool }

type waiter interface{ wait() }

type wire struct{ ready chan bool }

func (w *wire) send(b []byte) bool { return len(b) > 0 }

func (w *wire) wait() {
	for ok := false; !ok; {
		ok = <-w.ready // want "nosleep"
	}
}

type qp struct{ t transport }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	for i := range wrs {
		if !q.t.send(wrs[i].Inline) {
			if w, ok := q.t.(waiter); ok {
				w.wait()
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
	return &qp{t: &wire{make(chan bool)}}, nil
}
