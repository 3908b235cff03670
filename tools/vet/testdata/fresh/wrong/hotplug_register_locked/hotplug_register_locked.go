// Package hotplug_register_locked: a device is registered under a lock that the client's Add takes.
package hotplug_register_locked

import (
	"os"
	"sync"

	"verbena/ib"
)

type Manager struct {
	mu      sync.Mutex
	core    *ib.Core
	devices map[string]*ib.Device
}

func (m *Manager) add(d *ib.Device) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices[d.Name()] = d
	return nil, nil
}

func (m *Manager) remove(d *ib.Device, _ any) {}

// Start begins to follow devices.
func (m *Manager) Start() error {
	return m.core.RegisterClient(&ib.Client{Name: "manager", Add: m.add, Remove: m.remove})
}

// Plug brings a device in.
func (m *Manager) Plug(h *ib.DeviceHandle) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.devices[h.Device().Name()] != nil {
		return os.ErrExist
	}
	return m.core.Register(h) // want "hotplug"
}
