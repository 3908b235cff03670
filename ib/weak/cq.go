package weak

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// reorderWindow is the number of completions of a queue that may be reordered.
const reorderWindow = 4

// cq is a completion queue. Poll moves completions from the inner queue to the window, and returns the due completions
// of the window.
type cq struct {
	ib.DriverCQ
	d   *driver
	obj ib.CQHandle
	rep atomic.Bool // the inner queue has reported a completion

	// hides is set when hidden requests may exist. The completions of hidden requests are invisible to the consumer.
	hides atomic.Bool

	ord       uint64 // number in creation order
	mu        sync.Mutex
	arms      uint64        // number of ReqNotify calls
	polls     uint64        // number of Poll calls
	held      []windowEntry // the window, in the order of the inner queue
	notify    ib.NotifyFlags
	later     bool // a completion of the window will be reported later
	laterHeld bool // the same, when the long holds have ended
	visible   bool // a completion that is not hidden has arrived since the last ReqNotify
	dead      bool
	moderated bool
	// requests that will have no completion, or have completed in the inner queue; under driver.mu
	orphans []*weakRequest
	one     [1]ib.WC
}

// windowEntry is a completion in the window.
type windowEntry struct {
	wc   ib.WC
	r    *weakRequest // nil if the request was not posted through this driver
	qp   uint64       // number of the queue pair in creation order
	send bool
	seq  uint64 // number of the request in its queue
	wait int    // remaining steps
	// missed is set when a decision about a call of ReqNotify was recorded for the completion
	missed bool
	half   bool // the completion is that of the first posted part of a WRITE
}

// Unwrap gives access to the optional interfaces of the inner queue.
func (c *cq) Unwrap() ib.DriverCQ { return c.DriverCQ }

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	if u != nil {
		return d.Driver.CreateCQ(h, attr, u)
	}
	d.delayCall()
	if err := d.failCall("CreateCQ"); err != nil {
		return nil, err
	}
	c := &cq{d: d, obj: h}
	inner, err := d.Driver.CreateCQ(h.Redirect(c.recordInnerReport), attr, nil)
	if err != nil {
		return nil, err
	}
	c.DriverCQ = inner
	if d.hasChoice(ExactRoom) {
		h.SetEntries(attr.Entries)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues++
	c.ord = d.queues
	d.cqs[c] = struct{}{}
	return c, nil
}

// recordInnerReport records a report of the inner driver, which may hold its locks.
func (c *cq) recordInnerReport() {
	if c.d.Relay != nil {
		c.obj.Completed()
		return
	}
	c.rep.Store(true)
	c.d.scheduleDelayStep()
}

// delaysCompletions reports whether the queue delays completions.
//
//verbena:held mu
func (c *cq) delaysCompletions() bool {
	return c.d.Choices&Of(LateCompletion, MissedCompletion, CrossOrder, LateFlush, SplitAtomic, ReadOrder) != 0 &&
		!c.moderated
}

// Moderate implements ib.CQModerator. A moderated queue counts its completions, and does not delay them.
func (c *cq) Moderate(count int, period time.Duration) error {
	c.d.delayCall()
	m, ok := ib.As[ib.CQModerator](c.DriverCQ)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	if err := m.Moderate(count, period); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moderated = count > 1 || period > 0; c.moderated {
		c.endAllDelays()
	}
	return nil
}

// Poll implements ib.DriverCQ.
func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	if len(wc) == 0 {
		return 0, nil
	}
	if c.d.Relay == nil {
		for _, q := range c.d.qpsWithDelayedSends(c) {
			q.runSendStep(true)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.d.Relay == nil {
		c.decrementDelays()
		for i := range c.held {
			if r := c.held[i].r; r != nil {
				r.completionHold.poll()
			}
		}
	}
	c.polls++
	count := c.drawPoll()
	batch := count == pollAll
	most := 1
	switch {
	case batch: // fills the array if enough completions have been delayed
		most = max(reorderWindow, len(wc))
	case c.delaysCompletions():
		most = reorderWindow
	}
	for n < len(wc) {
		if err = c.fillWindow(most); err != nil && len(c.held) == 0 {
			break
		}
		switch {
		case c.notify == ib.NotifySolicited || c.moderated:
			c.endAllDelays() // no completion is delayed, because a completion does not record whether it is solicited
		case batch:
			c.endWindowDelays()
		}
		i := c.nextPolledIndex()
		if i < 0 {
			break
		}
		if i > 0 {
			e := &c.held[i]
			c.d.record(e.point(CrossOrder), i, e.about)
		}
		c.takeWindowEntry(i, &wc[n])
		if n++; count == pollOne {
			break
		}
	}
	if n > 0 {
		c.d.record(c.pollPoint(), count, nil)
		err = nil
		executeAllWrites()
	}
	if c.d.Relay != nil && len(c.held) > 0 && c.delaysCompletions() || c.notify&ib.NotifyNextComp != 0 && c.hasDelayed() {
		c.later = true
		c.d.scheduleDelayStep()
	} else if c.hasHolds() {
		c.d.scheduleDelayStep()
	}
	return n, err
}

// fillWindow moves completions from the inner queue to the window until the window contains most completions that no
// long hold blocks. fillWindow drops completions of hidden requests.
//
//verbena:held mu
func (c *cq) fillWindow(most int) error {
	for blocked := c.countBlocked(); len(c.held)-blocked < most; {
		c.d.mu.Lock()
		gone := len(c.orphans)
		c.d.mu.Unlock()
		n, err := c.DriverCQ.Poll(c.one[:])
		if err != nil {
			return err
		}
		if n == 0 {
			c.d.mu.Lock()
			for _, r := range c.orphans[:gone] {
				delete(c.d.reqs, r.num)
			}
			c.orphans = slices.Delete(c.orphans, 0, gone)
			c.d.mu.Unlock()
			return nil
		}
		e := c.d.translateCompletion(c.one[0])
		if e.r != nil && e.r.hidden && e.wc.Status == ib.WCSuccess {
			e.r.arrived = true
			if e.r.qp.isUnordered() { // no later completion proves its end
				e.r.qp.recordPolledRequest(e.r)
			}
			continue
		}
		if e.r != nil && e.r.original != nil {
			c.finishRepeat(e.r, e.wc.Status)
			continue
		}
		if e.half {
			if e.r.halfDone = e.wc.Status == ib.WCSuccess; e.r.halfDone {
				continue
			}
			e.r.halfBad = true
		}
		if e.r != nil {
			if e.r.done { // both parts of a WRITE have failed
				continue
			}
			e.r.done = true
		}
		c.d.planCompletion(&e)
		c.held, c.visible = append(c.held, e), true
		if c.d.Relay == nil && c.isBlocked(len(c.held)-1) {
			blocked++
		}
	}
	return nil
}

// fillArrived moves all completions from the inner queue to the window, without delay: some of them may have waited in
// the inner queue for a long time.
//
//verbena:held mu
func (c *cq) fillArrived() error {
	n := len(c.held)
	err := c.fillWindow(1 << 30)
	for i := range c.held[n:] {
		c.held[n+i].wait = 0
	}
	return err
}

// translateCompletion translates a completion of the inner driver for the consumer.
func (d *driver) translateCompletion(wc ib.WC) windowEntry {
	e := windowEntry{wc: wc}
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.qps[wc.QP]
	if r := d.reqs[wc.ID]; r != nil {
		delete(d.reqs, wc.ID)
		e.r, e.wc.ID, e.send, e.seq, e.half = r, r.id, r.send, r.seq, wc.ID == r.half
		if r.qp != nil {
			q = r.qp
		}
	}
	if e.r != nil && e.r.fails != ib.WCSuccess && wc.Status != ib.WCSuccess && wc.Status != ib.WCWRFlushErr {
		e.wc.Status = e.r.fails
	}
	if q != nil {
		e.qp = q.ord
		if e.r != nil && e.r.qp == nil { // the request belongs to a shared receive queue
			q.shared++
			e.seq = q.shared
		}
	}
	return e
}

// planCompletion decides on the delay of a completion that enters the window.
func (d *driver) planCompletion(e *windowEntry) {
	side := e.qp << 1
	if e.send {
		side |= 1
	}
	status, op := e.wc.Status, e.wc.Opcode
	if d.Choices&Of(LateCompletion, MissedCompletion) != 0 {
		e.wait = d.decide(e.point(LateCompletion), d.drawDelay(LateCompletion, side, e.seq, 3), e.about)
	}
	if d.hasChoice(LateFlush) && status == ib.WCWRFlushErr {
		e.wait += d.decide(e.point(LateFlush), 1+d.drawDelay(LateFlush, side, e.seq, 4), e.about)
	}
	if d.hasChoice(SplitAtomic) && e.send && status == ib.WCSuccess && (op == ib.WCFetchAdd || op == ib.WCCompSwap) {
		wait := 0
		if !d.isSpared(SplitAtomic, side, e.seq) {
			wait = 1 + d.drawRandom(SplitAtomic, side, e.seq, 3)
		}
		e.wait += d.decide(e.point(SplitAtomic), wait, e.about)
	}
	e.wait += e.failureDelay(d)
}

//verbena:held mu
func (c *cq) decrementDelays() {
	for i := range c.held {
		c.held[i].wait = max(0, c.held[i].wait-1)
	}
}

//verbena:held mu
func (c *cq) endWindowDelays() {
	for i := range c.held {
		c.held[i].wait = 0
	}
	c.endRepeats(false)
}

// endAllDelays is endWindowDelays, and ends the long holds.
//
//verbena:held mu
func (c *cq) endAllDelays() {
	c.endWindowDelays()
	c.endHolds()
	c.endRepeats(true)
}

// nextPolledIndex returns the index of the completion that Poll returns next, or -1.
//
//verbena:held mu
func (c *cq) nextPolledIndex() int {
	best, rank := -1, 0
	for i := range c.held {
		e := &c.held[i]
		if e.wait > 0 || e.r.isHeld() || slices.ContainsFunc(c.held[:i], func(x windowEntry) bool {
			return x.qp == e.qp &&
				x.send == e.send
		}) {
			continue
		}
		if !c.d.hasChoice(CrossOrder) {
			if i == 0 {
				return 0
			}
			break // preserves the order of the inner queue
		}
		if c.d.Decisions != nil {
			switch {
			case i > 0 && c.d.forced[e.point(CrossOrder)] >= i:
				return i
			case i == 0:
				best = 0
			}
			continue
		}
		if n := c.d.drawRandom(CrossOrder, e.qp, e.seq, 1<<30); best < 0 || n < rank {
			best, rank = i, n
		}
	}
	return best
}

// takeWindowEntry removes a completion from the window and stores the completion's data.
//
//verbena:held mu
func (c *cq) takeWindowEntry(i int, wc *ib.WC) {
	e := c.held[i]
	c.held = slices.Delete(c.held, i, i+1)
	*wc = e.wc
	if e.r != nil {
		e.r.repeat = repeatNone
		if wc.Status == ib.WCSuccess && wc.Opcode != ib.WCRecvRDMAWithImm {
			e.r.storeData(uint64(wc.ByteLen))
		} else if !e.send {
			e.r.storeData(0)
		}
		if e.r.qp != nil {
			e.r.qp.recordPolledRequest(e.r)
		}
	}
	if c.d.hasChoice(PoisonedFields) {
		drawn := poisonPlain + c.d.drawRandom(PoisonedFields, e.qp, e.seq, poisonOther)
		if how := c.d.decide(e.point(PoisonedFields), drawn, e.about); how != 0 {
			poisonCompletion(wc, e.send, c.d.Relay != nil, how)
		}
	}
}

// The values of a decision about undefined fields.
const (
	poisonPlain = 1
	poisonOther = 2 // the opcode of a failed request is one of the other queue
)

// poisonPattern fills the undefined fields of a completion.
const poisonPattern = observe.Pattern

// poisonCompletion fills the undefined fields of a completion. send reports whether it is of the send queue. For a
// program, the opcode of a flushed request is undefined too.
func poisonCompletion(wc *ib.WC, send, program bool, how int) {
	if wc.Status == ib.WCSuccess {
		if wc.Flags&ib.WCWithImm == 0 {
			wc.Imm = poisonPattern
		}
		if wc.Flags&ib.WCWithInvalidate == 0 {
			wc.InvalidateRKey = poisonPattern
		}
		switch wc.Opcode {
		case ib.WCSend, ib.WCRDMAWrite, ib.WCBindMW, ib.WCLocalInv, ib.WCRegMR:
			wc.ByteLen = poisonPattern
		}
		return
	}
	switch {
	case wc.Status == ib.WCWRFlushErr && !program:
	case how != poisonOther:
		wc.Opcode = 0xa5
	case send:
		wc.Opcode = ib.WCRecv
	default:
		wc.Opcode = ib.WCSend
	}
	wc.ByteLen, wc.Imm, wc.InvalidateRKey, wc.SrcQP = poisonPattern, poisonPattern, poisonPattern, poisonPattern&0xffffff
	wc.Flags, wc.PKeyIndex, wc.SLID, wc.SL, wc.Port = 0xff, 0xa5a5, 0xa5a5, 0xa5, 0xa5
}

// Waiting implements ib.CQCounter if the inner queue does.
func (c *cq) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hides.Load() {
		_ = c.fillWindow(1 << 30)
	}
	if inner, ok := ib.As[ib.CQCounter](c.DriverCQ); ok {
		return len(c.held) + inner.Waiting()
	}
	return len(c.held)
}

// ReqNotify implements ib.DriverCQ. A delayed completion does not exist yet for the consumer. The completion is
// reported when it becomes visible, unless ReqNotify asked for solicited completions only. With MissedCompletion all
// delayed completions may arrive just before the call and remain unreported.
//
// For a Relay, ReqNotify only decides whether the delayed completions arrive before the call.
func (c *cq) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arms++
	if c.d.Relay != nil {
		if missed = len(c.held) > 0 && c.drawMiss(); missed {
			c.endWindowDelays()
		}
		return missed, nil
	}
	if c.notify == 0 {
		c.rep.Store(false) // set by the report for an earlier ReqNotify
	}
	if c.hides.Load() || c.delaysCompletions() { // earlier completions cause no call of the handler
		_ = c.fillArrived()
	}
	c.visible = false
	if missed, err = c.DriverCQ.ReqNotify(flags); err != nil {
		return missed, err
	}
	switch {
	case flags&ib.NotifyNextComp != 0:
		c.notify = ib.NotifyNextComp
	case c.notify == 0:
		c.notify = ib.NotifySolicited
	}
	if len(c.held) == 0 {
		return missed, nil
	}
	miss := c.drawMiss() && c.notify != ib.NotifySolicited && c.delaysCompletions()
	if c.notify == ib.NotifySolicited || !c.delaysCompletions() || miss {
		if miss {
			c.endWindowDelays()
		} else {
			c.endAllDelays()
		}
		if c.hasHolds() { // the held completions arrive after the call
			due := c.nextPolledIndex() >= 0
			c.later, c.laterHeld = c.later || !due, true
			c.d.scheduleDelayStep()
			return missed || due && flags&ib.NotifyReportMissed != 0, nil
		}
		return missed || flags&ib.NotifyReportMissed != 0, nil
	}
	if c.hasDelayed() {
		c.later = true
		c.d.scheduleDelayStep()
	}
	return missed || c.nextPolledIndex() >= 0 && flags&ib.NotifyReportMissed != 0, nil
}

// hasDelayed reports whether a completion of the window cannot be polled yet.
//
//verbena:held mu
func (c *cq) hasDelayed() bool {
	return slices.ContainsFunc(c.held, func(e windowEntry) bool { return e.wait > 0 || e.r.isHeld() })
}

// drawMiss decides whether delayed completions arrive before a call of ReqNotify. The decision is about the oldest one.
//
//verbena:held mu
func (c *cq) drawMiss() bool {
	if !c.d.hasChoice(MissedCompletion) || len(c.held) == 0 {
		return false
	}
	i := 0
	if c.d.Decisions != nil {
		i = slices.IndexFunc(c.held, func(e windowEntry) bool { return c.d.forced[e.point(MissedCompletion)] != 0 })
	} else if c.d.drawRandom(MissedCompletion, c.ord, c.arms, 2) != 0 {
		i = -1
	}
	if i < 0 {
		return false
	}
	if e := &c.held[i]; !e.missed {
		e.missed = true
		c.d.record(e.point(MissedCompletion), 1, e.about)
	}
	return true
}

// drawPoll decides on the number of completions that a poll returns: pollOne, pollAll, or 0 for no limit. The caller
// records the decision if the poll returns a completion. A wrapper with a Relay polls until the queue is empty.
//
//verbena:held mu
func (c *cq) drawPoll() int {
	switch {
	case c.d.Relay != nil || !c.d.hasChoice(LateCompletion):
		return 0
	case c.d.Decisions != nil:
		return c.d.forced[c.pollPoint()]
	case c.d.drawRandom(LateCompletion, c.ord, c.polls, 4) == 0:
		return pollAll
	}
	return pollOne
}

// pollPoint returns the point of the present poll.
//
//verbena:held mu
func (c *cq) pollPoint() Point { return Point{LateCompletion, ObjectCQ, c.ord, EventPoll, c.polls} }

// Rearm implements Completions.
func (c *cq) Rearm() (missed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held) >= reorderWindow { // the inner queue can wait for the next step
		c.later = true
		c.d.scheduleDelayStep()
		return false, nil
	}
	return c.DriverCQ.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
}

// EndDelays implements Completions.
func (c *cq) EndDelays() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.fillWindow(1 << 30)
	c.endAllDelays()
}

// runCQStep executes a step that is not caused by a poll. runCQStep reports whether more steps are needed.
func (c *cq) runCQStep() (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return false
	}
	c.decrementDelays()
	report := c.rep.Swap(false)
	if report && c.notify == ib.NotifyNextComp && c.hides.Load() {
		report, more = c.decideReport()
	}
	holds := c.hasHolds()
	if holds {
		for i := range c.held {
			if r := c.held[i].r; r != nil {
				r.completionHold.step()
			}
		}
	} else if c.laterHeld {
		c.later, c.laterHeld = true, false
	}
	if c.later && c.nextPolledIndex() >= 0 {
		report = true
	}
	if len(c.held) == 0 {
		c.later = false
	}
	if report && (c.notify != 0 || c.d.Relay != nil) {
		c.notify, c.later, c.laterHeld = 0, false, false
		c.obj.Completed()
	}
	return more || c.later || holds
}

// decideReport decides whether a report of the inner queue is passed to the consumer. If all completions of the report
// are hidden, decideReport arms the inner queue again. Visible completions are reported separately. again is true if
// the inner queue reports missed completions.
//
//verbena:held mu
func (c *cq) decideReport() (report, again bool) {
	_ = c.fillWindow(1 << 30)
	switch {
	case c.visible && len(c.held) > 0:
		c.later = true
		return false, false
	case c.visible: // the consumer has polled the completion already
		return true, false
	}
	missed, err := c.DriverCQ.ReqNotify(c.notify | ib.NotifyReportMissed)
	if err != nil {
		return true, false
	}
	c.rep.Store(c.rep.Load() || missed)
	return false, missed
}

// forgetQP removes a destroyed queue pair from the completions of the window.
func (c *cq) forgetQP(qp *ib.QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.held {
		if c.held[i].wc.QP == qp {
			c.held[i].wc.QP = nil
		}
	}
}

// Resize implements ib.CQResizer. Completions of the window occupy entries.
func (c *cq) Resize(entries int, u *ib.Udata) error {
	c.d.delayCall()
	r, ok := ib.As[ib.CQResizer](c.DriverCQ)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	var err error
	c.mu.Lock()
	if c.delaysCompletions() || len(c.held) > 0 || c.hides.Load() {
		err = c.fillArrived()
	}
	n := len(c.held)
	c.mu.Unlock()
	if err == nil && n > entries {
		err = fmt.Errorf("%d completions are waiting: %w", n, syscall.EINVAL)
	}
	if err == nil {
		err = r.Resize(entries, u)
	}
	if err == nil && c.d.hasChoice(ExactRoom) {
		c.obj.SetEntries(entries)
	}
	return err
}

// RaiseLastCallbacks is called before the callbacks of the queue end. If the queue is armed, its handler runs once
// more.
func (c *cq) RaiseLastCallbacks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notify == 0 || !c.d.hasChoice(LastCallback) {
		return false
	}
	c.notify, c.later, c.laterHeld = 0, false, false
	c.obj.Completed()
	return true
}

// Destroy implements ib.DriverCQ.
func (c *cq) Destroy() error {
	c.d.delayCall()
	if err := c.DriverCQ.Destroy(); err != nil {
		return err
	}
	c.d.mu.Lock()
	delete(c.d.cqs, c)
	for _, r := range c.orphans {
		delete(c.d.reqs, r.num)
	}
	c.d.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead, c.held, c.later, c.laterHeld = true, nil, false, false
	return nil
}
