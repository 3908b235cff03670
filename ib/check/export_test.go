package check

import (
	"verbena/ib"
	"verbena/ib/internal/observe"
)

// Left returns how many threads are inside something, and how many objects are live, by the checker of a device.
func Left(d *ib.Device) (threads, objects int) {
	k := observe.Of(d).(*device).k
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.threads), len(k.live)
}
