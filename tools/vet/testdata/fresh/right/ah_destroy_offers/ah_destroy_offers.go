// Package ah_destroy_offers: destroying an address handle offers it to a reaper, and drops it where that is busy.
package ah_destroy_offers

import (
	"sync/atomic"

	"verbena/ib"
)

type ah struct {
	attr ib.AHAttr
	reap chan<- *ah
}

// Destroy implements ib.DriverAH.
func (a *ah) Destroy() error {
	if !offer(a.reap, a) {
		dropped.Add(1)
	}
	return nil
}

func offer(to chan<- *ah, a *ah) bool {
	select {
	case to <- a:
		return true
	default:
	}
	return false
}

var dropped atomic.Int64

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
