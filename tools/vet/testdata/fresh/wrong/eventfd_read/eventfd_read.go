// Package eventfd_read: poll of a driver reads an eventfd that blocks.
package eventfd_read

import (
	"golang.org/x/sys/unix"
	"verbena/ib"
)

type cq struct {
	efd int
	wcs []ib.WC
}

// Poll implements ib.DriverCQ.
func (c *cq) Poll(wc []ib.WC) (int, error) {
	if err := doorbell(c.efd).consume(); err != nil {
		return 0, err
	}
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[n:]
	return n, nil
}

type doorbell int

func (d doorbell) consume() error {
	var b [8]byte
	_, err := unix.Read(int(d), b[:]) // want "nosleep"
	return err
}

func (*cq) ReqNotify(ib.NotifyFlags) (bool, error) { return false, nil }
func (*cq) Destroy() error                         { return nil }

func open() *cq {
	fd, _ := unix.Eventfd(0, 0)
	return &cq{efd: fd}
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	return open(), nil
}
