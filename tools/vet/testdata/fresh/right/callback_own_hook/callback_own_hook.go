// Package callback_own_hook: the driver calls a hook of its own from post send, which has the type of a handler.
package callback_own_hook

import (
	"sync/atomic"

	"verbena/ib"
)

type cq struct {
	obj   *ib.CQ
	trace func(*ib.CQ)
}

type qp struct{ send *cq }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	if q.send.trace != nil {
		q.send.trace(q.send.obj)
	}
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

var traced atomic.Int64

func count(*ib.CQ) { traced.Add(1) }

var only = &cq{trace: count}

// Open is a consumer, with a handler.
func Open(d *ib.Device) (err error) {
	var n int
	only.obj, err = d.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) { n++ }})
	return err
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &qp{send: only}, nil
}
