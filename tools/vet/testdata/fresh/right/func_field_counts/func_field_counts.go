// Package func_field_counts: a function in a field, called by the event function, only marks; who waits does it elsewhere, by a field of its own.
package func_field_counts

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
)

type target struct {
	inflight sync.WaitGroup
	quiesce  func()
	wait     func()
	stopped  atomic.Bool
}

// Watch listens for the device's events.
func Watch(d *ib.Device) (*target, func()) {
	t := &target{}
	t.quiesce = t.stop
	t.wait = t.inflight.Wait
	return t, d.OnEvent(t.event)
}

// Submit begins a request.
func (t *target) Submit() { t.inflight.Add(1) }

// Finish ends one.
func (t *target) Finish() { t.inflight.Done() }

// Drain waits for all requests.
func (t *target) Drain() { t.wait() }

func (t *target) event(e ib.Event) {
	if e.Type == ib.EventPortErr {
		t.quiesce()
	}
}

func (t *target) stop() { t.stopped.Store(true) }
