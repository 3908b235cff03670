package check

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib"
	"verbena/umem"
)

// User is implemented by an ib.UserContext whose program may ask for checks.
type User interface {
	// CheckConfig returns the settings, or nil if the program did not ask. CheckConfig may not sleep.
	CheckConfig() *ProgramConfig
	// IsEnding reports whether the context is being closed, for example at the end of the process. Destructions by the
	// close are not reported. IsEnding may not sleep.
	IsEnding() bool
}

// ProgramConfig configures the checks of a program.
type ProgramConfig struct {
	Rules RuleSet // enabled rules
	// Report is called for each violation, once for each site: a rule, an opcode and a region. When the program is
	// closed, Report is called again for each repeated violation, with its number. Report may be called with locks held.
	// It may not sleep.
	Report func(Violation)
	// Group, if not nil, contains the program. PID is the number of its process, for reports about others of the group.
	Group *ProgramGroup
	PID   int
}

// maxProgramSites limits the violations of each rule that are reported.
const maxProgramSites = 100

// Program checks the objects of a user context. The program posts and polls in shared memory, without a call. A
// wrapper of the driver (package driver/relay) therefore reports each step of a work request to the Program: the post,
// the arrival of the completion, its delivery to the queue of the program, and its poll. The rules are those of checked
// mode. Violations have no stacks.
//
// A rule about memory is decided by comparison: the contents must not change while the request is outstanding, unless
// the device stores to the memory.
type Program struct {
	k      *checker
	cfg    ProgramConfig
	user   User
	writes deviceWrites
	copied atomic.Int64 // total size of the copies
	stores storedImages
	watch  mappingWatch
	sends  watchedSends

	mu    sync.Mutex // before the locks of queues
	qps   map[uint32]*UserQP
	keys  map[regionKey]*userRegion // by local key: present and ended regions
	ended []regionKey               // keys of ended regions, oldest first
	// windows contains the present windows, and the last ended ones, oldest first.
	windows []*UserMW
	cqs     int                       // number of completion queues so far
	srqs    map[*workTracker]struct{} // the shared receive queues
}

// NewProgram returns the checks of a user context.
func NewProgram(cfg ProgramConfig, user User) *Program {
	p := &Program{cfg: cfg, user: user, qps: map[uint32]*UserQP{}, keys: map[regionKey]*userRegion{},
		srqs: map[*workTracker]struct{}{}}
	p.k = newChecker(Config{Report: cfg.Report, TargetReuse: cfg.Rules.Has(RuleTargetReused)})
	p.k.program = p
	cfg.Group.add(p)
	return p
}

func (p *Program) isEnding() bool { return p.user.IsEnding() }

// Close reports the numbers of repeated violations. No other method may be called afterwards.
func (p *Program) Close() {
	p.cfg.Group.remove(p)
	p.watch.close()
	k := p.k
	k.reporting.Lock()
	defer k.reporting.Unlock()
	for _, s := range k.sites {
		if s.count > 1 {
			v := s.first
			v.Count = s.count
			k.cfg.Report(v)
		}
	}
	clear(k.sites)
}

// programSite identifies the place of a violation of a program.
func (v *Violation) programSite() string {
	if len(v.Requests) == 0 {
		return fmt.Sprintf("%v %s %p", v.Rule, v.Device, v.object)
	}
	region := uint64(0)
	if v.Memory != nil {
		region = v.Memory.region
	}
	return fmt.Sprint(v.Rule, v.Device, v.Requests[0].Opcode, region)
}

// newObject returns the checked state of an object of the program.
func (p *Program) newObject(self any, kind string, dev *ib.Device) *checkedObject {
	o := &checkedObject{k: p.k, self: self, kind: kind, dev: dev}
	o.addLiveObject()
	return o
}

// deviceWrites records the ranges to which the device has stored data.
type deviceWrites struct{ memoryChanges }

// record records the begin or the end of a store.
func (d *deviceWrites) record(addr, n uint64) { d.recordChanges([]memorySpan{{addr, n}}) }

// since returns the ranges since a count. complete is false if some are no longer known.
func (l *memoryChanges) since(count uint64) (spans []memorySpan, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count-count > maxLandings {
		return nil, false
	}
	for n := count; n < l.count; n++ {
		spans = append(spans, l.last[n%maxLandings])
	}
	return spans, true
}

// contains reports whether o lies in s.
func (s memorySpan) contains(o memorySpan) bool {
	return o.addr >= s.addr && o.n <= s.n && o.addr-s.addr <= s.n-o.n
}

// UserMR is the checked state of a region of a program.
type UserMR struct {
	p *Program
	o *checkedObject
}

// ObserveRegion must be called before the region is used. It may not sleep.
func (p *Program) ObserveRegion(r *umem.Region) {
	if !r.OnDemand() {
		r.ObserveWrites(p.recordStore)
	}
}

// AddMR adds a region with its keys. domain is the driver's side of its protection domain.
func (p *Program) AddMR(mr *ib.MR) *UserMR { return &UserMR{p, p.newObject(mr, "MR", mr.Device())} }

// SetMemory sets the memory and the keys of the region, when it has been registered or changed. r may be nil. SetMemory
// may not sleep.
func (m *UserMR) SetMemory(r *umem.Region, domain ib.DriverPD, access ib.AccessFlags, lkey, rkey uint32) {
	u := &userRegion{domain: domain, access: access, lkey: lkey, rkey: rkey}
	if r != nil && !r.OnDemand() {
		u.iova, u.n, u.known = r.IOVA(), r.Len(), true
	}
	x := &memoryRegion{key: regionKey{m.o.dev, lkey}, memory: r, user: u}
	m.o.region.Store(x)
	m.o.k.regions.Store(x.key, x)
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	m.p.keys[x.key] = u
}

// Ending records the begin of a deregistration, or of another change of the region, and reports outstanding requests
// that use it. It waits for comparisons of the memory.
func (m *UserMR) Ending(what string) {
	x := m.o.region.Load()
	if x == nil {
		return
	}
	m.o.endRegionComparisons()
	x.waitForReads()
	m.p.reportInUse(RuleInFlight, what, "region", func(r *trackedRequest) bool {
		return slices.Contains(r.keys, x.user.lkey)
	})
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	x.user.lifetime = lifetime{what, time.Now()}
	m.p.ended = append(m.p.ended, x.key)
	if len(m.p.ended) > maxEndedKeys {
		if old := m.p.keys[m.p.ended[0]]; old != nil && old.endedBy != "" {
			delete(m.p.keys, m.p.ended[0])
		}
		m.p.ended = m.p.ended[1:]
	}
}

// Destroyed records the end of the region.
func (m *UserMR) Destroyed() { m.o.removeLiveObject() }

// UserCQ is the checked state of a completion queue of a program. The caller serialises Arrived, Delivered and
// Consumed.
type UserCQ struct {
	p         *Program
	o         *checkedObject
	delivered []delivery // completions that the program has not polled
	number    int        // counted from 1 in the user context
	armed     armedWait
}

// armedWait describes an armed queue with completions. They cause no event.
type armedWait struct {
	since   time.Time // time of the arming
	left    int       // number of completions of that time that the program has not polled
	part    bool      // the program has polled some
	answers int64     // number of events before
}

// delivery is a completion in the queue of the program.
type delivery struct {
	wc  ib.WC
	qp  *UserQP
	srq *workTracker // for a receive of a destroyed queue pair, or nil
}

// AddCQ adds a completion queue.
func (p *Program) AddCQ(cq *ib.CQ) *UserCQ {
	c := &UserCQ{p: p, o: p.newObject(cq, "CQ", cq.Device())}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cqs++
	c.number = p.cqs
	return c
}

// String names the queue for a report.
func (c *UserCQ) String() string {
	return fmt.Sprintf("CQ number %d of the device file, with %d entries", c.number, c.o.self.(*ib.CQ).Entries())
}

// Destroyed records the end of the queue.
func (c *UserCQ) Destroyed() { c.o.removeLiveObject() }

// Overrun reports that a completion was lost, because the queue was full.
func (c *UserCQ) Overrun() {
	c.o.broken.Store(true)
	if c.o.isDeviceInactive() {
		return
	}
	c.p.k.report(Violation{Rule: RuleCQTooSmall, What: fmt.Sprintf("a completion was lost: %v was full", c), object: c.o},
		c.o.dev, nil)
}

// Armed records that the program has armed the queue. waiting is the number of completions in the queue. Armed may not
// sleep.
func (c *UserCQ) Armed(waiting int) {
	switch {
	case waiting == 0:
		c.armed = armedWait{}
	case c.armed.part || !c.isUnpolled():
		c.armed = armedWait{since: time.Now(), left: waiting, answers: c.o.answers.Load()}
	}
}

// isUnpolled reports whether the program has armed the queue while it held completions, and has since neither polled
// all of them nor got an event.
func (c *UserCQ) isUnpolled() bool { return c.armed.left > 0 && c.armed.answers == c.o.answers.Load() }

// polled records that the program has polled n completions. The time of the polls is unknown.
func (c *UserCQ) polled(n int) {
	c.o.polls.Add(1)
	if c.armed.left > 0 {
		c.armed.left, c.armed.part = max(c.armed.left-n, 0), true
	}
}

// Ending records the begin of the destruction by the program, or at its end. It reports a queue that the program has
// armed with completions, and has not polled, or only in part, afterwards. A program that works, and polls later, gets
// no report. One that has polled a part may not need the others, so it must end without a destruction of the queue.
// Consumed must have been called before.
func (c *UserCQ) Ending() {
	waited := time.Since(c.armed.since)
	if !c.isUnpolled() || waited < c.p.k.cfg.Timeout || len(c.delivered) == 0 || c.o.isDeviceInactive() ||
		c.armed.part && !c.p.isEnding() {
		return
	}
	how := "and not polled until its end"
	if c.armed.part {
		how = fmt.Sprintf("and %d of them were not polled until its end", c.armed.left)
	}
	c.p.k.report(Violation{
		Rule: RuleArmWithoutPoll,
		What: fmt.Sprintf("%v was armed with completions in it, %s, %v later: the notification that the program waits for may "+
			"never come", c, how, waited.Round(time.Millisecond)),
		object: c.o, atEnd: true,
	}, c.o.dev, nil)
}

// Notified records an event for the program.
func (c *UserCQ) Notified() { c.o.answers.Add(1) }

// Delivered records that a completion, with the ID of its post, is about to be added to the queue of the program. The
// program may retrieve it from then on. It may publish the retrieval later (ibv_end_poll(3)).
func (c *UserCQ) Delivered(wc *ib.WC) {
	q := c.p.qpOf(wc.QPNum)
	d := delivery{wc: *wc, qp: q}
	if q != nil {
		q.o.work.recordVisible(wc)
	} else if d.srq = c.p.srqOf(wc.ID); d.srq != nil {
		d.srq.recordVisible(wc)
	}
	c.delivered = append(c.delivered, d)
}

// srqOf returns the shared receive queue with an outstanding receive, or nil.
func (p *Program) srqOf(id uint64) *workTracker {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.srqs {
		if w.hasReceive(id) {
			return w
		}
	}
	return nil
}

func (w *workTracker) hasReceive(id uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.recv, func(r *trackedRequest) bool { return r.id == id })
}

// recordVisible records that the program may retrieve a completion.
func (w *workTracker) recordVisible(wc *ib.WC) {
	w.mu.Lock()
	i := slices.IndexFunc(w.send, func(r *trackedRequest) bool { return r.id == wc.ID })
	for _, r := range w.send[:i+1] {
		r.visible = true
	}
	w.mu.Unlock()
	if i >= 0 {
		return
	}
	if w.srq != nil {
		w = w.srq
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i = slices.IndexFunc(w.recv, func(r *trackedRequest) bool { return r.id == wc.ID }); i >= 0 {
		w.recv[i].visible = true
	}
}

// Consumed records that only the last waiting completions are still in the queue of the program. It reports a queue
// without enough room for the outstanding requests.
func (c *UserCQ) Consumed(waiting int) {
	n := max(len(c.delivered)-waiting, 0)
	f := &frame{k: c.p.k, what: "ibv_poll_cq", entry: []uintptr{}} // sqeWatch distinguishes nil
	for i := range c.delivered[:n] {
		d := &c.delivered[i]
		if d.srq != nil {
			d.srq.finishReceive(d.wc.ID)
		}
		if d.qp == nil {
			continue
		}
		r := d.qp.o.work.recordCompletion(f, c.o, &d.wc)
		if r != nil && d.qp.destroyed.Load() && !d.qp.o.work.mayHaveLostCompletions() {
			c.p.k.report(Violation{
				Rule: RuleDestroyUndrained,
				What: fmt.Sprintf("a completion of QP %d was polled after the QP had been destroyed: an adapter may discard it",
					d.wc.QPNum),
				Requests: describe(r), atEnd: true,
			}, c.o.dev, nil)
		}
	}
	if n > 0 {
		c.polled(n)
		if c.delivered = c.delivered[n:]; len(c.delivered) == 0 {
			c.delivered = nil
		}
	}
	c.checkRoom()
	c.o.confirmReuse()
}

// checkRoom reports a queue without enough room for the outstanding requests. The program has not polled more
// completions than the checks know, so all counted requests are outstanding.
func (c *UserCQ) checkRoom() {
	n := c.o.pending.Load()
	if n <= int64(c.o.self.(*ib.CQ).Entries()) || c.o.broken.Load() || c.o.isDeviceInactive() {
		return
	}
	what := fmt.Sprintf("%d posted work requests complete on %v", n, c)
	c.p.k.report(Violation{Rule: RuleCQTooSmall, What: what, object: c.o}, c.o.dev, nil)
}

// qpOf returns the queue pair with a number, or nil.
func (p *Program) qpOf(num uint32) *UserQP {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.qps[num]
}

// UserSRQ is the checked state of a shared receive queue of a program.
type UserSRQ struct{ userQueue }

// UserQP is the checked state of a queue pair of a program.
type UserQP struct {
	userQueue
	destroyed atomic.Bool
	refused   atomic.Int64 // calls of Refused since the last Sending
	order     uint64       // number of the request of Fetched
}

// userQueue is a queue with work requests.
type userQueue struct {
	p *Program
	o *checkedObject
}

// AddSRQ adds a shared receive queue.
func (p *Program) AddSRQ(srq *ib.SRQ, domain ib.DriverPD, maxWR uint32) *UserSRQ {
	s := &UserSRQ{userQueue{p, p.newObject(srq, "SRQ", srq.Device())}}
	s.o.work = &workTracker{o: s.o, domain: domain, recvCap: int(maxWR)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.srqs[s.o.work] = struct{}{}
	return s
}

// AddQP adds a queue pair with the driver's side. c is the capacity that the program knows. The queues may be nil.
func (p *Program) AddQP(qp *ib.QP, side ib.DriverQP, init *ib.DriverQPInit, c ib.QPCap, send, recv *UserCQ,
	srq *UserSRQ) *UserQP {
	q := &UserQP{userQueue: userQueue{p, p.newObject(qp, "QP", qp.Device())}}
	w := &workTracker{o: q.o, qp: qp, side: side, domain: init.PD, sigAll: init.SigAll, sendCap: int(c.MaxSendWR),
		recvCap: int(c.MaxRecvWR)}
	if send != nil {
		w.sendCQ = send.o
	}
	if recv != nil {
		w.recvCQ = recv.o
	}
	if srq != nil {
		w.srq = srq.o.work
	}
	q.o.work = w
	p.mu.Lock()
	defer p.mu.Unlock()
	p.qps[qp.Num()] = q
	return q
}

// Fetched records that the program has posted a request. Sending must follow. The caller serialises both.
func (q *UserQP) Fetched() { q.order = q.p.sends.posts.Add(1) }

// Sending records a request before its post. wr.ID identifies the completion, id is the program's ID, and ah the number
// of the address handle, or 0. After the post, the caller calls the returned function with the number of accepted
// requests. Sending waits for the memory of the program.
func (q *UserQP) Sending(wr *ib.SendWR, id uint64, ah uint32) (posted func(n int)) {
	q.refused.Store(0)
	f := &frame{k: q.p.k, what: "ibv_post_send", userID: &id, ah: ah, order: q.order}
	return q.o.work.recordSends(f, []ib.SendWR{*wr})
}

// Receiving is the equivalent of Sending for receives. It may not sleep.
func (q *userQueue) Receiving(wr *ib.RecvWR, id uint64) (posted func(n int)) {
	f := &frame{k: q.p.k, what: "ibv_post_recv", userID: &id}
	return q.o.work.recordRecvs(f, []ib.RecvWR{*wr})
}

// Modifying records the begin of a Modify, and Modified its success.
func (q *UserQP) Modifying(attr *ib.QPAttr, mask ib.QPAttrMask) { q.o.work.recordModify(attr, mask) }

// Modified records a successful Modify.
func (q *UserQP) Modified(attr *ib.QPAttr, mask ib.QPAttrMask) {
	if mask&ib.QPAttrDestQPN != 0 {
		q.o.work.peer.Store(attr.DestQPN)
	}
	if mask&ib.QPAttrState != 0 {
		q.o.work.recordQPState(attr.State)
	}
}

// Destroyed records the end of the queue pair. Consumed must have been called for its completion queues before.
func (q *UserQP) Destroyed() {
	if !q.p.isEnding() {
		q.destroyed.Store(true)
	}
	q.o.removeLiveObject()
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	w := q.o.work
	if num := w.qp.Num(); q.p.qps[num] == q {
		delete(q.p.qps, num)
	}
}

// Destroyed records the end of the queue.
func (s *UserSRQ) Destroyed() {
	s.o.removeLiveObject()
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	delete(s.p.srqs, s.o.work)
}

// firstSecond is the time after Modify to RTR in which RuleNoReceive applies.
const firstSecond = time.Second

// NoReceive records that a message of the peer has found no receive. It may not sleep.
func (q *UserQP) NoReceive() {
	w := q.o.work
	w.mu.Lock()
	since := time.Since(w.connectedAt)
	applies := w.connected && !w.connectedAt.IsZero() && since < firstSecond && !w.anyReceive.Load() &&
		w.qp.Type() == ib.QPTypeRC
	w.mu.Unlock()
	if !applies || w.isInErr() {
		return
	}
	q.p.k.report(Violation{
		Rule: RuleNoReceive,
		What: fmt.Sprintf("a message arrived %v after the Modify to RTR, and no receive had been posted: the peer waits, or fails "+
			"with a receiver-not-ready error", since.Round(time.Microsecond)),
		Requests: []Request{{QPN: w.qp.Num(), Peer: w.peer.Load(), Opcode: receiveOpcode}},
	}, q.o.dev, nil)
}

// maxRefused is the number of refused posts in a row that show that the program waits for room.
const maxRefused = 64

// Refused records a doorbell without a new request on a full queue. The library of the program has refused a request,
// or another thread's doorbell has posted it. It may not sleep.
func (q *UserQP) Refused() {
	if q.refused.Add(1) == maxRefused {
		q.o.work.checkQueueHasSignaledSend(&frame{k: q.p.k, what: "ibv_post_send"})
	}
}

// DestroyedAH reports a request with an address handle that does not exist.
func (q *UserQP) DestroyedAH(opcode ib.WROpcode, id uint64) {
	w := q.o.work
	q.p.k.report(Violation{
		Rule: RuleUseAfterDestroy, What: "ibv_post_send of a work request that names an AH that was destroyed",
		Requests: []Request{{QPN: w.qp.Num(), Opcode: opcode.String(), ID: id, Index: w.sentCount.Load(),
			Posted: time.Now()}},
	}, q.o.dev, nil)
}

// consumerID returns the consumer's ID of a posted request.
func (f *frame) consumerID(id uint64) uint64 {
	if f.userID != nil {
		return *f.userID
	}
	return id
}
