// Package wrapper_sleeps_in_destroy: a driver wraps another one's queue pairs by an embedded interface; what sleeps is modify and destroy.
package wrapper_sleeps_in_destroy

import (
	"os"

	"golang.org/x/sys/unix"
	"verbena/ib"
)

type lower struct{ f *os.File }

// Destroy may sleep.
func (l *lower) Destroy() error { return unix.Flock(int(l.f.Fd()), unix.LOCK_EX) }

// Modify may sleep.
func (l *lower) Modify(*ib.QPAttr, ib.QPAttrMask, *ib.Udata) error { return l.f.Sync() }

func (*lower) PostSend(wrs []ib.SendWR) (int, error)  { return len(wrs), nil }
func (*lower) PostRecv(wrs []ib.RecvWR) (int, error)  { return len(wrs), nil }
func (*lower) State() ib.QPState                      { return ib.QPRTS }
func (*lower) Query(ib.QPAttrMask) (ib.QPAttr, error) { return ib.QPAttr{}, nil }

type traced struct {
	ib.DriverQP
	sent int
}

// PostSend implements ib.DriverQP.
func (t *traced) PostSend(wrs []ib.SendWR) (int, error) {
	t.sent += len(wrs)
	return t.DriverQP.PostSend(wrs)
}

// Unwrap returns what is below.
func (t *traced) Unwrap() ib.DriverQP { return t.DriverQP }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	return &traced{DriverQP: &lower{os.Stdin}}, nil
}
