// Package hotplug_unregister_in_event: the function for a fatal event unregisters the device, by a method value.
package hotplug_unregister_in_event

import (
	"verbena/ib"
)

type watchdog struct {
	core  *ib.Core
	h     *ib.DeviceHandle
	fatal func() error
}

// Watch listens for the end of the device.
func Watch(core *ib.Core, h *ib.DeviceHandle) (stop func()) {
	w := &watchdog{core: core, h: h}
	w.fatal = w.pull
	return h.Device().OnEvent(w.event)
}

func (w *watchdog) event(e ib.Event) {
	if e.Type == ib.EventDeviceFatal {
		_ = w.fatal()
	}
}

func (w *watchdog) pull() error {
	return w.core.Unregister(w.h) // want "hotplug|nosleep"
}
