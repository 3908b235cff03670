// Package allow_excuses_nothing: an escape stands where nothing is to be excused.
package allow_excuses_nothing

import (
	"verbena/ib"
)

type cq struct {
	waiting chan ib.WC
}

// Poll implements ib.DriverCQ.
func (c *cq) Poll(wc []ib.WC) (int, error) {
	n := len(c.waiting) /* // want "directive" */ //verbena:allow nosleep the length of a channel is known
	return min(n, len(wc)), nil
}

func (*cq) ReqNotify(ib.NotifyFlags) (bool, error) { return false, nil }
func (*cq) Destroy() error                         { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	return &cq{waiting: make(chan ib.WC, 4)}, nil
}
