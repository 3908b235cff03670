package mutex_through_copy

import (
	"sync"

	"verbena/ib"
)

// Device waits for a semaphore before it takes its lock.
type Device struct {
	ib.Driver
	mu  sync.Mutex
	sem chan struct{}
}

func (d *Device) AllocPD(*ib.Udata) (ib.DriverPD, error) {
	d.sem <- struct{}{}
	d.mu.Lock()
	defer d.mu.Unlock()
	return nil, nil
}

func (d *Device) EnterError() {
	d.mu.Lock()
	defer d.mu.Unlock()
}
