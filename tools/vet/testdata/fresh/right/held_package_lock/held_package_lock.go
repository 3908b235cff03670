// Package held_package_lock: a function wants a lock of the package, and is called with it.
package held_package_lock

import (
	"sync"

	"verbena/ib"
)

var registry sync.Mutex

var names = map[string]*ib.Device{}

type Entry struct {
	dev *ib.Device
}

// enter puts it into the registry.
//
//verbena:held registry
func (e *Entry) enter() { names[e.dev.Name()] = e.dev }

// Publish makes it known.
func (e *Entry) Publish() {
	registry.Lock()
	if names[e.dev.Name()] == nil {
		e.enter()
	}
	registry.Unlock()
}
