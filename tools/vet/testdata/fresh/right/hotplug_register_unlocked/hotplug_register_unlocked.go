// Package hotplug_register_unlocked: a device is registered when the lock, that the client's Add takes, has been let go.
package hotplug_register_unlocked

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

func (m *Manager) known(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.devices[name] != nil
}

// Plug brings a device in.
func (m *Manager) Plug(h *ib.DeviceHandle) error {
	if m.known(h.Device().Name()) {
		return os.ErrExist
	}
	return m.core.Register(h)
}
