package device_event_blocks

import (
	"verbena/ib"
)

// Watch hands events to a channel, and forgets those that there is no room for.
func Watch(dev *ib.Device, to chan<- ib.Event) (stop func()) {
	return dev.OnEvent(func(e ib.Event) {
		select {
		case to <- e:
		default:
		}
	})
}
