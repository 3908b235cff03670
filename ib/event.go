package ib

import (
	"fmt"
	"slices"
	"sync"

	"verbena/ib/internal/observe"
	"verbena/uapi"
)

// eventHandlers are the functions that listen to a device's events. Events are delivered one at a time (callbacks.inEvent),
// so at most one function runs.
type eventHandlers struct {
	mu      sync.Mutex
	idle    sync.Cond // on mu; a function has returned
	list    []*eventHandler
	running *eventHandler // nil: none
	thread  int64         // the goroutine that runs it
}

type eventHandler struct {
	f   func(Event)
	dev *Device // by which it listens

	// under eventHandlers.mu
	ended   bool
	subject observe.Subject // nil: not observed yet
}

// observed returns the subject of a function, nil if the device is not observed.
//
//verbena:held mu
func (h *eventHandlers) observed(x *eventHandler) observe.Subject {
	if s := x.dev.observed(); s != nil && x.subject == nil {
		x.subject = (*x.dev.observer.Load()).Object(x, "event function", s, nil)
	}
	return x.subject
}

// call runs the functions one after the other, in the order in which they began to listen.
func (h *eventHandlers) call(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range slices.Clone(h.list) {
		if !x.ended {
			h.run(x, e)
		}
	}
}

// run gives up mu while the function runs, which may also panic or end the goroutine.
func (h *eventHandlers) run(x *eventHandler, e Event) {
	h.running, h.thread = x, observe.Goroutine()
	e.Device = x.dev
	s := h.observed(x)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.running = nil
		h.idle.Broadcast()
	}()
	if s == nil {
		x.f(e)
		return
	}
	callBack(s, observe.Callback, fmt.Sprintf("the function for the event %q", e.Type), e.Type, func() { x.f(e) })
}

// end returns when the function does not run and will not run again. From the function itself it does not wait.
func (h *eventHandlers) end(x *eventHandler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.ended = true
	h.list = slices.DeleteFunc(h.list, func(o *eventHandler) bool { return o == x })
	for h.running == x && h.thread != observe.Goroutine() {
		h.idle.Wait()
	}
}

// OnEvent calls f with each event of the device and its ports, until the returned function is called. When that has
// returned, f is not running and will not be called again; so it must not be called by f, nor with a lock that f takes. f may
// not sleep. OnEvent and the returned function may sleep. (ib_register_event_handler, ib_unregister_event_handler)
func (d *Device) OnEvent(f func(Event)) (stop func()) {
	defer d.sleeps("Device.OnEvent").leave()
	h, x := &d.events, &eventHandler{f: f, dev: d}
	h.mu.Lock()
	h.list = append(h.list, x)
	note(h.observed(x), observe.Born, nil)
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		s := h.observed(x)
		h.mu.Unlock()
		in, _ := enter(s, observe.Destroy, "the end of Device.OnEvent", nil)
		defer in.leave()
		h.end(x)
		note(s, observe.Died, nil)
	}
}

// EventCounts are how many events there were of each type.
type EventCounts [uapi.EventDeviceSpeedChange + 1]uint64

// Add adds those of m.
func (n *EventCounts) Add(m EventCounts) {
	for t := range n {
		n[t] += m[t]
	}
}

func (n *EventCounts) add(t EventType) {
	if int(t) < len(n) { // a driver may raise what there is no name for
		n[t]++
	}
}

// Events are those that have been raised for consumers that take events: of the device, of its ports, and of its queues. It may
// not sleep and may be called from any context, also when the device is not registered any more.
func (h *DeviceHandle) Events() EventCounts {
	c := &h.dev.callbacks
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raised
}

// DispatchEvent reports an event of the device or of a port to the consumers that listen. The calls are deferred. An event of
// a device that is not registered any more is dropped. It may not sleep and may be called from any context.
// (ib_dispatch_event)
func (h *DeviceHandle) DispatchEvent(t EventType, port int) {
	d := h.dev
	note(d.observed(), observe.Raised, nil)
	d.callbacks.pushEvent(callback{on: &d.events, ev: Event{Device: d, Type: t, Port: port}})
}
