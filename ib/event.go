package ib

import (
	"fmt"
	"slices"
	"sync"

	"verbena/ib/internal/observe"
	"verbena/uapi"
)

// eventHandlers holds the functions that receive the events of a device. Events are delivered one at a time
// (callbacks.inEvent). Therefore at most one function runs.
type eventHandlers struct {
	mu      sync.Mutex
	idle    sync.Cond // on mu; signalled when a function has returned
	list    []*eventHandler
	running *eventHandler // nil: none
	thread  int64         // the goroutine that executes the function running
}

type eventHandler struct {
	f   func(Event)
	dev *Device // the handle through which f was registered

	// The next fields are protected by eventHandlers.mu.
	ended   bool
	subject observe.Subject // nil: the observer has not been asked yet
}

// getOrCreateSubject returns the observer's subject for x, or nil if the device is not observed.
//
//verbena:held mu
func (h *eventHandlers) getOrCreateSubject(x *eventHandler) observe.Subject {
	if s := x.dev.observedSubject(); s != nil && x.subject == nil {
		x.subject = (*x.dev.observer.Load()).ObserveObject(x, "event function", s, nil)
	}
	return x.subject
}

// callAllHandlers calls the functions one after the other, in the order of registration.
func (h *eventHandlers) callAllHandlers(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range slices.Clone(h.list) {
		if !x.ended {
			h.callOneHandler(x, e)
		}
	}
}

// callOneHandler releases mu during the call of the function, because the function may panic or call runtime.Goexit.
func (h *eventHandlers) callOneHandler(x *eventHandler, e Event) {
	h.running, h.thread = x, observe.GoroutineID()
	e.Device = x.dev
	s := h.getOrCreateSubject(x)
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
	runObservedCall(s, observe.Callback, fmt.Sprintf("the function for the event %q", e.Type), e.Type, func() { x.f(e) })
}

// removeHandler removes x. removeHandler returns when the function is not running and will not run again. If the
// function itself calls removeHandler, removeHandler does not wait.
func (h *eventHandlers) removeHandler(x *eventHandler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.ended = true
	h.list = slices.DeleteFunc(h.list, func(o *eventHandler) bool { return o == x })
	for h.running == x && h.thread != observe.GoroutineID() {
		h.idle.Wait()
	}
}

// OnEvent calls f for each event of the device and its ports until stop is called. After stop has returned, f is not
// running and will not be called again. Therefore f must not call stop, and the caller must not hold a lock that f
// takes. f may not sleep. OnEvent and stop may sleep. (ib_register_event_handler, ib_unregister_event_handler)
func (d *Device) OnEvent(f func(Event)) (stop func()) {
	defer d.enterSleeping("Device.OnEvent").leave()
	h, x := &d.events, &eventHandler{f: f, dev: d}
	h.mu.Lock()
	h.list = append(h.list, x)
	reportEvent(h.getOrCreateSubject(x), observe.Born, nil)
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		s := h.getOrCreateSubject(x)
		h.mu.Unlock()
		in, _ := enterCall(s, observe.Destroy, "the end of Device.OnEvent", nil)
		defer in.leave()
		awaitLastCallbacks(&d.callbacks, d.drv)
		h.removeHandler(x)
		reportEvent(s, observe.Died, nil)
	}
}

// EventCounts holds the number of events by type.
type EventCounts [uapi.EventDeviceSpeedChange + 1]uint64

// Add adds the counts of m.
func (n *EventCounts) Add(m EventCounts) {
	for t := range n {
		n[t] += m[t]
	}
}

func (n *EventCounts) countEvent(t EventType) {
	if int(t) < len(n) { // a driver may raise types without a name
		n[t]++
	}
}

// Events returns the number of events raised by the device, its ports and its queues. Events of an object that belongs
// to a consumer are counted only if the consumer has an event function. Events may not sleep and may be called from any
// context, even after the device has been unregistered.
func (h *DeviceHandle) Events() EventCounts {
	c := &h.dev.callbacks
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raised
}

// DispatchEvent delivers an event of the device or of a port to the functions of OnEvent. The calls are deferred.
// Events of an unregistered device are dropped. DispatchEvent may not sleep and may be called from any context.
// (ib_dispatch_event)
func (h *DeviceHandle) DispatchEvent(t EventType, port int) {
	d := h.dev
	reportEvent(d.observedSubject(), observe.Raised, nil)
	d.callbacks.pushEvent(dueEvent{on: &d.events, ev: Event{Device: d, Type: t, Port: port}})
}
