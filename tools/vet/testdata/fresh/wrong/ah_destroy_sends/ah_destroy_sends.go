// Package ah_destroy_sends: destroying an address handle hands it to a reaper by a channel that may be full.
package ah_destroy_sends

import (
	"verbena/ib"
)

type ah struct {
	attr ib.AHAttr
	reap chan<- *ah
}

// Destroy implements ib.DriverAH.
func (a *ah) Destroy() error {
	retire(a.reap, a)
	return nil
}

func retire(to chan<- *ah, a *ah) {
	to <- a // want "nosleep"
}

func (*ah) Modify(*ib.AHAttr) error   { return nil }
func (*ah) Query() (ib.AHAttr, error) { return ib.AHAttr{}, nil }

var reaped = make(chan *ah, 128)

// Reap frees what has been destroyed.
func Reap() {
	for range reaped {
	}
}

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateAH implements ib.AHDriver.
func (d *driver) CreateAH(_ ib.DriverPD, attr *ib.AHAttr, _ *ib.Udata) (ib.DriverAH, error) {
	return &ah{attr: *attr, reap: reaped}, nil
}
