// Package monitor starts a goroutine that ends when its device is no longer in a map.
package monitor

import (
	"sync"
	"time"

	"verbena/ib"
)

type devices struct {
	mu   sync.Mutex
	live map[string]bool
}

func (s *devices) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[name]
}

func (s *devices) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, name)
}

func watch(core *ib.Core) error {
	s := &devices{live: map[string]bool{}}
	return core.RegisterClient(&ib.Client{
		Name: "watch",
		Add: func(d *ib.Device) (any, error) {
			go func() {
				for s.has(d.Name()) {
					d.QueryPort(1)
					time.Sleep(time.Second)
				}
			}()
			return nil, nil
		},
		Remove: func(d *ib.Device, _ any) { s.forget(d.Name()) },
	})
}
