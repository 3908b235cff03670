package check

import (
	"verbena/ib"
	"verbena/ib/internal/observe"
)

// RemainingState returns the number of threads with frames, and the number of live objects, in the checker of a device.
func RemainingState(d *ib.Device) (threads, objects int) {
	k := observe.Of(d).(*checkedDevice).k
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.threads), len(k.live)
}
