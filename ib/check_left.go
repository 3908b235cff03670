package ib

import "fmt"

// noteArmed notes that ReqNotify, whose frame f is, was called, if that is in the CQ's handler. Without NotifyReportMissed the handler has
// to poll until the queue is empty: what was in it before raises no call.
func (f *frame) noteArmed(flags NotifyFlags) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if h := f.handler(); h != nil {
		h.blind, h.batch = nil, false
		if flags&NotifyReportMissed == 0 {
			h.blind = f.entry
		}
	}
}

// handler returns the frame of the CQ's completion handler that the call f is in, nil if it is in none.
//
//verbena:held f.k.mu
func (f *frame) handler() *frame {
	return f.th.find(func(x *frame) bool { return x.kind == inCallback && x.obj == f.obj })
}

// expectRest is called when a handler has returned that armed the queue, and whose last poll did not empty it. Completions that are
// left then, and for which no call is due, wait for one that may never come, unless another thread polls.
func (cq *CQ) expectRest(at []uintptr) {
	oc := cq.check
	c, ok := As[CQCounter](cq.drv)
	if !ok || oc.user || c.Waiting() == 0 || cq.notify.now().Due() {
		return
	}
	r := &rearm{oc: oc, polls: oc.polls.Load(), armings: oc.armings.Load(), at: at}
	r.after(func() {
		if n := cq.waiting(c); n > 0 && r.idle() && !cq.notify.now().Due() {
			oc.k.report(Violation{
				Rule: RuleLeftInCQ,
				What: fmt.Sprintf("a completion handler armed its CQ without NotifyReportMissed and returned with completions in it, "+
					"of which %d have not been polled for %v: they raise no call", n, oc.k.cfg.Patience),
				Stacks: []Stack{{"CQ.ReqNotify in the completion handler", trace(at)}, {"the CQ made at", trace(oc.made)}},
			}, oc.dev, at)
		}
	})
}

// waiting returns the number of completions in the queue, 0 if it is being destroyed.
func (cq *CQ) waiting(c CQCounter) int {
	cq.check.probing.Lock()
	defer cq.check.probing.Unlock()
	if cq.live() != nil {
		return 0
	}
	return c.Waiting()
}
