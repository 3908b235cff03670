// Package serial_key_only: registering memory takes the lock of the package for the number of the key, and sleeps without it.
package serial_key_only

import (
	"sync"
	"time"

	"verbena/ib"
	"verbena/umem"
)

var (
	numbering sync.Mutex
	nextKey   uint32
)

func number() uint32 {
	numbering.Lock()
	defer numbering.Unlock()
	nextKey++
	return nextKey
}

type mr struct{}

func (*mr) Dereg() error { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{Driver: lower}, nil) }

// RegMR implements ib.Driver.
func (d *driver) RegMR(h ib.MRHandle, _ ib.DriverPD, r *umem.Region, a ib.AccessFlags, _ *ib.Udata) (ib.DriverMR, error) {
	k := number()
	h.SetKeys(k, k)
	time.Sleep(100 * time.Microsecond)
	return &mr{}, nil
}
