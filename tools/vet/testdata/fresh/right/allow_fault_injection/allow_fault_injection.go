// Package allow_fault_injection: a test's driver holds up poll on demand, and says so where it does.
package allow_fault_injection

import (
	"verbena/ib"
)

type cq struct {
	stop chan struct{}
	n    int
}

// Poll implements ib.DriverCQ.
func (c *cq) Poll(wc []ib.WC) (int, error) {
	if c.stop != nil {
		<-c.stop //verbena:allow nosleep a test holds up this queue on purpose
	}
	return c.n, nil
}

func (*cq) ReqNotify(ib.NotifyFlags) (bool, error) { return false, nil }
func (*cq) Destroy() error                         { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	return &cq{}, nil
}
