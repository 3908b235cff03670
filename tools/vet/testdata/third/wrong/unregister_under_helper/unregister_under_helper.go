// Package unregister_under_helper unregisters its client in a function that a helper calls with a lock that Remove
// takes.
package unregister_under_helper

import (
	"sync"

	"verbena/ib"
)

type service struct {
	mu      sync.Mutex
	core    *ib.Core
	client  *ib.Client
	devices map[*ib.Device]bool
}

func Start(core *ib.Core) error {
	s := &service{core: core, devices: map[*ib.Device]bool{}}
	s.client = &ib.Client{Name: "service", Add: s.add, Remove: s.remove}
	if err := core.RegisterClient(s.client); err != nil {
		return err
	}
	s.stop()
	return nil
}

func (s *service) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *service) add(d *ib.Device) (any, error) {
	s.with(func() { s.devices[d] = true })
	return nil, nil
}

func (s *service) remove(d *ib.Device, _ any) {
	s.with(func() { delete(s.devices, d) })
}

func (s *service) stop() {
	s.with(func() { // want "hotplug: .* with .*service.mu held"
		s.core.UnregisterClient(s.client)
	})
}
