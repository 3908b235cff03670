package check

import (
	"fmt"

	"verbena/ib"
)

// recordReqNotify records a ReqNotify, with frame f, inside the CQ's handler. Without NotifyReportMissed the handler
// must poll until the CQ is empty, because earlier completions do not cause a handler call.
func (f *frame) recordReqNotify(flags ib.NotifyFlags) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if h := f.handlerFrame(); h != nil {
		h.blind, h.batch = nil, false
		if flags&ib.NotifyReportMissed == 0 {
			h.blind = f.entry
		}
	}
}

// handlerFrame returns the frame of the CQ's completion handler that contains f, or nil.
//
//verbena:held f.k.mu
func (f *frame) handlerFrame() *frame {
	return f.th.findFrame(func(x *frame) bool { return x.kind == inCallback && x.obj == f.obj })
}

// expectPollOfRemaining is called after a handler that armed the queue and did not empty the queue with its last poll.
// If no handler call is due and no other thread polls, the remaining completions may never be reported.
func (o *checkedObject) expectPollOfRemaining(at []uintptr) {
	c, ok := ib.As[ib.CQCounter](o.cq)
	if !ok || o.user || c.Waiting() == 0 || o.isHandlerDue() {
		return
	}
	r := &rearmWatch{o: o, polls: o.polls.Load(), armings: o.armings.Load(), at: at}
	r.callAfterTimeout(func() {
		if n := o.countWaitingCompletions(c); n > 0 && r.isConsumerIdle() && !o.isHandlerDue() {
			o.k.report(Violation{
				Rule: RuleLeftInCQ,
				What: fmt.Sprintf("a completion handler armed its CQ without NotifyReportMissed and returned with "+
					"completions in it, "+
					"of which %d have not been polled for %v: they raise no call", n, o.k.cfg.Timeout),
				Stacks: []Stack{{"CQ.ReqNotify in the completion handler", formatStack(at)}, {"the CQ made at",
					formatStack(o.made)}},
			}, o.dev, at)
		}
	})
}

// countWaitingCompletions returns the number of completions in the queue, or 0 if the queue has been destroyed.
func (o *checkedObject) countWaitingCompletions(c ib.CQCounter) int {
	o.probeMu.Lock()
	defer o.probeMu.Unlock()
	if o.gone {
		return 0
	}
	return c.Waiting()
}
