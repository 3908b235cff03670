// Package callback_completed: post send reports a completion by the midlayer, under its lock.
package callback_completed

import (
	"sync"

	"verbena/ib"
)

type cq struct {
	mu    sync.Mutex
	h     ib.CQHandle
	armed bool
	wcs   []ib.WC
}

func (c *cq) post(wc ib.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wcs = append(c.wcs, wc)
	if c.armed {
		c.armed = false
		c.h.Completed()
	}
}

type qp struct{ send *cq }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	for i := range wrs {
		q.send.post(ib.WC{ID: wrs[i].ID})
	}
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

func (*cq) Poll([]ib.WC) (int, error)              { return 0, nil }
func (*cq) ReqNotify(ib.NotifyFlags) (bool, error) { return false, nil }
func (*cq) Destroy() error                         { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &qp{send: init.SendCQ.(*cq)}, nil
}

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	return &cq{h: h}, nil
}

// Open is a consumer, with a handler.
func Open(d *ib.Device) (*ib.CQ, error) {
	var count int
	return d.CreateCQ(ib.CQInit{Entries: 8, Handler: func(*ib.CQ) { count++ }})
}
