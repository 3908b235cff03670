package check

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"verbena/ib"
)

// minSQEPosts is the number of sends after a polled failure that show that the consumer does not recover from SQE.
const minSQEPosts = 16

// certainSQEPosts is the number that shows it before the end of the queue pair.
const certainSQEPosts = 64

// sqeWatch counts the sends of a queue pair that may be in SQE. The owner's mu protects it.
type sqeWatch struct {
	failed []uintptr // stack of the poll that returned the first failure since the last Modify, or nil
	posts  int       // number of sends accepted since then

	failedInErr bool // program: the poll of a failure of a queue pair in ERR
	postsInErr  int  // number of sends accepted since then
}

// recordFailure records a failed send that has moved the queue pair to SQE. f is the poll.
func (s *sqeWatch) recordFailure(w *workTracker, wc *ib.WC, f *frame) {
	qp := w.qp
	if wc.Status != ib.WCSuccess && w.o.k.program != nil && w.isInErr() {
		s.failedInErr = true
	}
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
	if w.sqe.failed == nil {
		return
	}
	w.sqe.posts += n
	if w.o.k.program != nil && w.sqe.posts >= certainSQEPosts { // the program may never end the queue pair
		w.checkNotLeftInSQE(nil)
		w.sqe = sqeWatch{}
	}
}

// checkPostsInErr reports a program that posts sends on a queue pair in ERR after it has polled a failure.
func (w *workTracker) checkPostsInErr(posted []*trackedRequest, n int) {
	if w.o.k.program == nil || n <= 0 || !w.isInErr() {
		return
	}
	w.mu.Lock()
	if w.sqe.failedInErr {
		w.sqe.postsInErr += n
	}
	tooMany := w.sqe.postsInErr >= minSQEPosts
	w.mu.Unlock()
	if tooMany {
		w.o.k.report(Violation{
			Rule: RulePostsInErr,
			What: fmt.Sprintf("%d sends were posted on a QP in ERR after a failed completion had been polled: each of them "+
				"is flushed", minSQEPosts),
			Requests: describe(posted[0]),
		}, w.o.dev, posted[0].at)
	}
}

// recordModify records the begin of a Modify, which may leave SQE. Modify to ERR or RESET is the beginning of the
// destruction.
func (w *workTracker) recordModify(attr *ib.QPAttr, mask ib.QPAttrMask) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if mask&ib.QPAttrState != 0 && (attr.State == ib.QPErr || attr.State == ib.QPReset) {
		w.checkNotLeftInSQE(callerPCs())
	}
	w.sqe = sqeWatch{}
}

// checkNotLeftInSQE reports a queue pair that ends, and whose owner has not noticed that it was in SQE.
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
		Requests: []Request{{QPN: w.qp.Num()}},
		Stacks: []Stack{{"CQ.Poll, which returns the failure", formatStack(w.sqe.failed)}, {"the QP ended at",
			formatStack(at)}, {"the QP made at", formatStack(w.o.made)}},
		atEnd: true, // the posts were before
	}, w.o.dev, w.sqe.failed)
}

// maxOverlapSteps limits the objects and the outstanding requests of a program that findOverlaps examines for a request
// that is not sampled. A peer's thread may wait for the post.
const maxOverlapSteps = 1024

// findOverlaps finds earlier requests that are outstanding and change memory of requests that are about to be posted.
func (w *workTracker) findOverlaps(posted []*trackedRequest) {
	if w.o.isDeviceInactive() || w.isInErr() ||
		!w.o.k.cfg.TargetReuse && w.o.k.reads.Load() == 0 && !mayReadAndSend(posted) {
		return
	}
	steps := math.MaxInt
	if w.o.k.program != nil && !isSampled(posted[0].info.Index) {
		steps = maxOverlapSteps
	}
	all := []*workTracker{w}
	seen := 0
	w.o.k.mu.Lock()
	for o := range w.o.k.live {
		if seen++; seen > steps {
			break
		}
		if o.work != nil && o.work != w && o.dev.State() == ib.DeviceActive {
			all = append(all, o.work)
		}
	}
	w.o.k.mu.Unlock()
	for _, x := range all {
		x.mu.Lock()
		if inErr := x.isInErr(); !x.unsure {
			for _, queue := range [][]*trackedRequest{x.send, x.recv} {
				n := min(len(queue), steps)
				for _, old := range queue[:n] {
					if !old.visible || inErr {
						old.markOverlaps(posted, inErr, w.o.k.cfg.TargetReuse, x == w)
					}
				}
				steps -= n
			}
		}
		x.mu.Unlock()
	}
	for i, old := range posted {
		old.markOverlaps(posted[i+1:], false, w.o.k.cfg.TargetReuse, true)
	}
}

// mayReadAndSend reports whether a send with memory, or with a fence, follows a READ or atomic operation of a list.
func mayReadAndSend(posted []*trackedRequest) bool {
	return slices.ContainsFunc(posted, func(r *trackedRequest) bool { return r.isRead }) &&
		slices.ContainsFunc(posted, func(r *trackedRequest) bool { return len(r.sent) > 0 || r.fenced })
}

// isInErr reports whether the queue pair is in ERR, so that it executes no more requests.
func (w *workTracker) isInErr() bool { return w.qp != nil && w.state() == ib.QPErr }

// state returns the state of the queue pair. The midlayer does not know the driver's side of a program's queue pair
// before its creation has returned, and other threads may look at it.
func (w *workTracker) state() ib.QPState {
	if w.side != nil {
		return w.side.State()
	}
	return w.qp.State()
}

// markOverlaps marks the posted requests that use memory that the outstanding request r changes. inErr reports whether
// the queue pair of r is in ERR; reuse, whether targets that overlap count; sameQueue, whether the posted requests
// follow r in its queue. Those behind a fence then wait for r.
func (r *trackedRequest) markOverlaps(posted []*trackedRequest, inErr, reuse, sameQueue bool) {
	for _, p := range posted {
		r.fencedOff = r.fencedOff || sameQueue && p.fenced
		for _, t := range r.targets {
			if reuse && slices.ContainsFunc(p.targets, t.overlaps) {
				p.reused, p.reusedInErr = r, inErr
			}
			if r.isRead && !inErr && !(sameQueue && r.fencedOff) && slices.ContainsFunc(p.sent, t.overlaps) {
				p.awaited = r
			}
		}
	}
}

// reportOverlaps reports accepted requests with memory that outstanding requests change.
func (w *workTracker) reportOverlaps(posted []*trackedRequest) {
	for _, r := range posted {
		if w.mayHaveLostCompletions() {
			return
		}
		switch {
		case r.reused == nil:
		case !r.reusedInErr:
			w.reportSharedMemory(RuleTargetReused, r, r.reused, sharedTarget)
		case w.o.k.program != nil:
			w.suspectReuse(r) // the program may have polled the flushed completion
		default:
			w.reportSharedMemory(RuleTargetUnflushed, r, r.reused, sharedTarget)
		}
		if r.reusedSource != nil {
			w.reportSharedMemory(RuleSourceReused, r, r.reusedSource, "a work request was posted with memory that an "+
				"outstanding SEND or WRITE sends: the peer may get the data that the device stores")
		}
		if r.awaited != nil {
			w.reportSharedMemory(RuleSourcePending, r, r.awaited, "a send was posted with memory that an outstanding READ or "+
				"atomic operation fills: without a fence, or the completion, it may send the old contents")
		}
	}
}

// reuseSuspect is a program's request with memory of a request of a QP in ERR, which was outstanding when the program
// last looked at its completion queue.
type reuseSuspect struct {
	w *workTracker
	r *trackedRequest
}

// suspectReuse leaves the decision to confirmReuse.
func (w *workTracker) suspectReuse(r *trackedRequest) {
	cq := r.reused.pending
	if cq == nil {
		return
	}
	cq.deadMu.Lock()
	defer cq.deadMu.Unlock()
	cq.suspects = append(cq.suspects, reuseSuspect{w, r})
}

// confirmReuse is called when all polls of a program before the call are known. It reports the requests that were
// posted while the earlier request was outstanding.
func (o *checkedObject) confirmReuse() {
	o.deadMu.Lock()
	list := o.suspects
	o.suspects = nil
	o.deadMu.Unlock()
	for _, s := range list {
		s.w.mu.Lock()
		outstanding := !s.r.reused.finished
		s.w.mu.Unlock()
		if outstanding {
			s.w.reportSharedMemory(RuleTargetUnflushed, s.r, s.r.reused, sharedTarget)
		}
	}
}

// sharedTarget describes a violation of RuleTargetReused.
const sharedTarget = "a work request was posted with memory that belongs to an outstanding work request: both change it"

func (w *workTracker) reportSharedMemory(rule Rule, posted, old *trackedRequest, what string) {
	w.o.k.report(Violation{
		Rule:     rule,
		What:     what,
		Requests: describe(posted, old),
		Stacks: []Stack{{"the work request posted at", formatStack(posted.at)}, {"the outstanding work request posted at",
			formatStack(old.at)}, {fmt.Sprintf("the %v made at", w.o.kind), formatStack(w.o.made)}},
	}, w.o.dev, posted.at)
}

// The number of receives that a consumer may post in a row on a QP in ERR, in functions of completions.
const (
	flushRounds = 8 // for each entry of the receive queue
	minFlushes  = 64
)

// doneCaller is the function of package ib/completion that calls the function of a work request.
const doneCaller = "verbena/ib/completion.(*CQ).callDone"

// checkEndlessFlush counts the receives that are posted on a QP in ERR by a function of a completion. n is the number
// of accepted receives, and f the call.
func (w *workTracker) checkEndlessFlush(f *frame, n int) {
	if w.qp == nil || n <= 0 {
		return
	}
	flushed := w.isInErr() && f.isInCompletion()
	w.mu.Lock()
	if !flushed {
		w.flushed = 0
		w.mu.Unlock()
		return
	}
	w.flushed += n
	endless := w.flushed >= flushRounds*w.recvCap+minFlushes
	w.mu.Unlock()
	if !endless {
		return
	}
	w.o.k.report(Violation{
		Rule: RuleEndlessFlush,
		What: fmt.Sprintf("more than %d receives were posted on a QP in ERR, in functions of completions: each of them is "+
			"flushed, and causes the next one", flushRounds*w.recvCap+minFlushes),
		Stacks: []Stack{{f.what, formatStack(f.entry)}, {"the QP made at", formatStack(w.o.made)}},
	}, w.o.dev, f.entry)
}

// isInCompletion reports whether the call is made by a completion handler or by the function of a work request.
func (f *frame) isInCompletion() bool {
	f.k.mu.Lock()
	inside := f.th != nil && f.th.findFrame(func(x *frame) bool { return x.kind == inCallback }) != nil
	f.k.mu.Unlock()
	return inside || strings.Contains(formatStack(f.entry), doneCaller)
}
