// Package hotplug_unregister_by_worker: the function for a fatal event tells a worker, which unregisters the device.
package hotplug_unregister_by_worker

import (
	"verbena/ib"
)

type watchdog struct {
	core  *ib.Core
	h     *ib.DeviceHandle
	fatal chan struct{}
}

// Watch listens for the end of the device.
func Watch(core *ib.Core, h *ib.DeviceHandle) (stop func()) {
	w := &watchdog{core: core, h: h, fatal: make(chan struct{}, 1)}
	go w.work()
	return h.Device().OnEvent(w.event)
}

func (w *watchdog) event(e ib.Event) {
	if e.Type == ib.EventDeviceFatal {
		select {
		case w.fatal <- struct{}{}:
		default:
		}
	}
}

func (w *watchdog) work() {
	for range w.fatal {
		_ = w.core.Unregister(w.h)
	}
}
