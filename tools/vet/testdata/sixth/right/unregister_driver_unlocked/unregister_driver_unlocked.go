// Package unregister_driver_unlocked unregisters devices without the locks that the methods of their drivers take.
package unregister_driver_unlocked

import (
	"sync"

	"verbena/ib"
)

// Counted has a lock for its methods, and one for the owner of the device.
type Counted struct {
	ib.Driver
	mu     sync.Mutex
	life   sync.Mutex
	core   *ib.Core
	handle *ib.DeviceHandle
	closed bool
	n      int
}

func (d *Counted) CreateCQ(h ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	d.locked(func() error { d.n++; return nil })
	return d.Driver.CreateCQ(h, attr, u)
}

func (d *Counted) locked(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f()
}

// Stop holds only the lock of the owner.
func (d *Counted) Stop() error {
	d.life.Lock()
	defer d.life.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	return d.core.Unregister(d.handle)
}

// Close takes the handle out, and unregisters it afterwards.
func (d *Counted) Close() error {
	var h *ib.DeviceHandle
	d.locked(func() error {
		h, d.handle = d.handle, nil
		return nil
	})
	if h == nil {
		return nil
	}
	return d.unlocked(func() error { return d.core.Unregister(h) })
}

// unlocked calls a function after it has released the lock.
func (d *Counted) unlocked(f func() error) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	return f()
}
