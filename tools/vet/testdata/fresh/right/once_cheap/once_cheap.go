// Package once_cheap: the first post send makes a map, under a sync.Once; the connection is made when the queue pair is.
package once_cheap

import (
	"net"
	"sync"

	"verbena/ib"
)

type qp struct {
	once sync.Once
	keys map[uint32]bool
	conn net.Conn
}

func (q *qp) prepare() { q.keys = make(map[uint32]bool) }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.once.Do(q.prepare)
	return len(wrs), nil
}

func (*qp) PostRecv(wrs []ib.RecvWR) (int, error)             { return len(wrs), nil }
func (*qp) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return nil }
func (*qp) State() ib.QPState                                 { return ib.QPRTS }
func (*qp) Query(ib.QPAttrMask) (ib.QPAttr, error)            { return ib.QPAttr{}, nil }
func (*qp) Destroy() error                                    { return nil }

func newQP(addr string) *qp {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil
	}
	return &qp{conn: conn}
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return newQP("192.0.2.1:4791"), nil
}
