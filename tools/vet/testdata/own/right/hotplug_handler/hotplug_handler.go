package hotplug_handler

import (
	"verbena/ib"
)

// Watch has a goroutine unregister a device when it hears that it has failed.
func Watch(core *ib.Core, h *ib.DeviceHandle) {
	h.Device().OnEvent(func(e ib.Event) {
		if e.Type == ib.EventDeviceFatal {
			go core.Unregister(h)
		}
	})
}
