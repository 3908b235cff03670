package check

import (
	"fmt"
	"slices"
	"time"

	"verbena/ib"
)

// rearmWatch tracks a completion handler that has polled its CQ and returned without arming the CQ. The behaviour is
// correct if no more completions arrive, or if another thread polls. The checker therefore waits until the CQ has been
// neither polled nor armed for Timeout. The checker then arms the CQ itself to detect present and later completions.
// The consumer's handler is not called for these completions.
type rearmWatch struct {
	o              *checkedObject
	polls, armings int64
	at             []uintptr // last poll of the handler
	batch          bool      // the last poll filled its array
}

// recordPollResult records the return of a Poll, with frame f, inside the CQ's handler. A full array means that
// completions may remain in the CQ.
func (f *frame) recordPollResult(full bool) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if h := f.handlerFrame(); h != nil {
		h.polled, h.batch = f.entry, full
	}
}

// isConsumerIdle reports whether the consumer has neither polled nor armed the queue since the handler.
func (r *rearmWatch) isConsumerIdle() bool {
	o := r.o
	return o.polls.Load() == r.polls && o.armings.Load() == r.armings && o.handler.Load() == nil &&
		o.destroyed.Load() == nil && o.dev.State() == ib.DeviceActive
}

// callAfterTimeout calls f after Timeout, unless the queue has been destroyed.
func (r *rearmWatch) callAfterTimeout(f func()) {
	t := time.AfterFunc(r.o.k.cfg.Timeout, f)
	if old := r.o.rearm.Swap(t); old != nil {
		old.Stop()
	}
}

// expectRearm is called after the handler has returned. batch reports whether its last poll was full.
func (o *checkedObject) expectRearm(at []uintptr, batch bool) {
	if o.user {
		return
	}
	r := &rearmWatch{o: o, polls: o.polls.Load(), armings: o.armings.Load(), at: at, batch: batch}
	r.callAfterTimeout(func() {
		if r.isConsumerIdle() && o.armForCheck(r) {
			r.handleCompletionArrival()
		}
	})
}

// armForCheck arms the queue on behalf of the checker, and reports whether the queue holds completions.
func (o *checkedObject) armForCheck(r *rearmWatch) bool {
	o.probeMu.Lock()
	defer o.probeMu.Unlock()
	if o.gone || r.batch && !o.isUsedByActiveQP() {
		return false
	}
	o.requests.Add(1)
	o.probed.Store(r)
	// A call of a consumer never waits for probing. probing only prevents the destruction of the queue during a call of
	// the checker.
	missed, err := o.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
	return missed && err == nil
}

// isUsedByActiveQP reports whether a queue pair that completes on the CQ is in a state other than error. A handler need
// not poll completions of queue pairs in the error state.
func (o *checkedObject) isUsedByActiveQP() bool {
	var all []*workTracker
	o.k.mu.Lock()
	for x := range o.k.live {
		if w := x.work; w != nil && w.qp != nil && (w.sendCQ == o || w.recvCQ == o) {
			all = append(all, w)
		}
	}
	o.k.mu.Unlock()
	return slices.ContainsFunc(all, func(w *workTracker) bool { return !w.o.stopping.Load() && w.qp.State() != ib.QPErr })
}

// isArmedOnlyByChecker reports whether only probe has armed the queue. If so, the completion must not call the
// consumer's handler. The caller may be a driver that holds locks.
func (o *checkedObject) isArmedOnlyByChecker() bool {
	r := o.probed.Swap(nil)
	if r == nil || o.armings.Load() != r.armings {
		return false
	}
	r.handleCompletionArrival()
	return true
}

// handleCompletionArrival is called when the queue holds a completion. If the consumer neither polls nor arms the queue
// within Timeout, handleCompletionArrival reports the violation.
func (r *rearmWatch) handleCompletionArrival() {
	r.callAfterTimeout(func() {
		if !r.isConsumerIdle() {
			return
		}
		o := r.o
		what := "emptied its CQ and returned without ReqNotify; completions have come since, and were not polled for %v"
		if r.batch {
			what = "polled one batch and returned without ReqNotify; completions are in the CQ, and were not polled for %v"
		}
		o.k.report(Violation{
			Rule: RuleNotRearmed,
			What: fmt.Sprintf("a completion handler "+what, o.k.cfg.Timeout),
			Stacks: []Stack{{"the completion handler's last CQ.Poll", formatStack(r.at)}, {"the CQ made at",
				formatStack(o.made)}},
		}, o.dev, o.made)
	})
}
