package ib

import (
	"fmt"
	"slices"
	"sync"
)

// request is a work request from the moment it is posted until a completion proves that it is done.
type request struct {
	id         uint64
	keys       []uint32 // local keys of the memory that it names
	region     *MR      // the region that it registers, or binds a window to; nil: none
	ends       uint32   // the remote key that it invalidates here; 0: none
	signaled   bool
	begin, end uint64 // when posting it began and ended; end 0: it has not
	pending    *CQ    // counted as one that may complete there
	at         []uintptr
}

// work is what checked mode knows of the work requests of a queue pair or a shared receive queue. Those of user contexts are not
// followed, since a program posts and polls without a call. Where threads post or poll at the same time, the order in the
// device is not known; then requests count as done that may not be.
type work struct {
	oc             *objectCheck
	pd             *PD
	qp             *QP   // nil: of an SRQ
	srq            *work // of the queue pair's SRQ
	sendCQ, recvCQ *CQ
	sendCap        int // 0: unknown
	recvCap        int

	mu         sync.Mutex
	seq        uint64
	send, recv []*request // in the order of posting
	connected  bool       // a QP that has been in RTR since it was in RESET
	last       bool       // a QP whose event function has been called with EventQPLastWQEReached since
	ended      []uintptr  // where the QP was destroyed
	users      int        // of an SRQ: queue pairs that are connected
	unsure     bool       // of an SRQ: a QP has gone with requests of it
}

// follow starts tracking the work requests of a queue pair.
func (qp *QP) follow() {
	init := &qp.init
	for _, o := range []*CQ{init.SendCQ, init.RecvCQ} {
		if o != nil && (o.check == nil || o.check.user) {
			return
		}
	}
	if qp.check.user || init.SendCQ == nil {
		return
	}
	w := &work{oc: qp.check, pd: qp.pd, qp: qp, sendCQ: init.SendCQ, recvCQ: init.RecvCQ,
		sendCap: int(init.Cap.MaxSendWR), recvCap: int(init.Cap.MaxRecvWR)}
	if init.SRQ != nil && init.SRQ.check != nil {
		w.srq = init.SRQ.check.work
	}
	qp.check.work = w
}

// follow starts tracking the work requests of a shared receive queue.
func (srq *SRQ) follow() {
	if !srq.check.user {
		srq.check.work = &work{oc: srq.check, pd: srq.pd, recvCap: int(srq.init.Attr.MaxWR)}
	}
}

func keysOf(sgl []SGE) []uint32 {
	var keys []uint32
	for _, s := range sgl {
		if s.Length != 0 {
			keys = append(keys, s.LKey)
		}
	}
	return keys
}

// sends notes work requests that are about to be posted, and returns what is to be called with how many were taken.
func (w *work) sends(f *frame, wrs []SendWR) func(n int) {
	if w == nil || w.sendCap == 0 || f == nil {
		return func(int) {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	var posted []*request
	for i := range wrs {
		wr := &wrs[i]
		r := &request{id: wr.ID, signaled: wr.Flags&SendSignaled != 0 || w.qp.init.SigAll, begin: w.seq, at: f.entry}
		if wr.Flags&SendInline == 0 && wr.Opcode != WRAtomicWrite {
			r.keys = keysOf(wr.SGList)
		}
		switch {
		case wr.Opcode == WRLocalInv:
			r.ends = wr.InvalidateRKey
		case wr.Opcode == WRRegMR && wr.Reg != nil:
			r.region = wr.Reg.MR
		case wr.Opcode == WRBindMW && wr.Bind != nil:
			r.region = wr.Bind.MR
		}
		posted = append(posted, r)
	}
	w.send = append(w.send, posted...)
	return func(n int) {
		w.taken(&w.send, posted, n, w.sendCQ, w.sendCap)
		w.checkSignaled(f)
		w.checkRoom(f, w.sendCQ)
	}
}

// recvs does the same for receives.
func (w *work) recvs(f *frame, wrs []RecvWR) func(n int) {
	if w == nil || w.recvCap == 0 || f == nil {
		return func(int) {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	var posted []*request
	for i := range wrs {
		posted = append(posted, &request{id: wrs[i].ID, keys: keysOf(wrs[i].SGList), signaled: true, begin: w.seq, at: f.entry})
	}
	w.recv = append(w.recv, posted...)
	return func(n int) {
		w.taken(&w.recv, posted, n, w.recvCQ, w.recvCap)
		w.checkRoom(f, w.recvCQ)
	}
}

// taken notes that the driver has taken the first n. A queue that takes more than there is room for has done the oldest.
func (w *work) taken(queue *[]*request, posted []*request, n int, cq *CQ, room int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	for i, r := range posted {
		if i < n {
			r.end = w.seq
		}
	}
	*queue = slices.DeleteFunc(*queue, func(r *request) bool {
		if r.end == w.seq && cq != nil {
			r.pending = cq
			cq.check.pending.Add(1)
		}
		return r.end == 0 && slices.Contains(posted, r)
	})
	for len(*queue) > 2*room+64 {
		(*queue)[0].done()
		*queue = (*queue)[1:]
	}
}

// done is called with the mu of its work held.
func (r *request) done() {
	if r.pending != nil {
		r.pending.check.pending.Add(-1)
		r.pending = nil
	}
}

// checkSignaled reports that the send queue has taken more than it has room for with no signaled work request among them. Signaled
// ones are not counted: hardware would refuse the post until they have been polled, and the consumer may know what to do.
func (w *work) checkSignaled(f *frame) {
	w.mu.Lock()
	out := slices.Clone(w.send)
	w.mu.Unlock()
	unsignaled := !slices.ContainsFunc(out, func(r *request) bool { return r.signaled || r.end == 0 })
	if len(out) <= w.sendCap || !unsignaled || w.sendCQ.check.polling.Load() > 0 || w.oc.uncertain() {
		return
	}
	w.oc.k.report(Violation{
		Rule: RuleUnsignaledOnly,
		What: fmt.Sprintf("a send queue of %d was filled with work requests of which none is signaled: "+
			"no completion would make room for another", w.sendCap),
		Stacks: []Stack{{"QP.PostSend", trace(f.entry)}, {"the oldest posted at", trace(out[0].at)},
			{"the QP made at", trace(w.oc.made)}},
	}, w.oc.dev, f.entry)
}

// checkRoom reports that more may complete on a CQ than it has entries for.
func (w *work) checkRoom(f *frame, cq *CQ) {
	if cq == nil || cq.check.mayOverrun || cq.check.broken.Load() || w.oc.uncertain() {
		return
	}
	n, entries := cq.check.pending.Load(), cq.Entries()
	if n <= int64(entries) || cq.check.polling.Load() > 0 {
		return
	}
	w.oc.k.report(Violation{
		Rule: RuleCQTooSmall,
		What: fmt.Sprintf("%d work requests are posted that may complete on a CQ of %d entries", n, entries),
		Stacks: []Stack{{f.what, trace(f.entry)}, {"the CQ made at", trace(cq.check.made)},
			{"the QP made at", trace(w.oc.made)}},
	}, w.oc.dev, f.entry)
}

// uncertain reports that nothing is to be concluded: the device is in error, or has gone.
func (oc *objectCheck) uncertain() bool { return oc.dev.State() != DeviceActive }

// lost reports that completions of the queue pair may have been lost.
func (w *work) lost() bool {
	return w.oc.uncertain() || w.sendCQ != nil && w.sendCQ.check.broken.Load() || w.recvCQ != nil && w.recvCQ.check.broken.Load()
}

// polled notes completions that a consumer has got from cq. before are the queue pairs that were destroyed before it polled.
func (cq *CQ) polled(f *frame, wcs []WC, before map[uint32]*work) {
	oc := cq.check
	for i := range wcs {
		wc := &wcs[i]
		if wc.QP != nil && wc.QP.check != nil {
			wc.QP.check.work.completed(cq, wc)
			continue
		}
		if w := before[wc.QPNum]; w != nil && wc.QP == nil {
			if r := w.completed(cq, wc); r != nil && !w.lost() {
				oc.k.report(Violation{
					Rule: RuleDestroyUndrained,
					What: fmt.Sprintf("a completion of QP %d was polled when the QP had been destroyed: "+
						"the ID may name what has been freed", wc.QPNum),
					Stacks: []Stack{{"CQ.Poll", trace(f.entry)}, {"the QP destroyed at", trace(w.ended)}, {"the work request posted at", trace(r.at)}},
				}, oc.dev, w.ended)
			}
		}
	}
	if len(wcs) > 0 || len(before) == 0 {
		return
	}
	if c, ok := As[CQCounter](cq.drv); ok && c.Waiting() > 0 {
		return // the device delays completions
	}
	oc.deadMu.Lock()
	defer oc.deadMu.Unlock()
	for num, w := range before { // nothing more of them can be there
		if oc.dead[num] == w {
			delete(oc.dead, num)
		}
	}
}

// destroyedQPs are those of which completions may be in the queue.
func (oc *objectCheck) destroyedQPs() map[uint32]*work {
	oc.deadMu.Lock()
	defer oc.deadMu.Unlock()
	if len(oc.dead) == 0 {
		return nil
	}
	m := make(map[uint32]*work, len(oc.dead))
	for num, w := range oc.dead {
		m[num] = w
	}
	return m
}

// completed notes a completion on cq, and returns the request that it is of, nil if that is not known.
func (w *work) completed(cq *CQ, wc *WC) (r *request) {
	if w == nil {
		return nil
	}
	mayRecv := w.recvCQ == cq && (wc.Status != WCSuccess || wc.Opcode&WCRecv != 0)
	maySend := w.sendCQ == cq && (wc.Status != WCSuccess || wc.Opcode&WCRecv == 0)
	if maySend {
		w.mu.Lock()
		r = w.sent(wc)
		w.mu.Unlock()
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
	i := slices.IndexFunc(from.recv, func(x *request) bool { return x.id == wc.ID })
	if i < 0 {
		return r
	}
	r = from.recv[i]
	r.done()
	from.recv = slices.Delete(from.recv, i, i+1)
	return r
}

// sent takes the request of a completion out of the send queue, with all that may have been before it. Requests behind it in the list of
// one PostSend stay.
//
//verbena:held w.mu
func (w *work) sent(wc *WC) *request {
	var r *request
	same := 0
	for _, x := range w.send {
		if x.id != wc.ID {
			continue
		}
		same++
		switch {
		case r == nil, wc.Status != WCSuccess: // of several with that ID it may be the last
			r = x
		case x.signaled && !r.signaled:
			r = x
		}
	}
	if r == nil {
		return nil
	}
	passed := false
	w.send = slices.DeleteFunc(w.send, func(x *request) bool {
		behind := passed && x.begin == r.begin
		passed = passed || x == r
		if !behind && (r.end == 0 || x.begin < r.end) {
			x.done()
			return true
		}
		return false
	})
	return r
}

// moved notes that Modify has brought the queue pair to a state.
func (w *work) moved(s QPState) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch s {
	case QPRTR:
		w.connect(true)
		w.last = false
	case QPReset:
		w.connect(false)
		w.forget()
	}
}

//verbena:held w.mu
func (w *work) connect(on bool) {
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

// forget drops what is outstanding: it will not complete.
//
//verbena:held w.mu
func (w *work) forget() {
	for _, r := range slices.Concat(w.send, w.recv) {
		r.done()
	}
	w.send, w.recv = nil, nil
}

// gone notes that the queue pair or shared receive queue has been destroyed.
func (w *work) gone(at []uintptr) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range slices.Concat(w.send, w.recv) {
		r.done()
	}
	if w.qp == nil {
		return
	}
	w.ended = at
	w.checkLast(at)
	w.connect(false)
	if len(w.send) == 0 && len(w.recv) == 0 && w.srq == nil || w.oc.uncertain() {
		return
	}
	for _, cq := range []*CQ{w.sendCQ, w.recvCQ} {
		if cq == nil {
			continue
		}
		oc := cq.check
		oc.deadMu.Lock()
		if oc.dead == nil {
			oc.dead = map[uint32]*work{}
		}
		oc.dead[w.qp.num] = w
		oc.deadMu.Unlock()
	}
}

// checkLast reports the destruction of a queue pair that may have taken receives from its SRQ whose completions are
// lost.
//
//verbena:held w.mu
func (w *work) checkLast(at []uintptr) {
	if w.srq == nil || !w.connected || w.last {
		return
	}
	w.srq.mu.Lock()
	n := len(w.srq.recv)
	w.srq.unsure = w.srq.unsure || n > 0
	w.srq.mu.Unlock()
	if n == 0 || w.lost() {
		return
	}
	w.oc.k.report(Violation{
		Rule: RuleSRQUndrained,
		What: "a QP with a shared receive queue was destroyed before EventQPLastWQEReached: receives that it had taken may be lost",
		Stacks: []Stack{{"the QP destroyed at", trace(at)}, {"the QP made at", trace(w.oc.made)},
			{"the SRQ made at", trace(w.srq.oc.made)}},
	}, w.oc.dev, at)
}

// lastWQE notes that EventQPLastWQEReached is being delivered.
func (w *work) lastWQE() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = true
}

// inFlight reports that a region that a call ends or changes is named by a work request that may not be done.
func (k *checker) inFlight(d *Device, pd *PD, what string, named func(*request) bool, place []uintptr) {
	if d.State() != DeviceActive {
		return
	}
	var all []*work
	k.mu.Lock()
	for oc := range k.live {
		if oc.dev == d.root && oc.work != nil && oc.work.pd == pd {
			all = append(all, oc.work)
		}
	}
	k.mu.Unlock()
	for _, w := range all {
		r := w.outstanding(named)
		if r == nil {
			continue
		}
		k.report(Violation{
			Rule: RuleInFlight,
			What: fmt.Sprintf("%s while a work request that names the region is outstanding on a %v", what, w.oc.kind),
			Stacks: []Stack{{what, trace(place)}, {"the work request posted at", trace(r.at)},
				{fmt.Sprintf("the %v made at", w.oc.kind), trace(w.oc.made)}},
		}, d, place)
		return
	}
}

// outstanding returns a request of a kind that the device may be carrying out, nil if there is none.
func (w *work) outstanding(kind func(*request) bool) *request {
	if w.qp != nil && (w.qp.live() != nil || w.qp.State() < QPRTR || w.lost()) {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.qp == nil && (w.users == 0 || w.unsure) {
		return nil
	}
	for _, q := range []struct {
		of  []*request
		cap int
	}{{w.send, w.sendCap}, {w.recv, w.recvCap}} {
		for _, r := range q.of[max(0, len(q.of)-q.cap):] {
			if r.end != 0 && kind(r) {
				return r
			}
		}
	}
	return nil
}

// checkInFlight reports that a region is deregistered, or changed, under a work request that names it.
func (mr *MR) checkInFlight(what string) {
	if mr.check == nil || mr.check.user {
		return
	}
	variants := uint32(0)
	if mr.maxPages != 0 {
		variants = 0xff
	}
	lkey, rkey := mr.lkey|variants, mr.rkey|variants
	mr.check.k.inFlight(mr.dev, mr.pd, what, func(r *request) bool {
		return r.region == mr || mr.maxPages != 0 && r.ends != 0 && r.ends|variants == rkey ||
			slices.ContainsFunc(r.keys, func(k uint32) bool { return k|variants == lkey })
	}, callers(1))
}
