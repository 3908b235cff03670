package hotplug_remove_lock

import (
	"sync"

	"verbena/ib"
)

// Card is unregistered with the lock that a client's Remove takes.
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
	c.pull(core, h) // want "hotplug: .*Pull calls .*pull with hotplug_remove_lock.Card.mu held"
	c.mu.Unlock()
}

func (c *Card) pull(core *ib.Core, h *ib.DeviceHandle) { core.Unregister(h) }
