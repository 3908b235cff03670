package check

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib"
)

// trackedRequest is a work request, tracked from its post until a completion proves that the request is done.
type trackedRequest struct {
	id         uint64
	keys       []uint32 // local keys of the memory of the request
	region     *ib.MR   // the region that the request registers or binds a window to, or nil
	ends       uint32   // the remote key that the request invalidates locally, or 0
	signaled   bool
	begin, end uint64         // start and end times of the post; end is 0 while the post is in progress
	pending    *checkedObject // the queue that counts the request in pending
	at         []uintptr

	// sources is the memory that the request sends. targets is memory that the request may change. since is the number
	// of landings at the post.
	sources []sendSource
	targets []memorySpan
	since   uint64
	// owned is the memory that the request may change, and read the memory that the request sends, also if a peer may
	// change it. Both are for the race detector.
	owned []memorySpan
	read  []memorySpan
	race  ownership
	// sent is the memory that a send reads, by the device or at the post. fenced reports whether the send waits for the
	// earlier READs and atomic operations of its queue pair, and fencedOff whether a later send waits for this one.
	sent      []memorySpan
	fenced    bool
	fencedOff bool
	isRead    bool // READ or atomic operation
	counted   bool // in the checker's reads
	// reused is an earlier request that was outstanding at the post, and may change memory of this request.
	reused      *trackedRequest
	reusedInErr bool // its queue pair was in ERR
	// reusedSource is a program's earlier send that was outstanding at the post. This request changes its memory.
	reusedSource *trackedRequest
	watched      bool // a program's send in watchedSends, once it was accepted
	// order is the number of a program's send among all sends. For a receive, it is the number of sends that the program
	// has certainly posted earlier.
	order uint64
	ah    uint32 // number of the address handle of a program's datagram, or 0
	// awaited is an earlier READ or atomic operation that was outstanding at the post, and fills memory of sent.
	awaited *trackedRequest

	info Request
	// contents are copies of the memory that a program's request sends. ownWrite is the target of the request if it
	// belongs to the same program.
	contents []*contents
	sampled  bool // a program's send whose memory is compared, or would be
	ownWrite memorySpan
	finished bool        // under the queue's mu
	visible  bool        // the completion is in the program's queue; under the mu of the work queue
	stores   uint64      // for a receive of a program: number of the device's stores at the post
	messages uint64      // number of messages that its queue pair had received at the post
	list     []ib.SGE    // elements, for a program; nil for inline data
	images   []*contents // data that the device has stored; under storedImages.mu
	unmapped bool        // RuleUnmapped was reported; under the queue's mu
}

// workTracker tracks the work requests of a queue pair or a shared receive queue. Work requests of user contexts are
// tracked only by a Program, since a program posts and polls without a call. If threads post or poll concurrently, the
// order in the device is unknown. In that case requests may count as done too early.
type workTracker struct {
	o              *checkedObject
	pd             *ib.PD
	domain         ib.DriverPD // domain of a program's queue
	qp             *ib.QP      // nil if the work belongs to an SRQ
	side           ib.DriverQP // the driver's side of a program's queue pair, or nil
	sigAll         bool
	srq            *workTracker // the work of the queue pair's SRQ
	sendCQ, recvCQ *checkedObject
	sendCap        int // 0: unknown
	recvCap        int

	mu         sync.Mutex
	seq        uint64
	send, recv []*trackedRequest // in posting order
	connected  bool              // the QP has reached RTR since RESET
	last       bool              // the QP has reported EventQPLastWQEReached since RESET
	ended      []uintptr         // stack of the QP's destruction
	undecided  []Violation       // program: see undecide
	users      int               // SRQ: number of connected queue pairs
	unsure     bool              // SRQ: a QP was destroyed while its requests were outstanding
	sqe        sqeWatch          // UD and UC
	flushed    int               // receives posted in a row in ERR, in functions of completions

	sentCount, recvCount atomic.Uint64 // numbers of posted requests
	emptyAt              atomic.Uint64 // program: see userQueue.NoReceives
	anyReceive           atomic.Bool   // a receive was posted since RESET
	connectedAt          time.Time     // time of the Modify to RTR
	messages             atomic.Uint64 // program: number of received messages
	peer                 atomic.Uint32 // number of the connected queue pair
}

// trackQP starts tracking the work requests of a queue pair.
func (o *checkedObject) trackQP(qp *ib.QP) {
	init := qp.Init()
	w := &workTracker{o: o, pd: qp.PD(), qp: qp, sigAll: init.SigAll, sendCap: int(init.Cap.MaxSendWR),
		recvCap: int(init.Cap.MaxRecvWR)}
	for _, c := range []struct {
		cq *ib.CQ
		to **checkedObject
	}{{init.SendCQ, &w.sendCQ}, {init.RecvCQ, &w.recvCQ}} {
		if c.cq == nil {
			continue
		}
		if *c.to = checkedObjectOf(c.cq); *c.to == nil || (*c.to).user {
			return
		}
	}
	if o.user || init.SendCQ == nil {
		return
	}
	if init.SRQ != nil {
		if s := checkedObjectOf(init.SRQ); s != nil {
			w.srq = s.work
		}
	}
	o.work = w
}

// trackSRQ starts tracking the work requests of a shared receive queue.
func (o *checkedObject) trackSRQ(srq *ib.SRQ) {
	if !o.user {
		o.work = &workTracker{o: o, pd: srq.PD(), recvCap: int(srq.Init().Attr.MaxWR)}
	}
}

func lkeysOf(sgl []ib.SGE) []uint32 {
	var keys []uint32
	for _, s := range sgl {
		if s.Length != 0 {
			keys = append(keys, s.LKey)
		}
	}
	return keys
}

// recordSends records work requests that are about to be posted. After the post, the caller calls the returned function
// with the number of accepted requests.
func (w *workTracker) recordSends(f *frame, wrs []ib.SendWR) func(n int) {
	if w == nil || w.sendCap == 0 || f == nil {
		return func(int) {}
	}
	var posted []*trackedRequest
	for i := range wrs {
		wr := &wrs[i]
		r := &trackedRequest{id: wr.ID, signaled: wr.Flags&ib.SendSignaled != 0 || w.sigAll, at: f.entry,
			fenced: wr.Flags&ib.SendFence != 0}
		r.order, r.ah = f.order, f.ah
		r.info = w.newInfo(&w.sentCount, wr.Opcode.String(), f.consumerID(wr.ID), wr.SGList)
		w.checkSendKeys(r, wr)
		w.recordRequestMemory(r, wr)
		if wr.Flags&ib.SendInline == 0 && wr.Opcode != ib.WRAtomicWrite {
			if w.o.k.program != nil && r.list == nil {
				r.list = slices.Clone(wr.SGList)
			}
			r.keys = lkeysOf(wr.SGList)
		}
		switch {
		case wr.Opcode == ib.WRLocalInv:
			r.ends = wr.InvalidateRKey
		case wr.Opcode == ib.WRRegMR && wr.Reg != nil:
			r.region = wr.Reg.MR
		case wr.Opcode == ib.WRBindMW && wr.Bind != nil:
			r.region = wr.Bind.MR
		}
		posted = append(posted, r)
	}
	w.appendPostedRequests(&w.send, posted)
	return func(n int) {
		w.recordSQEPosts(n)
		w.checkPostsInErr(posted, n)
		w.recordAcceptedRequests(&w.send, posted, n, w.sendCQ, w.sendCap)
		if w.o.k.program == nil {
			w.checkQueueHasSignaledSend(f)
			w.checkCQRoom(f, w.sendCQ)
		}
	}
}

// recordRecvs is the equivalent of sends for receives.
func (w *workTracker) recordRecvs(f *frame, wrs []ib.RecvWR) func(n int) {
	if w == nil || w.recvCap == 0 || f == nil {
		return func(int) {}
	}
	var posted []*trackedRequest
	for i := range wrs {
		r := &trackedRequest{id: wrs[i].ID, keys: lkeysOf(wrs[i].SGList), signaled: true, at: f.entry,
			info:    w.newInfo(&w.recvCount, receiveOpcode, f.consumerID(wrs[i].ID), wrs[i].SGList),
			targets: w.o.spansOf(wrs[i].SGList), owned: w.o.ownedSpans(wrs[i].SGList)}
		if p := w.o.k.program; p != nil {
			r.stores, r.order = p.writes.changeCount(), w.emptyAt.Load()
		}
		w.checkTargetKeys(r, wrs[i].SGList)
		w.anyReceive.Store(true)
		posted = append(posted, r)
	}
	w.appendPostedRequests(&w.recv, posted)
	return func(n int) {
		w.checkEndlessFlush(f, n)
		w.recordAcceptedRequests(&w.recv, posted, n, w.recvCQ, w.recvCap)
		if w.o.k.program == nil {
			w.checkCQRoom(f, w.recvCQ)
		}
	}
}

// receiveOpcode is the opcode of a receive in a Request.
const receiveOpcode = "receive"

// newInfo describes a request that is about to be posted. count is the counter of its queue.
func (w *workTracker) newInfo(count *atomic.Uint64, opcode string, id uint64, list []ib.SGE) Request {
	info := Request{Opcode: opcode, ID: id, Index: count.Add(1) - 1, Posted: time.Now()}
	if w.qp != nil {
		info.QPN, info.Peer = w.qp.Num(), w.peer.Load()
	}
	for _, s := range list {
		info.Length += uint64(s.Length)
	}
	return info
}

// describe describes requests for a violation.
func describe(rs ...*trackedRequest) (list []Request) {
	for _, r := range rs {
		list = append(list, r.info)
	}
	return list
}

// appendPostedRequests appends requests to a queue at the start of their post.
func (w *workTracker) appendPostedRequests(queue *[]*trackedRequest, posted []*trackedRequest) {
	w.findOverlaps(posted)
	if p := w.o.k.program; p != nil && p.cfg.Rules.Has(RuleSourceReused) {
		for _, r := range posted {
			w.findReusedSource(r)
			r.watched = r.sampled && !w.o.k.isTarget(r.sent)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	for _, r := range posted {
		r.beginOwnership(w.o.k.cfg.Ownership)
		r.begin = w.seq
		if r.counted = r.isRead; r.counted {
			w.o.k.reads.Add(1)
		}
	}
	*queue = append(*queue, posted...)
}

// recordAcceptedRequests records that the driver has accepted the first n requests. If the number of requests then
// exceeds the capacity, the oldest requests must be done.
func (w *workTracker) recordAcceptedRequests(queue *[]*trackedRequest, posted []*trackedRequest, n int,
	cq *checkedObject,
	room int) {
	w.reportOverlaps(posted[:max(0, min(n, len(posted)))])
	if p := w.o.k.program; p != nil {
		p.watch.start(p)
		if queue == &w.send && n > 0 {
			w.decide(false)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	for i, r := range posted {
		if i >= n {
			r.endOwnership()
			w.uncountRead(r)
			continue
		}
		r.end = w.seq
		if r.finished {
			continue
		}
		if r.watched {
			w.o.k.program.sends.add(w, r)
		}
		// An unsignaled request completes only if it fails, so a program's may never need an entry.
		if cq != nil && (r.signaled || w.o.k.program == nil) {
			r.pending = cq
			cq.pending.Add(1)
		}
	}
	if n < len(posted) {
		*queue = slices.DeleteFunc(*queue, func(r *trackedRequest) bool { return r.end == 0 && slices.Contains(posted, r) })
	}
	for len(*queue) > 2*room+64 {
		w.finishRequest((*queue)[0])
		*queue = (*queue)[1:]
	}
}

// finishRequest records that a request is done, or will not complete.
//
//verbena:held mu
func (w *workTracker) finishRequest(r *trackedRequest) {
	r.endOwnership()
	w.uncountRead(r)
	r.finished = true
	if p := w.o.k.program; p != nil {
		p.sends.remove(r)
		p.dropContents(r.contents)
		r.contents = nil
		p.dropImages(r)
	}
	if len(r.targets) > 0 {
		w.o.k.landings.recordChanges(r.targets)
	}
	if r.ownWrite.n > 0 {
		w.o.k.landings.recordChanges([]memorySpan{r.ownWrite})
	}
	if r.pending != nil {
		r.pending.pending.Add(-1)
		r.pending = nil
	}
}

//verbena:held mu
func (w *workTracker) uncountRead(r *trackedRequest) {
	if r.counted {
		r.counted = false
		w.o.k.reads.Add(-1)
	}
}

// checkQueueHasSignaledSend reports a send queue that has accepted more requests than its capacity, none of them
// signaled. The function ignores queues with signaled requests. Hardware would reject a further post until their
// completions are polled, and the consumer may rely on that.
func (w *workTracker) checkQueueHasSignaledSend(f *frame) {
	w.mu.Lock()
	room := w.sendCap
	if w.o.k.program != nil {
		room-- // the caller has observed that the next request was refused
	}
	full := len(w.send) > room &&
		!slices.ContainsFunc(w.send, func(r *trackedRequest) bool { return r.signaled || r.end == 0 })
	var oldest []uintptr
	var about []Request
	if full {
		oldest, about = w.send[0].at, describe(w.send[len(w.send)-1], w.send[0])
	}
	w.mu.Unlock()
	if !full || w.sendCQ.pollers.Load() > 0 || w.o.isDeviceInactive() {
		return
	}
	w.o.k.report(Violation{
		Rule: RuleUnsignaledOnly,
		What: fmt.Sprintf("a send queue of %d entries was filled with unsignaled work requests only: "+
			"no completion would make room for another", w.sendCap),
		Requests: about,
		Stacks: []Stack{{"QP.PostSend", formatStack(f.entry)}, {"the oldest posted at", formatStack(oldest)},
			{"the QP made at", formatStack(w.o.made)}},
	}, w.o.dev, f.entry)
}

// checkCQRoom reports a CQ on which more requests may complete than the CQ has entries.
func (w *workTracker) checkCQRoom(f *frame, cq *checkedObject) {
	if cq == nil || cq.mayOverrun || cq.broken.Load() || w.o.isDeviceInactive() {
		return
	}
	n, entries := cq.pending.Load(), cq.self.(*ib.CQ).Entries()
	if n <= int64(entries) || cq.pollers.Load() > 0 {
		return
	}
	if k := cq.nameless.Load(); k > 0 {
		if cq.told.Swap(true) {
			return
		}
		w.o.k.report(Violation{
			Rule: RuleResult,
			What: fmt.Sprintf("%d completions of a CQ of %d entries name no QP (WC.QP), so up to %d posted work requests may "+
				"still complete on it", k, entries, n),
			Stacks: []Stack{{f.what, formatStack(f.entry)}, {"the CQ made at", formatStack(cq.made)}},
		}, w.o.dev, f.entry)
		return
	}
	w.o.k.report(Violation{
		Rule: RuleCQTooSmall,
		What: fmt.Sprintf("%d posted work requests may complete on a CQ of %d entries", n, entries),
		Stacks: []Stack{{f.what, formatStack(f.entry)}, {"the CQ made at", formatStack(cq.made)},
			{"the QP made at", formatStack(w.o.made)}},
	}, w.o.dev, f.entry)
}

// isDeviceInactive reports whether no conclusion is possible because the device is in the error state or unregistered.
func (o *checkedObject) isDeviceInactive() bool { return o.dev.State() != ib.DeviceActive }

// mayHaveLostCompletions reports whether completions of the queue pair may have been lost.
func (w *workTracker) mayHaveLostCompletions() bool {
	return w.o.isDeviceInactive() || w.sendCQ != nil && w.sendCQ.broken.Load() || w.recvCQ != nil && w.recvCQ.broken.Load()
}

// recordPolledCompletions records completions that a consumer has polled from the CQ. before holds the queue pairs that
// were destroyed before the poll.
func (o *checkedObject) recordPolledCompletions(f *frame, wcs []ib.WC, before map[uint32]*workTracker) {
	for i := range wcs {
		wc := &wcs[i]
		if wc.QP != nil {
			if qp := checkedObjectOf(wc.QP); qp != nil {
				qp.work.recordCompletion(f, o, wc)
				continue
			}
		}
		w := before[wc.QPNum]
		if w == nil && wc.QP == nil {
			o.nameless.Add(1)
		}
		if w != nil && wc.QP == nil {
			if r := w.recordCompletion(f, o, wc); r != nil && !w.mayHaveLostCompletions() {
				o.k.report(Violation{
					Rule: RuleDestroyUndrained,
					What: fmt.Sprintf("a completion of QP %d was polled after the QP had been destroyed: "+
						"the ID may name what has been freed", wc.QPNum),
					Requests: describe(r),
					Stacks: []Stack{{"CQ.Poll", formatStack(f.entry)}, {"the QP destroyed at", formatStack(w.ended)},
						{"the work request posted at", formatStack(r.at)}},
				}, o.dev, w.ended)
			}
		}
	}
	if len(wcs) > 0 || len(before) == 0 {
		return
	}
	if c, ok := ib.As[ib.CQCounter](o.cq); ok && c.Waiting() > 0 {
		return // the device delays completions
	}
	o.deadMu.Lock()
	defer o.deadMu.Unlock()
	for num, w := range before { // the CQ holds no more completions of these QPs
		if o.dead[num] == w {
			delete(o.dead, num)
		}
	}
}

// destroyedQPs returns the destroyed queue pairs that may have completions in the queue.
func (o *checkedObject) destroyedQPs() map[uint32]*workTracker {
	o.deadMu.Lock()
	defer o.deadMu.Unlock()
	if len(o.dead) == 0 {
		return nil
	}
	m := make(map[uint32]*workTracker, len(o.dead))
	for num, w := range o.dead {
		m[num] = w
	}
	return m
}

// recordCompletion records a completion on cq. recordCompletion returns the request of the completion, or nil if the
// request is unknown.
func (w *workTracker) recordCompletion(f *frame, cq *checkedObject, wc *ib.WC) (r *trackedRequest) {
	if w == nil {
		return nil
	}
	mayRecv := w.recvCQ == cq && (wc.Status != ib.WCSuccess || wc.Opcode&ib.WCRecv != 0)
	maySend := w.sendCQ == cq && (wc.Status != ib.WCSuccess || wc.Opcode&ib.WCRecv == 0)
	if maySend {
		var changed []*trackedRequest
		w.mu.Lock()
		r, changed = w.removeCompletedSends(wc)
		w.sqe.recordFailure(w, wc, f)
		w.mu.Unlock()
		w.checkSources(f, changed)
	}
	if !mayRecv {
		return r
	}
	from := w
	if w.srq != nil {
		from = w.srq
	}
	from.mu.Lock()
	defer from.mu.Unlock()
	x := from.removeReceive(wc.ID)
	if x == nil {
		return r
	}
	r = x
	if w.srq != nil { // receives with the same ID complete in any order
		for _, x := range from.recv {
			if x.id == wc.ID {
				x.endOwnership()
			}
		}
	}
	return r
}

// removeReceive removes and returns the first receive with an ID, or returns nil.
//
//verbena:held mu
func (w *workTracker) removeReceive(id uint64) *trackedRequest {
	i := slices.IndexFunc(w.recv, func(x *trackedRequest) bool { return x.id == id })
	if i < 0 {
		return nil
	}
	r := w.recv[i]
	w.finishRequest(r)
	w.recv = slices.Delete(w.recv, i, i+1)
	return r
}

func (w *workTracker) finishReceive(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeReceive(id)
}

// removeCompletedSends removes the request of a completion from the send queue, together with all requests that may
// have preceded it. Later requests of the same PostSend remain. changed is the list of the removed requests with source
// memory that has changed. The comparison is under the lock, because another thread may poll a later completion and
// then change the memory.
//
//verbena:held w.mu
func (w *workTracker) removeCompletedSends(wc *ib.WC) (r *trackedRequest, changed []*trackedRequest) {
	same := 0
	for _, x := range w.send {
		if x.id != wc.ID {
			continue
		}
		same++
		switch {
		// the last of several requests with the same ID may be the failed one
		case r == nil, wc.Status != ib.WCSuccess:
			r = x
		case x.signaled && !r.signaled:
			r = x
		}
	}
	if r == nil {
		return nil, nil
	}
	passed := false
	w.send = slices.DeleteFunc(w.send, func(x *trackedRequest) bool {
		behind := passed && x.begin == r.begin
		passed = passed || x == r
		if !behind && (r.end == 0 || x.begin < r.end) {
			w.finishRequest(x)
			if x.hasChangedSource() {
				changed = append(changed, x)
			}
			return true
		}
		return false
	})
	return r, changed
}

// recordQPState records the state of the queue pair after a Modify.
func (w *workTracker) recordQPState(s ib.QPState) {
	if w == nil {
		return
	}
	if s == ib.QPReset || s == ib.QPErr {
		w.decide(true)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch s {
	case ib.QPRTR:
		w.setConnected(true)
		w.last, w.connectedAt = false, time.Now()
	case ib.QPReset:
		w.setConnected(false)
		w.dropOutstandingRequests()
		w.anyReceive.Store(false)
	}
}

//verbena:held w.mu
func (w *workTracker) setConnected(on bool) {
	if w.connected != on && w.srq != nil {
		w.srq.mu.Lock()
		defer w.srq.mu.Unlock()
		if on {
			w.srq.users++
		} else {
			w.srq.users--
		}
	}
	w.connected = on
}

// dropOutstandingRequests drops the outstanding requests that will not complete.
//
//verbena:held w.mu
func (w *workTracker) dropOutstandingRequests() {
	for _, r := range slices.Concat(w.send, w.recv) {
		w.finishRequest(r)
	}
	w.send, w.recv = nil, nil
}

// recordDestroyedQueue records the destruction of the queue pair or shared receive queue.
func (w *workTracker) recordDestroyedQueue(at []uintptr) {
	if w == nil {
		return
	}
	w.decide(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range slices.Concat(w.send, w.recv) {
		w.finishRequest(r)
	}
	if w.qp == nil {
		return
	}
	w.ended = at
	w.checkNotLeftInSQE(at)
	w.checkLastWQEReached(at)
	w.setConnected(false)
	if w.o.k.program != nil {
		return // its completions are known
	}
	if len(w.send) == 0 && len(w.recv) == 0 && w.srq == nil || w.o.isDeviceInactive() {
		return
	}
	for _, cq := range []*checkedObject{w.sendCQ, w.recvCQ} {
		if cq == nil {
			continue
		}
		cq.deadMu.Lock()
		if cq.dead == nil {
			cq.dead = map[uint32]*workTracker{}
		}
		cq.dead[w.qp.Num()] = w
		cq.deadMu.Unlock()
	}
}

// checkLastWQEReached reports the destruction of a queue pair if the completions of receives from its SRQ may be lost.
//
//verbena:held w.mu
func (w *workTracker) checkLastWQEReached(at []uintptr) {
	if w.srq == nil || !w.connected || w.last {
		return
	}
	w.srq.mu.Lock()
	n := len(w.srq.recv)
	w.srq.unsure = w.srq.unsure || n > 0
	w.srq.mu.Unlock()
	if n == 0 || w.mayHaveLostCompletions() {
		return
	}
	w.o.k.report(Violation{
		Rule: RuleSRQUndrained,
		What: "a QP with a shared receive queue was destroyed before EventQPLastWQEReached: receives that it had taken may be lost",
		Stacks: []Stack{{"the QP destroyed at", formatStack(at)}, {"the QP made at", formatStack(w.o.made)},
			{"the SRQ made at", formatStack(w.srq.o.made)}},
	}, w.o.dev, at)
}

// recordLastWQEReached records the delivery of EventQPLastWQEReached.
func (w *workTracker) recordLastWQEReached() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = true
}

// reportRegionInUse reports a call that ends or changes a region while a work request that uses the region may be in
// progress.
func (k *checker) reportRegionInUse(d *ib.Device, pd *ib.PD, what string, named func(*trackedRequest) bool,
	at []uintptr) {
	if d.State() != ib.DeviceActive {
		return
	}
	var all []*workTracker
	k.mu.Lock()
	for o := range k.live {
		if o.dev == d && o.work != nil && o.work.pd == pd {
			all = append(all, o.work)
		}
	}
	k.mu.Unlock()
	for _, w := range all {
		r := w.findOutstandingRequest(named)
		if r == nil {
			continue
		}
		k.report(Violation{
			Rule:     RuleInFlight,
			What:     fmt.Sprintf("%s while a work request that names the region is outstanding on a %v", what, w.o.kind),
			Requests: describe(r),
			Stacks: []Stack{{what, formatStack(at)}, {"the work request posted at", formatStack(r.at)},
				{fmt.Sprintf("the %v made at", w.o.kind), formatStack(w.o.made)}},
		}, d, at)
		return
	}
}

// findOutstandingRequest returns a request that the device may be executing, or nil. kind selects the requests.
func (w *workTracker) findOutstandingRequest(kind func(*trackedRequest) bool) *trackedRequest {
	if w.qp != nil && (w.o.stopping.Load() || w.state() < ib.QPRTR || w.mayHaveLostCompletions()) {
		return nil
	}
	if w.o.k.program != nil && w.isInErr() {
		return nil // the device executes no more requests
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	free := w.qp == nil && (w.users == 0 || w.unsure)
	if p := w.o.k.program; free && p != nil { // a destroyed queue pair may have taken a receive, and stored to it
		all := kind
		kind = func(r *trackedRequest) bool {
			return all(r) && !slices.ContainsFunc(r.targets, func(t memorySpan) bool {
				return p.writes.mayHaveChanged(t, r.stores)
			})
		}
	} else if free {
		return nil
	}
	for _, q := range []struct {
		of  []*trackedRequest
		cap int
	}{{w.send, w.sendCap}, {w.recv, w.recvCap}} {
		for _, r := range q.of[max(0, len(q.of)-q.cap):] {
			if r.end != 0 && !r.visible && kind(r) {
				return r
			}
		}
	}
	return nil
}

// checkRegionNotInUse reports a region that is deregistered or changed while a work request uses the region.
func (o *checkedObject) checkRegionNotInUse(what string) {
	mr, ok := o.self.(*ib.MR)
	if !ok {
		return
	}
	variants, byRequest := uint32(0), mr.Region() == nil
	if byRequest { // the region is registered by work requests
		variants = 0xff
	}
	lkey, rkey := mr.LKey()|variants, mr.RKey()|variants
	o.k.reportRegionInUse(o.dev, mr.PD(), what, func(r *trackedRequest) bool {
		return r.region == mr || byRequest && r.ends != 0 && r.ends|variants == rkey ||
			slices.ContainsFunc(r.keys, func(k uint32) bool { return k|variants == lkey })
	}, callerPCs())
}
