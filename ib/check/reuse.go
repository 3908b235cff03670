package check

import (
	"fmt"

	"verbena/ib"
)

// minSQEPosts is the number of sends after a polled failure that show that the consumer does not recover.
const minSQEPosts = 6

// sqeWatch counts the sends of a queue pair that may be in SQE. The owner's mu protects it.
type sqeWatch struct {
	failed []uintptr // stack of the poll that returned the first failure since the last Modify, or nil
	posts  int       // number of sends accepted since then
}

// recordFailure records a failed send that has moved the queue pair to SQE. f is the poll.
func (s *sqeWatch) recordFailure(qp *ib.QP, wc *ib.WC, f *frame) {
	if qp == nil || qp.Type() != ib.QPTypeUD && qp.Type() != ib.QPTypeUC || s.failed != nil ||
		wc.Status == ib.WCSuccess || wc.Status == ib.WCWRFlushErr || qp.State() != ib.QPSQE {
		return
	}
	*s = sqeWatch{failed: f.entry}
}

// recordSQEPosts counts n accepted sends.
func (w *workTracker) recordSQEPosts(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sqe.failed != nil {
		w.sqe.posts += n
	}
}

// recordModify records the begin of a Modify, which may leave SQE.
func (w *workTracker) recordModify() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sqe = sqeWatch{}
}

// checkNotLeftInSQE reports a queue pair that is destroyed, and whose owner has not noticed that it was in SQE.
//
//verbena:held w.mu
func (w *workTracker) checkNotLeftInSQE(at []uintptr) {
	if w.sqe.posts < minSQEPosts || w.o.isDeviceInactive() {
		return
	}
	w.o.k.report(Violation{
		Rule: RuleLeftInSQE,
		What: fmt.Sprintf("%d sends were posted on a QP in SQE, after the failure had been polled: each of them is flushed, "+
			"until Modify moves the QP to RTS", w.sqe.posts),
		Stacks: []Stack{{"CQ.Poll, which returns the failure", formatStack(w.sqe.failed)}, {"the QP destroyed at",
			formatStack(at)}, {"the QP made at", formatStack(w.o.made)}},
	}, w.o.dev, w.sqe.failed)
}

// findReusedTargets finds outstanding requests that change the memory of requests that are about to be posted.
func (w *workTracker) findReusedTargets(posted []*trackedRequest) {
	if !w.o.k.cfg.TargetReuse || w.o.isDeviceInactive() {
		return
	}
	var all []*workTracker
	w.o.k.mu.Lock()
	for o := range w.o.k.live {
		if o.work != nil && o.dev.State() == ib.DeviceActive {
			all = append(all, o.work)
		}
	}
	w.o.k.mu.Unlock()
	for _, x := range all {
		x.mu.Lock()
		if !x.unsure {
			for _, q := range [][]*trackedRequest{x.send, x.recv} {
				for _, old := range q {
					old.markReused(posted)
				}
			}
		}
		x.mu.Unlock()
	}
}

// markReused marks the posted requests that use memory of the outstanding request r.
func (r *trackedRequest) markReused(posted []*trackedRequest) {
	for _, t := range r.targets {
		for _, p := range posted {
			for _, s := range p.targets {
				if s.overlaps(t) {
					p.reused = r
				}
			}
		}
	}
}

// reportReusedTargets reports accepted requests with memory of outstanding requests.
func (w *workTracker) reportReusedTargets(posted []*trackedRequest) {
	for _, r := range posted {
		if r.reused == nil || w.mayHaveLostCompletions() {
			continue
		}
		w.o.k.report(Violation{
			Rule: RuleTargetReused,
			What: "a work request was posted with memory that belongs to an outstanding work request: both change it",
			Stacks: []Stack{{"the work request posted at", formatStack(r.at)}, {"the outstanding work request posted at",
				formatStack(r.reused.at)}, {fmt.Sprintf("the %v made at", w.o.kind), formatStack(w.o.made)}},
		}, w.o.dev, r.at)
	}
}
