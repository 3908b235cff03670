package check

import (
	"fmt"
	"slices"
	"time"

	"verbena/ib"
)

// rearm is a completion handler that has polled its CQ and returned without arming it. That is right when nothing more is to
// come, or when another thread polls. So nothing is done until neither has happened for Patience; then checked mode arms the queue
// itself, to learn whether there are completions in it, or when one comes. The consumer's handler is not called for that.
type rearm struct {
	o              *object
	polls, armings int64
	at             []uintptr // where the handler polled last
	batch          bool      // that poll was full
}

// notePolled notes that Poll, whose frame f is, has returned, if that is in the CQ's handler. A full array may have left completions.
func (f *frame) notePolled(full bool) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if h := f.handler(); h != nil {
		h.polled, h.batch = f.entry, full
	}
}

// idle reports that the consumer has neither polled nor armed the queue since.
func (r *rearm) idle() bool {
	o := r.o
	return o.polls.Load() == r.polls && o.armings.Load() == r.armings && o.handler.Load() == nil &&
		o.destroyed.Load() == nil && o.dev.State() == ib.DeviceActive
}

// after calls f when Patience has passed, unless the queue has been destroyed.
func (r *rearm) after(f func()) {
	t := time.AfterFunc(r.o.k.cfg.Patience, f)
	if old := r.o.rearm.Swap(t); old != nil {
		old.Stop()
	}
}

// expectRearm is called when the handler has returned. batch says that its last poll was full.
func (o *object) expectRearm(at []uintptr, batch bool) {
	if o.user {
		return
	}
	r := &rearm{o: o, polls: o.polls.Load(), armings: o.armings.Load(), at: at, batch: batch}
	r.after(func() {
		if r.idle() && o.probe(r) {
			r.came()
		}
	})
}

// probe arms the queue in the consumer's stead, and reports whether there is something in it.
func (o *object) probe(r *rearm) bool {
	o.probing.Lock()
	defer o.probing.Unlock()
	if o.gone || r.batch && !o.inUse() {
		return false
	}
	o.requests.Add(1)
	o.probed.Store(r)
	// No consumer's call waits for probing: it keeps the checker's calls from the queue's end.
	missed, err := o.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
	return missed && err == nil
}

// inUse reports whether one of the queue pairs that complete on the CQ is not in the error state. A handler may leave the completions
// of those that are.
func (o *object) inUse() bool {
	var all []*work
	o.k.mu.Lock()
	for x := range o.k.live {
		if w := x.work; w != nil && w.qp != nil && (w.sendCQ == o || w.recvCQ == o) {
			all = append(all, w)
		}
	}
	o.k.mu.Unlock()
	return slices.ContainsFunc(all, func(w *work) bool { return !w.o.stopping.Load() && w.qp.State() != ib.QPErr })
}

// ownProbe reports whether the consumer is not to hear of a completion, since the queue was armed by probe alone. The driver may
// hold its locks.
func (o *object) ownProbe() bool {
	r := o.probed.Swap(nil)
	if r == nil || o.armings.Load() != r.armings {
		return false
	}
	r.came()
	return true
}

// came is called when there is a completion in the queue.
func (r *rearm) came() {
	r.after(func() {
		if !r.idle() {
			return
		}
		o := r.o
		what := "emptied its CQ and returned without ReqNotify; completions have come since, and were not polled for %v"
		if r.batch {
			what = "polled one batch and returned without ReqNotify; completions are in the CQ, and were not polled for %v"
		}
		o.k.report(Violation{
			Rule:   RuleNotRearmed,
			What:   fmt.Sprintf("a completion handler "+what, o.k.cfg.Patience),
			Stacks: []Stack{{"the completion handler's last CQ.Poll", trace(r.at)}, {"the CQ made at", trace(o.made)}},
		}, o.dev, o.made)
	})
}
