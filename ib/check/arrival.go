package check

import (
	"slices"

	"verbena/ib"
)

// copySources copies the memory that a program's request sends. It waits for the memory of the program.
func (w *workTracker) copySources(r *trackedRequest, wr *ib.SendWR) {
	p := w.o.k.program
	if p == nil {
		return
	}
	r.messages = w.messages.Load()
	if x, ok := p.regionByRKey(w.o.dev, wr.RKey); ok && r.info.Opcode != ib.WRSend.String() {
		r.ownWrite = memorySpan{wr.RemoteAddr + x.memory.Addr() - x.memory.IOVA(), r.info.Length}
	}
	if !isSampled(r.info.Index) {
		return
	}
	r.sampled = true
	if p.cfg.Rules&sourceRules != 0 {
		r.contents = w.o.newContents(wr.SGList, r.info.Length)
		w.o.k.program.copyContents(&r.contents)
		r.sampled = len(r.contents) > 0
	}
}

// The rules that compare memory. Without them, no memory is copied and no completion delayed.
const (
	sourceRules = RuleSet(1)<<RuleSourceChanged | 1<<RuleSourceAfterReply
	targetRules = RuleSet(1) << RuleTargetWritten
)

// regionByRKey returns the region of a program with a remote key.
func (p *Program) regionByRKey(dev *ib.Device, rkey uint32) (region *memoryRegion, ok bool) {
	p.k.regions.Range(func(_, x any) bool {
		r := x.(*memoryRegion)
		if ok = r.key.dev == dev && r.memory != nil && r.user.rkey == rkey; ok {
			region = r
		}
		return !ok
	})
	return region, ok
}

// newContents returns the elements of a list, up to a length, without copies.
func (o *checkedObject) newContents(list []ib.SGE, length uint64) (all []*contents) {
	for i, s := range list {
		n := min(uint64(s.Length), length)
		length -= n
		if r := o.findRegion(s); r != nil && n > 0 && !r.memory.OnDemand() {
			all = append(all, &contents{of: r, index: i, addr: s.Addr, n: n, at: s.Addr + r.memory.Addr() - r.memory.IOVA()})
		}
	}
	return all
}

// copyContents copies the elements. It removes elements that cannot be read, and those for which there is no room.
func (p *Program) copyContents(all *[]*contents) {
	*all = slices.DeleteFunc(*all, func(c *contents) bool {
		if c.copied != nil {
			return false // the stored data
		}
		if p.copied.Add(int64(c.size())) > maxCopies {
			p.copied.Add(-int64(c.size()))
			return true
		}
		c.writes = p.writes.changeCount()
		c.copied = make([]byte, c.size())
		if c.read(c.copied) != nil {
			p.copied.Add(-int64(c.size()))
			return true
		}
		return false
	})
}

func (p *Program) dropContents(all []*contents) {
	for _, c := range all {
		p.copied.Add(-int64(len(c.copied)))
	}
}

// Arrival is a completion that the device has reported, and the program has not received, with the memory to compare.
type Arrival struct {
	w       *workTracker
	sources []arrivedData
	targets []arrivedData
	failed  []failedRequest
	seen    bool // the targets have been copied
}

// failedRequest is a request that the device has not executed.
type failedRequest struct {
	of *workTracker
	r  *trackedRequest
}

// arrivedData is the memory of a request that the device has executed.
type arrivedData struct {
	r   *trackedRequest
	all []*contents
}

// Arrived records that the device has reported a completion, with the ID of its post. It returns nil if there is
// nothing to examine. Otherwise the caller calls Copy soon, waits, and calls Compare before it delivers the completion.
// The completion of a datagram waits even without memory to compare: the program may destroy the address handle too
// early. Arrived may not sleep.
func (c *UserCQ) Arrived(wc *ib.WC) *Arrival {
	q := c.p.qpOf(wc.QPNum)
	if q == nil {
		return nil
	}
	w := q.o.work
	a := &Arrival{w: w}
	w.mu.Lock()
	i := slices.IndexFunc(w.send, func(r *trackedRequest) bool { return r.id == wc.ID })
	handles := false
	if i >= 0 && wc.Status == ib.WCSuccess {
		for _, r := range w.send[:i+1] {
			handles = handles || w.qp.Type() == ib.QPTypeUD && isSampled(r.info.Index) && c.p.cfg.Rules.Has(RuleAHInFlight)
			if len(r.contents) > 0 {
				a.sources = append(a.sources, arrivedData{r, r.contents})
				r.contents = nil
			}
			if r.isRead && isSampled(r.info.Index) && c.p.cfg.Rules&targetRules != 0 {
				a.targets = append(a.targets, arrivedData{r, w.o.k.program.takeImages(w.o, r, r.info.Length)})
			}
		}
	}
	if i >= 0 && wc.Status != ib.WCSuccess {
		a.failed = append(a.failed, failedRequest{w, w.send[i]})
	}
	w.mu.Unlock()
	if i < 0 && wc.Status != ib.WCSuccess {
		a.addFailedReceive(wc)
	}
	if i < 0 && wc.Status == ib.WCSuccess {
		w.messages.Add(1)
		if wc.Opcode == ib.WCRecv && c.p.cfg.Rules&targetRules != 0 {
			a.addReceive(wc)
		}
	}
	if !handles && len(a.sources) == 0 && len(a.targets) == 0 && (len(a.failed) == 0 || wc.Status == ib.WCWRFlushErr) {
		return nil
	}
	return a
}

// AwaitsReply reports whether a message of the peer should be delivered before the completion, for
// RuleSourceAfterReply.
func (a *Arrival) AwaitsReply() bool {
	return len(a.sources) > 0 && a.w.o.k.program.cfg.Rules.Has(RuleSourceAfterReply)
}

// addFailedReceive adds a receive that has failed.
func (a *Arrival) addFailedReceive(wc *ib.WC) {
	from := a.w
	if from.srq != nil {
		from = from.srq
	}
	from.mu.Lock()
	defer from.mu.Unlock()
	if i := slices.IndexFunc(from.recv, func(r *trackedRequest) bool { return r.id == wc.ID }); i >= 0 {
		from.recv[i].info.QPN, from.recv[i].info.Peer = a.w.qp.Num(), a.w.peer.Load()
		a.failed = append(a.failed, failedRequest{from, from.recv[i]})
	}
}

// addReceive adds the memory of a completed receive.
func (a *Arrival) addReceive(wc *ib.WC) {
	from := a.w
	if from.srq != nil {
		from = from.srq
	}
	n := uint64(wc.ByteLen)
	from.mu.Lock()
	defer from.mu.Unlock()
	i := slices.IndexFunc(from.recv, func(r *trackedRequest) bool { return r.id == wc.ID })
	if i < 0 || !isSampled(from.recv[i].info.Index) {
		return
	}
	r := from.recv[i]
	r.info.QPN, r.info.Peer = a.w.qp.Num(), a.w.peer.Load()
	if all := from.o.k.program.takeImages(from.o, r, n); len(all) > 0 {
		a.targets = append(a.targets, arrivedData{r, all})
	}
}

// Copy checks that the memory of a failed request is mapped, and copies the memory to which the device has stored the
// data, unless the data are known. It waits for the memory of the program. Calls of Copy
// and Compare must not overlap.
func (a *Arrival) Copy() {
	if a.seen {
		return
	}
	a.seen = true
	for _, f := range a.failed {
		f.of.checkMapped(f.r)
	}
	for i := range a.targets {
		a.w.o.k.program.copyContents(&a.targets[i].all)
	}
}

// Compare reports memory that has changed. It waits for the memory of the program.
func (a *Arrival) Compare() {
	p := a.w.o.k.program
	for _, s := range a.sources {
		for _, c := range s.all {
			a.compare(s.r, c, p.sourceRule)
		}
	}
	for i := range a.targets {
		t := &a.targets[i]
		for _, c := range t.all {
			a.compare(t.r, c, func(*workTracker, *trackedRequest, *contents) (Rule, string) {
				return RuleTargetWritten, "the program changed the memory of a work request before it polled the completion: an " +
					"adapter may store the data later, and overwrite the change"
			})
		}
	}
	a.Drop()
}

// Drop frees the copies of a completion that is not compared, or has been compared. It may not sleep.
func (a *Arrival) Drop() {
	p := a.w.o.k.program
	for _, list := range [][]arrivedData{a.sources, a.targets} {
		for _, d := range list {
			p.dropContents(d.all)
		}
	}
	a.sources, a.targets = nil, nil
}

// compare reports a change of an element. rule returns the violated rule and its description.
func (a *Arrival) compare(r *trackedRequest, c *contents, rule func(*workTracker, *trackedRequest, *contents) (Rule,
	string)) {
	if c.copied == nil {
		return
	}
	p := a.w.o.k.program
	d, unmapped := c.difference()
	if unmapped {
		a.w.checkMapped(r)
		return
	}
	if d == nil || a.w.mayHaveLostCompletions() || p.writes.mayHaveChanged(c.span(), c.writes) {
		return
	}
	which, what := rule(a.w, r, c)
	p.k.report(Violation{Rule: which, What: what, Requests: describe(r), Memory: d}, a.w.o.dev, nil)
}

// sourceRule returns the rule that a change of a request's source violates.
func (p *Program) sourceRule(w *workTracker, r *trackedRequest, c *contents) (Rule, string) {
	if w.messages.Load() != r.messages || p.hasPeerWritten(r, c) {
		return RuleSourceAfterReply, "the memory of a work request was changed after a message of the peer, and before the " +
			"completion was polled: the device may have to send it again"
	}
	return RuleSourceChanged, "the memory of a work request was changed before the completion was polled: the peer may " +
		"get the old data or the new data"
}

// hasPeerWritten reports whether the device may have stored data of a peer's WRITE since the post of a request. c is a
// copy from the time of the post.
func (p *Program) hasPeerWritten(r *trackedRequest, c *contents) bool {
	written, complete := p.writes.since(c.writes)
	if !complete {
		return true
	}
	finished, complete := p.k.landings.since(r.since)
	if !complete {
		return true
	}
	return slices.ContainsFunc(written, func(s memorySpan) bool {
		return !p.isTarget(s) &&
			!slices.ContainsFunc(finished, func(t memorySpan) bool { return t.contains(s) })
	})
}

// isTarget reports whether an outstanding request of the program stores to a range.
func (p *Program) isTarget(s memorySpan) bool {
	return slices.ContainsFunc(p.k.trackers(), func(w *workTracker) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(slices.Concat(w.send, w.recv), func(r *trackedRequest) bool {
			return r.ownWrite.contains(s) || slices.ContainsFunc(r.targets, func(t memorySpan) bool { return t.contains(s) })
		})
	})
}
