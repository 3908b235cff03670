package weak

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"verbena/ib"
)

// delayedEvent is a delayed asynchronous event.
type delayedEvent struct {
	what ib.EventType
	wait int // remaining steps
}

// eventDelays delays the asynchronous events of a queue pair.
type eventDelays struct {
	qp *qp

	// mu is locked while the inner driver may hold its locks.
	mu      sync.Mutex
	events  []delayedEvent
	raised  uint64    // number of events
	toSQD   uint64    // number of calls of beginDraining
	drained time.Time // the earliest end of the drain; zero: the drain has no delay
}

// minEventSteps is the minimum delay of a late event in steps. It exceeds the delay of the completions of a flush. Half
// of the events are not late.
const minEventSteps = 32

// beginDraining delays the end of the drain, unless a delayed send waits for RTS. Such a send has not begun, so the
// send queue is drained without it.
func (x *eventDelays) beginDraining() {
	q := x.qp
	q.mu.Lock()
	delayed := len(q.held) > 0
	q.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drained = time.Time{}
	x.toSQD++
	if !delayed && q.d.hasChoice(LateEvent) && q.d.decide(q.point(LateEvent, EventDrain, x.toSQD), 1, q.about) != 0 {
		x.drained = time.Now().Add(minEventSteps * stepPeriod)
	}
}

// isDraining reports whether the queue pair is in SQD, and its send queue counts as not yet drained.
func (x *eventDelays) isDraining() bool {
	q := x.qp
	if !q.d.hasChoice(LateEvent) || q.DriverQP.State() != ib.QPSQD {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.drained.IsZero() && (time.Now().Before(x.drained) ||
		slices.ContainsFunc(x.events, func(e delayedEvent) bool { return e.what == ib.EventSQDrained }))
}

// delayEvent records an event. The inner driver calls delayEvent with its locks held.
func (x *eventDelays) delayEvent(e ib.EventType) {
	q := x.qp
	x.mu.Lock()
	defer x.mu.Unlock()
	x.raised++
	steps := q.d.drawRandom(LateEvent, q.ord, x.raised, 2*minEventSteps)
	switch {
	case steps >= minEventSteps:
	case e == ib.EventQPLastWQEReached: // comes after the completions of the shared receive queue
		steps += minEventSteps
	default:
		steps = 0 // may come before the completions
	}
	steps = q.d.decide(q.point(LateEvent, EventAsync, x.raised), steps, func() string {
		return fmt.Sprintf("%s, %v", q.about(), e)
	})
	x.events = append(x.events, delayedEvent{e, steps})
	q.d.scheduleEvents(q)
}

// raise reports an event to the consumer. EventSQDrained ends the drain.
//
//verbena:held mu
func (x *eventDelays) raise(e ib.EventType) {
	if e == ib.EventSQDrained {
		x.drained = time.Time{}
	}
	x.qp.obj.Raise(e)
}

// runStep executes one step for the delayed events. The events are raised in order. runStep reports whether
// delayed events remain.
func (x *eventDelays) runStep() (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.events {
		x.events[i].wait--
	}
	for len(x.events) > 0 && x.events[0].wait <= 0 {
		x.raise(x.events[0].what)
		x.events = x.events[1:]
	}
	return len(x.events) > 0
}

// endDelays ends the delay of all events. endDelays raises the events, or drops them if raise is false.
func (x *eventDelays) endDelays(raise bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.events {
		if raise {
			x.raise(e.what)
		}
	}
	x.events = nil
}

// RaiseLastCallbacks is called before the callbacks of the queue pair end. The delayed events are reported, except the
// event for which a consumer must wait before Destroy.
func (q *qp) RaiseLastCallbacks() bool {
	if !q.d.hasChoice(LastCallback) {
		return false
	}
	x := &q.events
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(x.events)
	for _, e := range x.events {
		if e.what == ib.EventQPLastWQEReached {
			continue
		}
		x.raise(e.what)
	}
	x.events = slices.DeleteFunc(x.events, func(e delayedEvent) bool { return e.what != ib.EventQPLastWQEReached })
	return len(x.events) < n
}
