// Package optional_interface_lacking: post send asks the transport for an optional ability that it has without waiting; another transport waits.
package optional_interface_lacking

import (
	"verbena/ib"
)

type transport interface{ send(b []byte) bool }

type kicker interface{ kick() }

type memory struct{ kicked bool }

func (m *memory) send(b []byte) bool { return len(b) > 0 }
func (m *memory) kick()              { m.kicked = true }

type Wire struct{ ready chan bool }

func (w *Wire) send([]byte) bool { return <-w.ready }
func (w *Wire) kick()            { <-w.ready }

// Probe looks whether a wire works. It may sleep.
func Probe(w *Wire) bool {
	w.kick()
	return w.send(nil)
}

type qp struct{ t transport }

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	for i := range wrs {
		if !q.t.send(wrs[i].Inline) {
			if k, ok := q.t.(kicker); ok {
				k.kick()
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
	return &qp{t: &memory{}}, nil
}
