package mutex_through_copy

import (
	"sync"

	"verbena/ib"
)

// List waits for a semaphore with its lock held; an error state that takes the lock waits for it.
type Device struct {
	ib.Driver
	mu  sync.Mutex
	sem chan struct{}
}

func (d *Device) AllocPD(*ib.Udata) (ib.DriverPD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sem <- struct{}{}
	return nil, nil
}

func (d *Device) EnterError() {
	d.mu.Lock() // want "nosleep: .*EnterError.* may sleep: it locks mutex_through_copy.Device.mu"
	defer d.mu.Unlock()
}
