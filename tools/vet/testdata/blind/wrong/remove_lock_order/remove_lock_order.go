package remove_lock_order

import (
	"sync"

	"verbena/ib"
)

type client struct {
	core  *ib.Core
	c     ib.Client
	mu    sync.Mutex
	ports map[string]int
}

func (s *client) init() {
	s.c = ib.Client{Name: "x", Add: func(d *ib.Device) (any, error) { return d.Name(), nil }, Remove: s.gone}
}

func (s *client) gone(d *ib.Device, data any) {
	s.mu.Lock()
	delete(s.ports, data.(string))
	s.mu.Unlock()
}

func (s *client) drop() { s.core.UnregisterClient(&s.c) }

func (s *client) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports = nil
	s.drop() // want "hotplug: .*Close calls .*drop with remove_lock_order.client.mu held, for which .*gone"
}
