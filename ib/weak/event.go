package weak

import (
	"fmt"
	"slices"
	"time"

	"verbena/ib"
)

// delayedEvent is a delayed asynchronous event.
type delayedEvent struct {
	what ib.EventType
	wait int // remaining steps
}

// minEventSteps is the minimum delay of a late event in steps. It exceeds the delay of the completions of a flush. Half
// of the events are not late.
const minEventSteps = 32

// beginDraining delays the end of the drain, unless a delayed send waits for RTS. Such a send has not begun, so the
// send queue is drained without it.
func (q *qp) beginDraining() {
	q.mu.Lock()
	delayed := len(q.held) > 0
	q.mu.Unlock()
	q.eventMu.Lock()
	defer q.eventMu.Unlock()
	q.drained = time.Time{}
	q.toSQD++
	if !delayed && q.d.hasChoice(LateEvent) && q.d.decide(q.point(LateEvent, EventDrain, q.toSQD), 1, q.about) != 0 {
		q.drained = time.Now().Add(minEventSteps * stepPeriod)
	}
}

// isDraining reports whether the queue pair is in SQD, and its send queue counts as not yet drained.
func (q *qp) isDraining() bool {
	if !q.d.hasChoice(LateEvent) || q.DriverQP.State() != ib.QPSQD {
		return false
	}
	q.eventMu.Lock()
	defer q.eventMu.Unlock()
	return !q.drained.IsZero() && (time.Now().Before(q.drained) ||
		slices.ContainsFunc(q.events, func(e delayedEvent) bool { return e.what == ib.EventSQDrained }))
}

// delayEvent records an event. The inner driver calls delayEvent with its locks held.
func (q *qp) delayEvent(e ib.EventType) {
	q.eventMu.Lock()
	defer q.eventMu.Unlock()
	q.raised++
	steps := q.d.drawRandom(LateEvent, q.ord, q.raised, 2*minEventSteps)
	switch {
	case steps >= minEventSteps:
	case e == ib.EventQPLastWQEReached: // comes after the completions of the shared receive queue
		steps += minEventSteps
	default:
		steps = 0 // may come before the completions
	}
	steps = q.d.decide(q.point(LateEvent, EventAsync, q.raised), steps, func() string {
		return fmt.Sprintf("%s, %v", q.about(), e)
	})
	q.events = append(q.events, delayedEvent{e, steps})
	q.d.scheduleEvents(q)
}

// raise reports an event to the consumer. EventSQDrained ends the drain.
//
//verbena:held eventMu
func (q *qp) raise(e ib.EventType) {
	if e == ib.EventSQDrained {
		q.drained = time.Time{}
	}
	q.obj.Raise(e)
}

// runEventStep executes one step for the delayed events. The events are raised in order. runEventStep reports whether
// delayed events remain.
func (q *qp) runEventStep() (more bool) {
	q.eventMu.Lock()
	defer q.eventMu.Unlock()
	for i := range q.events {
		q.events[i].wait--
	}
	for len(q.events) > 0 && q.events[0].wait <= 0 {
		q.raise(q.events[0].what)
		q.events = q.events[1:]
	}
	return len(q.events) > 0
}

// endEventDelays ends the delay of all events. endEventDelays raises the events, or drops them if raise is false.
func (q *qp) endEventDelays(raise bool) {
	q.eventMu.Lock()
	defer q.eventMu.Unlock()
	for _, e := range q.events {
		if raise {
			q.raise(e.what)
		}
	}
	q.events = nil
}

// RaiseLastCallbacks is called before the callbacks of the queue pair end. The delayed events are reported, except the
// event for which a consumer must wait before Destroy.
func (q *qp) RaiseLastCallbacks() bool {
	if !q.d.hasChoice(LastCallback) {
		return false
	}
	q.eventMu.Lock()
	defer q.eventMu.Unlock()
	n := len(q.events)
	for _, e := range q.events {
		if e.what == ib.EventQPLastWQEReached {
			continue
		}
		q.raise(e.what)
	}
	q.events = slices.DeleteFunc(q.events, func(e delayedEvent) bool { return e.what != ib.EventQPLastWQEReached })
	return len(q.events) < n
}
