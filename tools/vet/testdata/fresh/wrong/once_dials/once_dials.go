// Package once_dials: the first post send connects to a server, under a sync.Once.
package once_dials

import (
	"net"
	"sync"

	"verbena/ib"
)

type qp struct {
	once sync.Once
	addr string
	conn net.Conn
	err  error
}

func (q *qp) connect() {
	q.conn, q.err = net.Dial("tcp", q.addr) // want "nosleep"
}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.once.Do(q.connect)
	if q.err != nil {
		return 0, q.err
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
	return &qp{addr: "192.0.2.1:4791"}, nil
}
