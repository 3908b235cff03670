// Package held_package_lock: a function wants a lock of the package, and is called with that of its receiver.
package held_package_lock

import (
	"sync"

	"verbena/ib"
)

var registry sync.Mutex

var names = map[string]*ib.Device{}

type Entry struct {
	mu  sync.Mutex
	dev *ib.Device
}

// enter puts it into the registry.
//
//verbena:held registry
func (e *Entry) enter() { names[e.dev.Name()] = e.dev }

// Publish makes it known.
func (e *Entry) Publish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter() // want "held"
}
