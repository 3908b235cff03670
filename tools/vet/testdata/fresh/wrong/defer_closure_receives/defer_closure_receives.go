// Package defer_closure_receives: a deferred closure in poll gives a token back by receiving from a channel.
package defer_closure_receives

import (
	"sync/atomic"

	"verbena/ib"
)

type cq struct {
	tokens chan struct{}
	wcs    [8]ib.WC
	n      atomic.Int32
}

// Poll implements ib.DriverCQ.
func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	defer func() {
		if n > 0 {
			<-c.tokens // want "nosleep"
		}
	}()
	n = copy(wc, c.wcs[:c.n.Load()])
	return n, nil
}

func (*cq) ReqNotify(ib.NotifyFlags) (bool, error) { return false, nil }
func (*cq) Destroy() error                         { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	return &cq{tokens: make(chan struct{}, 8)}, nil
}
