// Package event_table_writes_file: a table of functions by event type, one of which writes a file.
package event_table_writes_file

import (
	"os"
	"sync/atomic"

	"verbena/ib"
)

var table = map[ib.EventType]func(e ib.Event){
	ib.EventPortActive: func(ib.Event) { up.Store(true) },
	ib.EventPortErr:    func(ib.Event) { up.Store(false) },
	ib.EventDeviceFatal: func(e ib.Event) {
		record(e.Device.Name())
	},
}

var up atomic.Bool

func record(name string) {
	_ = os.WriteFile("/var/tmp/"+name+".dead", []byte("fatal\n"), 0o600) // want "nosleep"
}

// Watch listens for the device's events.
func Watch(d *ib.Device) (stop func()) {
	return d.OnEvent(func(e ib.Event) {
		if f, ok := table[e.Type]; ok {
			f(e)
		}
	})
}
