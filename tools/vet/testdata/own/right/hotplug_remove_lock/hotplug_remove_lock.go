package hotplug_remove_lock

import (
	"sync"

	"verbena/ib"
)

// Card lets go of the lock that a client's Remove takes before a device is unregistered.
type Card struct {
	mu   sync.Mutex
	devs map[*ib.Device]bool
}

func (c *Card) Client() *ib.Client {
	return &ib.Client{Name: "card", Remove: func(d *ib.Device, _ any) { c.forget(d) }}
}

func (c *Card) forget(d *ib.Device) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.devs, d)
}

func (c *Card) Pull(core *ib.Core, h *ib.DeviceHandle) {
	c.mu.Lock()
	n := len(c.devs)
	c.mu.Unlock()
	if n > 0 {
		core.Unregister(h)
	}
}
