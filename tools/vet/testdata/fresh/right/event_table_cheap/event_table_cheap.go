// Package event_table_cheap: a table of functions by event type that are all cheap, beside a table of commands that sleep.
package event_table_cheap

import (
	"os"
	"sync/atomic"

	"verbena/ib"
)

type action func(e ib.Event)

type command func(path string) error

var table = map[ib.EventType]action{
	ib.EventPortActive: func(ib.Event) { up.Store(true) },
	ib.EventPortErr:    func(ib.Event) { up.Store(false) },
}

var commands = map[string]command{
	"clean": os.Remove,
	"make":  func(path string) error { return os.WriteFile(path, nil, 0o600) },
}

var up atomic.Bool

// Run runs a command.
func Run(name, path string) error { return commands[name](path) }

// Watch listens for the device's events.
func Watch(d *ib.Device) (stop func()) {
	return d.OnEvent(func(e ib.Event) {
		if f, ok := table[e.Type]; ok {
			f(e)
		}
	})
}
