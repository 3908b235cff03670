// Package callback_registry_in_modify: modify looks up the consumer's event function in a map, and calls it.
package callback_registry_in_modify

import (
	"sync"

	"verbena/ib"
)

type listener func(qp *ib.QP, e ib.EventType)

// Listeners are the event functions of queue pairs.
var Listeners sync.Map

type qp struct {
	h ib.QPHandle
}

// Modify implements ib.DriverQP.
func (q *qp) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, _ *ib.Udata) error {
	if attr.State == ib.QPSQD {
		q.tell(ib.EventSQDrained)
	}
	return nil
}

func (q *qp) tell(e ib.EventType) {
	if f, ok := Listeners.Load(q.h.Num()); ok {
		f.(listener)(q.h.QP(), e) // want "callback"
	}
}

func (*qp) PostSend(wrs []ib.SendWR) (int, error)  { return len(wrs), nil }
func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)  { return len(wrs), nil }
func (*qp) State() ib.QPState                      { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error) { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                         { return nil }

type Client struct{ drained bool }

func (c *Client) event(*ib.QP, ib.EventType) { c.drained = true }

// Make makes a queue pair.
func (c *Client) Make(pd *ib.PD, cq *ib.CQ) error {
	qp, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Event: c.event})
	if err == nil {
		Listeners.Store(qp.Num(), listener(c.event))
	}
	return err
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &qp{h: h}, nil
}
