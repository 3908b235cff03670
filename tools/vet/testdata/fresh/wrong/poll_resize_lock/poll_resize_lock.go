// Package poll_resize_lock: poll takes the mutex that a resize holds while it waits for memory.
package poll_resize_lock

import (
	"sync"

	"verbena/ib"
)

type cq struct {
	mu     sync.Mutex
	wcs    []ib.WC
	memory chan []ib.WC
}

// Poll implements ib.DriverCQ.
func (c *cq) Poll(wc []ib.WC) (int, error) {
	c.mu.Lock() // want "nosleep"
	defer c.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[n:]
	return n, nil
}

// Resize implements ib.CQResizer.
func (c *cq) Resize(entries int, _ *ib.Udata) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := <-c.memory
	c.wcs = append(next[:0], c.wcs...)
	return nil
}

func (*cq) ReqNotify(ib.NotifyFlags) (bool, error) { return false, nil }
func (*cq) Destroy() error                         { return nil }

type driver struct{ ib.Driver }

// New makes a device of the driver above a lower one.
func New(lower ib.Driver) *ib.DeviceHandle { return ib.NewDevice("x0", &driver{lower}, nil) }

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, _ *ib.Udata) (ib.DriverCQ, error) {
	return &cq{memory: make(chan []ib.WC)}, nil
}
