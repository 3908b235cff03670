package ib

import (
	"fmt"
	"slices"
	"time"
)

// rearm is a completion handler that has polled its CQ and returned without arming it. That is right when nothing more is to
// come, or when another thread polls. So nothing is done until neither has happened for Patience; then checked mode arms the queue
// itself, to learn whether there are completions in it, or when one comes. The consumer's handler is not called for that.
type rearm struct {
	oc             *objectCheck
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
	oc := r.oc
	return oc.polls.Load() == r.polls && oc.armings.Load() == r.armings && oc.handler.Load() == nil &&
		oc.destroyed.Load() == nil && oc.dev.State() == DeviceActive
}

// after calls f when Patience has passed, unless the queue has been destroyed.
func (r *rearm) after(f func()) {
	t := time.AfterFunc(r.oc.k.cfg.Patience, f)
	if old := r.oc.rearm.Swap(t); old != nil {
		old.Stop()
	}
}

// expectRearm is called when the handler has returned. batch says that its last poll was full.
func (cq *CQ) expectRearm(at []uintptr, batch bool) {
	oc := cq.check
	if oc.user {
		return
	}
	r := &rearm{oc: oc, polls: oc.polls.Load(), armings: oc.armings.Load(), at: at, batch: batch}
	r.after(func() {
		if r.idle() && cq.probe(r) {
			r.came()
		}
	})
}

// probe arms the queue in the consumer's stead, and reports whether there is something in it.
func (cq *CQ) probe(r *rearm) bool {
	oc := r.oc
	oc.probing.Lock()
	defer oc.probing.Unlock()
	if cq.live() != nil || r.batch && !cq.inUse() {
		return false
	}
	oc.requests.Add(1)
	oc.probed.Store(r)
	//verbena:allow serial no consumer's call waits for probing: it keeps the checker's calls from the queue's end
	missed, err := cq.drv.ReqNotify(NotifyNextComp | NotifyReportMissed)
	return missed && err == nil
}

// inUse reports whether one of the queue pairs that complete on cq is not in the error state. A handler may leave the completions
// of those that are.
func (cq *CQ) inUse() bool {
	oc := cq.check
	var all []*QP
	oc.k.mu.Lock()
	for x := range oc.k.live {
		if w := x.work; w != nil && w.qp != nil && (w.sendCQ == cq || w.recvCQ == cq) {
			all = append(all, w.qp)
		}
	}
	oc.k.mu.Unlock()
	return slices.ContainsFunc(all, func(qp *QP) bool { return qp.live() == nil && qp.State() != QPErr })
}

// ownProbe reports whether the consumer is not to hear of a completion, since the queue was armed by probe alone. The driver may
// hold its locks.
func (oc *objectCheck) ownProbe() bool {
	r := oc.probed.Swap(nil)
	if r == nil || oc.armings.Load() != r.armings {
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
		oc := r.oc
		what := "emptied its CQ and returned without ReqNotify; completions have come since, and were not polled for %v"
		if r.batch {
			what = "polled one batch and returned without ReqNotify; completions are in the CQ, and were not polled for %v"
		}
		oc.k.report(Violation{
			Rule:   RuleNotRearmed,
			What:   fmt.Sprintf("a completion handler "+what, oc.k.cfg.Patience),
			Stacks: []Stack{{"the completion handler's last CQ.Poll", trace(r.at)}, {"the CQ made at", trace(oc.made)}},
		}, oc.dev, oc.made)
	})
}
