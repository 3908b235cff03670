package device_event_blocks

import (
	"verbena/ib"
)

// Watch hands events to a channel without room.
func Watch(dev *ib.Device, to chan<- ib.Event) (stop func()) {
	return dev.OnEvent(func(e ib.Event) {
		to <- e // want "nosleep: .*OnEvent.* may sleep: it sends to a channel"
	})
}
