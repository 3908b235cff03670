// Package allow_with_reason: escapes on the line, on the line above, and on the function, each with a reason and something to excuse.
package allow_with_reason

import (
	"time"

	"verbena/ib"
)

type qp struct{ slow bool }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	if q.slow {
		time.Sleep(time.Microsecond) //verbena:allow nosleep the hardware needs this microsecond
	}
	return len(wrs), nil
}

// PostRecv implements ib.DriverQP.
func (q *qp) PostRecv(wrs []ib.RecvWR) (int, error) {
	if q.slow {
		//verbena:allow nosleep the hardware needs this microsecond
		time.Sleep(time.Microsecond)
	}
	return len(wrs), nil
}

func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

type cq struct{ slow bool }

// Poll implements ib.DriverCQ.
//
//verbena:allow nosleep the hardware needs this microsecond
func (c *cq) Poll(wc []ib.WC) (int, error) {
	if c.slow {
		time.Sleep(time.Microsecond)
	}
	return 0, nil
}

func (*cq) ReqNotify(ib.NotifyFlags) (bool, error) { return false, nil }
func (*cq) Destroy() error                         { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &qp{true}, nil
}

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	return &cq{true}, nil
}
