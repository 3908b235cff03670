// Package lock_held_over_helper: the event function takes a lock that elsewhere is held over a helper that sleeps.
package lock_held_over_helper

import (
	"sync"
	"time"

	"verbena/ib"
)

type Gate struct {
	mu   sync.Mutex
	open bool
}

// Settle changes the gate, and lets things settle before anybody sees it.
func (g *Gate) Settle(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	settle()
}

func settle() { time.Sleep(50 * time.Millisecond) }

func (g *Gate) isOpen() bool {
	g.mu.Lock() // want "nosleep"
	defer g.mu.Unlock()
	return g.open
}

// Watch listens for the device's events.
func (g *Gate) Watch(d *ib.Device, qp *ib.QP) (stop func()) {
	return d.OnEvent(func(ib.Event) {
		if g.isOpen() {
			_, _ = qp.PostSend()
		}
	})
}
