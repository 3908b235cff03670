package check

import (
	"fmt"
	"slices"
)

// reportInUse reports a call of a program that ends an object of an outstanding request. Reports
// have the name of the call (what) and of the kind of the object. named selects the requests of the object.
//
// A program never learns the end of an unsignaled request without a later signaled one. The decision then depends on
// the queue pair: if the program posts to it again, the call has violated rule. Otherwise it has violated
// RuleInFlightUnsignaled.
func (p *Program) reportInUse(rule Rule, what, object string, named func(*trackedRequest) bool) {
	if p.isEnding() {
		return
	}
	for _, w := range p.k.trackers() {
		if w.o.isDeviceInactive() {
			return
		}
		v := Violation{Rule: rule, What: fmt.Sprintf("%s while a work request that names the %s is outstanding on a %v", what,
			object, w.o.kind)}
		if w.isInErr() {
			if r := w.findUnflushedRequest(named); r != nil {
				v.Rule, v.Requests = RuleInFlightUnflushed, describe(r)
				v.What += ": the queue pair is in ERR, and the flushed completion has not been polled"
				p.k.report(v, w.o.dev, nil)
			}
			continue
		}
		if r := w.findOutstandingRequest(func(r *trackedRequest) bool { return named(r) && w.isCovered(r) }); r != nil {
			v.Requests = describe(r)
			p.k.report(v, w.o.dev, nil)
			return
		}
		if r := w.findOutstandingRequest(named); r != nil {
			v.Requests = describe(r)
			v.What += ": it is unsignaled, and no later request was signaled"
			w.undecide(v)
		}
	}
}

// isCovered reports whether the completion of a request, or of a later one, shows the end of the request.
//
//verbena:held w.mu
func (w *workTracker) isCovered(r *trackedRequest) bool {
	i := max(slices.Index(w.send, r), 0)
	return r.signaled || slices.ContainsFunc(w.send[i:], func(x *trackedRequest) bool { return x.signaled && x.end != 0 })
}

// findUnflushedRequest returns a request of a queue in ERR with a completion that the program has not polled, or nil.
func (w *workTracker) findUnflushedRequest(kind func(*trackedRequest) bool) *trackedRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range slices.Concat(w.send, w.recv) {
		if r.end != 0 && kind(r) {
			return r
		}
	}
	return nil
}

// maxUndecided limits the violations of a queue that await its next post.
const maxUndecided = 16

// undecide retains a violation until the next post or the end of the queue pair.
func (w *workTracker) undecide(v Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.undecided) < maxUndecided {
		w.undecided = append(w.undecided, v)
	}
}

// decide reports the retained violations. ended is set if the program ends the queue pair, or its connection.
func (w *workTracker) decide(ended bool) {
	w.mu.Lock()
	list := w.undecided
	w.undecided = nil
	w.mu.Unlock()
	for _, v := range list {
		if v.atEnd = true; ended {
			v.Rule = RuleInFlightUnsignaled
		}
		w.o.k.report(v, w.o.dev, nil)
	}
}

// EndingAH records the begin of the destruction of an address handle, and reports outstanding datagrams that use it.
// number is that of Sending. It may not sleep.
func (p *Program) EndingAH(number uint32) {
	p.reportInUse(RuleAHInFlight, "ibv_destroy_ah", "address handle",
		func(r *trackedRequest) bool { return r.ah == number })
}
