package ib

import (
	"slices"
	"sync"
)

// eventHandlers are the consumers of a device's events.
type eventHandlers struct {
	mu   sync.Mutex
	list []*eventHandler
}

type eventHandler struct{ f func(Event) }

func (h *eventHandlers) call(e Event) {
	h.mu.Lock()
	list := slices.Clone(h.list)
	h.mu.Unlock()
	for _, x := range list {
		if k := e.Device.check.Load(); k != nil {
			k.callEvent(e, x.f)
		} else {
			x.f(e)
		}
	}
}

// OnEvent has f called with each event of the device and its ports from now on, until the returned function is
// called; a call that has begun by then may still be running. f may not sleep. OnEvent itself may sleep.
// (ib_register_event_handler)
func (d *Device) OnEvent(f func(Event)) (stop func()) {
	defer d.sleeps("Device.OnEvent").leave()
	h, x := &d.events, &eventHandler{f}
	h.mu.Lock()
	h.list = append(h.list, x)
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		h.list = slices.DeleteFunc(h.list, func(o *eventHandler) bool { return o == x })
		h.mu.Unlock()
	}
}

// DispatchEvent tells the consumers of an event of the device or of a port. The calls are deferred. It may not
// sleep and may be called from any context. (ib_dispatch_event)
func (h *DeviceHandle) DispatchEvent(t EventType, port int) {
	d := h.dev
	d.callbacks.pushEvent(callback{on: &d.events, ev: Event{Device: d, Type: t, Port: port}})
}
