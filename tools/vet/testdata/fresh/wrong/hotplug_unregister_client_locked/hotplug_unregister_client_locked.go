// Package hotplug_unregister_client_locked: a client goes under a lock that its Remove takes three calls deeper.
package hotplug_unregister_client_locked

import (
	"context"
	"sync"

	"verbena/ib"
)

type service struct {
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

func (s *service) lost() { s.note(func() { s.gone++ }) }

func (s *service) note(f func()) {
	s.state.Lock()
	f()
	s.state.Unlock()
}

// Stop ends it.
func (s *service) Stop(ctx context.Context) error {
	s.state.Lock()
	if s.gone > 0 {
		s.state.Unlock()
		return nil
	}
	err := s.core.UnregisterClientContext(ctx, s.cl) // want "hotplug"
	s.state.Unlock()
	return err
}
