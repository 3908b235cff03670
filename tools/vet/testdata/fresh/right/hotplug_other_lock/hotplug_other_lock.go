// Package hotplug_other_lock: a client goes under a lock that serialises starts and stops, which no callback takes.
package hotplug_other_lock

import (
	"context"
	"sync"

	"verbena/ib"
)

type service struct {
	life  sync.Mutex // Start and Stop
	state sync.Mutex
	core  *ib.Core
	cl    *ib.Client
	gone  int
}

// New makes a service.
func New(core *ib.Core) *service {
	s := &service{core: core}
	s.cl = &ib.Client{Name: "service", Add: func(*ib.Device) (any, error) { return s, nil }}
	s.cl.Remove = func(_ *ib.Device, data any) { data.(*service).lost() }
	return s
}

func (s *service) lost() {
	s.state.Lock()
	s.gone++
	s.state.Unlock()
}

// Start begins it.
func (s *service) Start() error {
	s.life.Lock()
	defer s.life.Unlock()
	return s.core.RegisterClient(s.cl)
}

// Stop ends it.
func (s *service) Stop(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	return s.core.UnregisterClientContext(ctx, s.cl)
}
