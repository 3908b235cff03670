// Package func_field_waits: a function in a field, called by the event function, waits for a WaitGroup.
package func_field_waits

import (
	"sync"

	"verbena/ib"
)

type target struct {
	inflight sync.WaitGroup
	quiesce  func()
}

// Watch listens for the device's events.
func Watch(d *ib.Device) (*target, func()) {
	t := &target{}
	t.quiesce = t.drain
	return t, d.OnEvent(t.event)
}

// Submit begins a request.
func (t *target) Submit() { t.inflight.Add(1) }

// Finish ends one.
func (t *target) Finish() { t.inflight.Done() }

func (t *target) event(e ib.Event) {
	switch e.Type {
	case ib.EventPortErr, ib.EventDeviceFatal:
		t.quiesce()
	}
}

func (t *target) drain() {
	t.inflight.Wait() // want "nosleep"
}
