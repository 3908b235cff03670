// Package lock_after_helper: the event function takes a lock that elsewhere is let go before a helper sleeps, and taken again after it.
package lock_after_helper

import (
	"sync"
	"time"

	"verbena/ib"
)

type Gate struct {
	mu      sync.Mutex
	open    bool
	changes int
}

// Settle changes the gate when things have settled.
func (g *Gate) Settle(open bool) {
	g.mu.Lock()
	g.changes++
	g.mu.Unlock()
	settle()
	g.mu.Lock()
	g.open = open
	g.mu.Unlock()
}

func settle() { time.Sleep(50 * time.Millisecond) }

func (g *Gate) isOpen() bool {
	g.mu.Lock()
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
