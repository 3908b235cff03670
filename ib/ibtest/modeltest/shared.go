package modeltest

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// Concurrent calls on shared objects: several threads make a few calls at the same time. There must be an order of the
// calls, and of the device's own actions, for which the model has the same results and the same final state as the idle
// device.

const (
	sharedSetup  = 15 // minimum number of calls before an episode
	sharedThread = 3  // maximum number of threads of an episode
	sharedCalls  = 6  // maximum number of calls of an episode
)

// RunOnSharedObjects makes the calls of a seed on a device, and then an episode of concurrent calls. The run ends with
// it, because several orders with different states may explain the results.
func RunOnSharedObjects(make DeviceFactory, seed uint64, steps int) *RunFailure {
	f := runOnce(make, func(x *modelRunner) (calls []call, err error) {
		x.episodes = true
		d := newCallDrawer(x, seed, steps)
		for i := range steps {
			if i > sharedSetup && d.oneInN(3) {
				if threads := d.drawConcurrentCalls(); len(threads) > 1 {
					if err := x.runConcurrentCalls(d, threads); err != nil {
						return calls, err
					}
					return calls, errUndefinedResult
				}
			}
			c := d.nextCall()
			if c == nil {
				break
			}
			calls = append(calls, c)
			if err := x.runCall(c); err != nil {
				return calls, err
			}
		}
		return calls, nil
	})
	if f != nil {
		f.Seed, f.Drawn = seed, len(f.calls)
	}
	return f
}

// drawConcurrentCalls draws the calls of several threads on a few objects.
func (d *callDrawer) drawConcurrentCalls() (threads [][]call) {
	x := d.x
	if x.m.Device.Dead {
		return nil
	}
	for _, q := range x.m.Queues.QPs { // a waiting request may end by itself
		if len(q.Sends) > 0 || q.State == ib.QPSQD {
			return nil
		}
	}
	q := d.qpCalls.pickQP()
	if q == nil {
		return nil
	}
	e := &concurrentCallDrawer{d: d, q: q, changed: map[model.ID]bool{}, peer: x.m.Queues.QPs[x.objs[q.ID].peer]}
	if e.peer == nil {
		e.peer = q
	}
	for range 2 + d.IntN(sharedThread-1) {
		threads = append(threads, nil)
	}
	n := 0
	for range 40 {
		if n == sharedCalls {
			break
		}
		c := e.drawCall()
		if c == nil || !x.isPossible(c) || !e.allowsCall(c) {
			continue
		}
		t := d.IntN(len(threads))
		threads[t] = append(threads[t], c)
		n++
	}
	return slices.DeleteFunc(threads, func(t []call) bool { return len(t) == 0 })
}

// concurrentCallDrawer describes concurrent calls.
type concurrentCallDrawer struct {
	d       *callDrawer
	q, peer *model.QP
	either  *model.QP         // last queue pair drawn
	kind    int               // last method drawn
	changed map[model.ID]bool // regions
	resized bool
	used    map[model.ID]bool
	dropped map[model.ID]bool // destroyed objects
}

// drawCall draws one of the calls.
func (e *concurrentCallDrawer) drawCall() call {
	d := e.d
	cq := pickOne(d, []model.ID{e.q.SendCQ, e.q.RecvCQ, e.peer.SendCQ, e.peer.RecvCQ})
	either, kind := pickOne(d, []*model.QP{e.q, e.peer}), d.IntN(10)
	if e.either != nil && d.oneInN(3) { // calls of one method on one object
		either, kind = e.either, e.kind
	}
	e.either, e.kind = either, kind
	switch kind {
	case 0:
		return queryQP{either.ID}
	case 1, 2:
		return e.drawModify(either)
	case 3, 4:
		return e.drawSend()
	case 5:
		return e.drawRecv(either)
	case 6:
		if cq != 0 {
			return pollCQ{cq, 1 + d.IntN(4)}
		}
	case 7:
		if cq != 0 && d.oneInN(3) {
			return resizeCQ{cq, d.drawCapacity(d.x.attr.MaxCQE, 512)}
		}
		if cq != 0 {
			return armCQ{cq, pickOne(d, []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited,
				ib.NotifyNextComp | ib.NotifyReportMissed})}
		}
	case 8:
		if c := d.memory.drawMemoryCall(); c != nil && mayReplaceKeys(c) {
			return c
		}
		live := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool { return !r.Dead })
		if mr := pickOne(d, live); mr != 0 && d.oneInN(2) {
			return destroyObject{mr}
		}
	case 9:
		return e.drawLocalRequest()
	}
	return nil
}

// drawModifyQP draws a change of a queue pair, but not to SQD.
func (e *concurrentCallDrawer) drawModify(q *model.QP) call {
	d := e.d
	c := modifyQP{qp: q.ID, dest: d.x.objs[q.ID].peer, attr: d.qpCalls.newValidQPAttr(), mask: ib.QPAttrState}
	switch {
	case d.oneInN(4):
		c.attr.State = ib.QPErr
	case d.oneInN(6):
		c.attr.State = ib.QPReset
	case q.State < ib.QPRTS:
		c.attr.State = min(q.State+1+ib.QPState(d.IntN(2)), ib.QPRTS)
		c.mask = transitionMasks(q.Type, c.attr.State)
	default:
		c.attr.State = ib.QPRTS
		if c.mask |= ib.QPAttrAccessFlags; q.Type == ib.QPTypeUD {
			c.mask ^= ib.QPAttrAccessFlags | ib.QPAttrQKey
			c.attr.QKey = 0x11223344 ^ uint32(d.IntN(2))
		}
	}
	return c
}

// drawSend draws a send of a queue pair with inline data, because the data of different requests are not copied in
// order. It posts one request, because a device may complete the first of a list before it accepts the second.
func (e *concurrentCallDrawer) drawSend() call {
	d, q := e.d, e.q
	if isAcknowledged(q.Type) && (e.peer.State < ib.QPRTR || e.peer.State > ib.QPSQD) {
		return nil // the request fails when its retries end, at a time that the model does not know
	}
	s := d.requests.drawSend(q, nil)
	if s == nil {
		return nil
	}
	switch s.op {
	case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		s.list, s.inline, s.flags = nil, d.drawInlineBytes(d.IntN(int(min(q.Cap.MaxInlineData, 64))+1)), s.flags|ib.SendInline
		return postSend{q.ID, []sendRequest{*s}}
	}
	return nil
}

// drawRecv draws a receive for a queue pair, or for its shared receive queue.
func (e *concurrentCallDrawer) drawRecv(q *model.QP) call {
	c, ok := e.d.requests.drawPostRecv().(postRecv)
	if !ok || c.on != q.ID && c.on != q.SRQ {
		return nil
	}
	c.list = c.list[:1]
	return c
}

// drawLocalRequest draws a bind, a registration or an invalidation.
func (e *concurrentCallDrawer) drawLocalRequest() call {
	d := e.d
	if e.q.Type == ib.QPTypeUD || e.q.Type == ib.QPTypeXRCInit || e.q.Type == ib.QPTypeXRCTgt {
		return nil
	}
	for range 8 {
		s := d.requests.drawSend(e.q, nil)
		if s != nil && (s.op == ib.WRBindMW || s.op == ib.WRRegMR || s.op == ib.WRLocalInv) {
			return postSend{e.q.ID, []sendRequest{*s}}
		}
	}
	return nil
}

// allowsCall reports whether a call is possible beside those already drawn: consumers do not change memory that their
// own requests use, nor destroy objects that other threads use.
func (e *concurrentCallDrawer) allowsCall(c call) bool {
	if e.used == nil {
		e.used, e.dropped = map[model.ID]bool{}, map[model.ID]bool{}
	}
	m := e.d.x.m
	for _, id := range c.usedIDs() {
		if e.dropped[id] {
			return false
		}
	}
	switch c := c.(type) {
	case reregMR:
		if e.used[c.mr] || m.RecvsUseRegion(c.mr) {
			return false
		}
		e.changed[c.mr] = true
	case destroyObject:
		if e.used[c.id] || e.changed[c.id] || m.RecvsUseRegion(c.id) {
			return false
		}
		e.dropped[c.id] = true
	case postRecv:
		for _, r := range c.list {
			for _, s := range r.list {
				if e.changed[s.mr] || e.dropped[s.mr] {
					return false
				}
			}
		}
		for _, r := range c.list {
			for _, s := range r.list {
				e.used[s.mr] = true
			}
		}
	case postSend:
		for _, s := range c.list {
			if s.bind != nil && (e.dropped[s.bind.mr] || e.changed[s.bind.mr]) || s.reg != nil && e.dropped[s.reg.mr] ||
				e.dropped[s.inv.key] {
				return false
			}
		}
		for _, s := range c.list {
			if s.bind != nil {
				e.used[s.bind.mr] = true
			}
			if s.reg != nil {
				e.used[s.reg.mr] = true
			}
			e.used[s.inv.key] = true
		}
	case resizeCQ:
		if e.resized {
			return false
		}
		e.resized = true
	}
	return true
}

// timedCall is a call of an episode, with the times of its start and its return.
type timedCall struct {
	thread      int
	c           call
	g           deviceResult
	begun, over int64
}

func (v *timedCall) String() string {
	return sprintf("thread %d, from %d to %d: %v -> %s", v.thread, v.begun, v.over, v.c, formatResult(v.g))
}

// runAndTime makes the call on the device.
func (v *timedCall) runAndTime(x *modelRunner, clock *atomic.Int64) {
	v.begun = clock.Add(1)
	if s, ok := v.c.(sharedCall); ok {
		v.g = s.runShared(x)
	} else {
		v.g = v.c.runOnDevice(x)
	}
	v.over = clock.Add(1)
}

// newClosingCalls returns calls that one thread makes after the episode, to show the resulting state.
func (x *modelRunner) newClosingCalls() (calls []call) {
	for _, id := range filterIDs(x.m.Queues.QPs, acceptAnyObject[*model.QP]) {
		calls = append(calls, queryQP{id})
	}
	for _, id := range filterIDs(x.m.Completions.CQs, acceptAnyObject[*model.CQ]) {
		calls = append(calls, pollCQ{id, 16})
	}
	for _, id := range filterIDs(x.m.Queues.QPs, func(q *model.QP) bool { return len(q.Sends) == 0 }) {
		calls = append(calls, modifyQP{qp: id, attr: ib.QPAttr{State: ib.QPErr}, mask: ib.QPAttrState})
	}
	return calls
}

// sharedCall is a call that behaves differently beside concurrent calls.
type sharedCall interface {
	runShared(x *modelRunner) deviceResult
}

// runShared polls without a comparison.
func (c pollCQ) runShared(x *modelRunner) deviceResult {
	wc := make([]ib.WC, c.n)
	n, err := x.pollDevice(c.cq, wc)
	return deviceResult{err: err, wcs: wc[:n]}
}

// runConcurrentCalls makes the calls of several threads concurrently, and searches for an order that explains the
// results.
func (x *modelRunner) runConcurrentCalls(d *callDrawer, threads [][]call) error {
	var events []*timedCall
	var clock atomic.Int64
	var wg sync.WaitGroup
	x.mu.Lock()
	for _, o := range x.objs {
		o.before = o.calls
	}
	x.mu.Unlock()
	var ready atomic.Int32 // threads that have begun: none makes a call before all of them run
	for t, calls := range threads {
		own := make([]*timedCall, len(calls))
		for i, c := range calls {
			if p, ok := c.(postingCall); ok {
				p.recordIDs(x)
			}
			own[i] = &timedCall{thread: t, c: c}
		}
		events = append(events, own...)
		pause := d.IntN(2) == 0
		wg.Go(func() {
			for ready.Add(1); int(ready.Load()) < len(threads); {
				runtime.Gosched()
			}
			for _, v := range own {
				if pause {
					runtime.Gosched()
				}
				v.runAndTime(x, &clock)
			}
		})
	}
	wg.Wait()
	for _, c := range x.newClosingCalls() {
		if x.Virtual {
			time.Sleep(50 * time.Millisecond)
		}
		v := &timedCall{thread: len(threads), c: c}
		v.runAndTime(x, &clock)
		events = append(events, v)
	}
	for _, v := range events {
		x.trace = append(x.trace, v.String())
		for i := range v.g.wcs {
			x.addToTrace("%s", formatCompletion(&v.g.wcs[i]))
		}
	}
	return x.findExplainingOrder(slices.DeleteFunc(events, func(v *timedCall) bool { // unsupported by the driver
		v.c = x.Abilities.recordFeatures(v.c, &v.g)
		return v.c == nil
	}))
}

// findExplainingOrder waits until an order explains the calls and the device's later actions.
func (x *modelRunner) findExplainingOrder(events []*timedCall) error {
	rest := map[model.ID][]ib.WC{} // completions polled afterwards
	begin := time.Now()
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, x.Timeout/20) {
		if x.Virtual {
			time.Sleep(50 * time.Millisecond)
		}
		for _, id := range x.order {
			if o := x.objs[id]; o.cq != nil && !o.dead {
				if err := x.drainQueue(id, rest); err != nil {
					return err
				}
			}
		}
		s := &callOrderSearch{x: x, events: events, rest: rest, seen: map[searchState]bool{}}
		x.searching = true
		base := x.m.Clone()
		base.BeginCall()
		base.SetDeferredExecution(true)
		found := s.searchFrom(base, 0)
		x.searching = false
		switch {
		case found:
			return nil
		case s.open != "":
			return errUndefinedResult
		case time.Since(begin) > x.Timeout:
			for id, wcs := range rest {
				for i := range wcs {
					x.trace = append(x.trace, sprintf("afterwards, cq%d: %s", id, formatCompletion(&wcs[i])))
				}
			}
			return fmt.Errorf("no order of %d calls explains their results (%d states): the nearest: %s", len(events),
				len(s.seen), s.why)
		}
		time.Sleep(pause)
	}
}

// drainQueue polls a queue until it is empty.
func (x *modelRunner) drainQueue(id model.ID, rest map[model.ID][]ib.WC) error {
	for {
		wc := make([]ib.WC, 16)
		n, err := x.pollDevice(id, wc)
		if err != nil {
			return err
		}
		rest[id] = append(rest[id], wc[:n]...)
		if n == 0 {
			return nil
		}
	}
}

// callOrderSearch is a search for an order.
type callOrderSearch struct {
	x      *modelRunner
	events []*timedCall
	rest   map[model.ID][]ib.WC
	seen   map[searchState]bool // states without a solution
	open   string               // reason why the result of an order is undefined
	why    string               // the difference of an order that explains the most calls
	most   int
}

// searchState is a state of a search: the bit set of the calls made so far, and the fingerprint of the model.
type searchState struct {
	done  uint
	model uint64
}

// maxSearchStates limits a search. A search that exceeds it has no result.
const maxSearchStates = 20000

// searchFrom continues the search from a state of the model. done is the bit set of the calls made so far. It reports
// whether the observed results can be reached.
func (s *callOrderSearch) searchFrom(m *model.Model, done uint) bool {
	if s.open != "" {
		return false
	}
	key := searchState{done, m.Fingerprint()}
	if s.seen[key] {
		return false
	}
	s.seen[key] = true
	if len(s.seen) > maxSearchStates {
		s.open = "too many orders"
		return false
	}
	for i, v := range s.events {
		if done&(1<<i) != 0 || !s.mayBeNextCall(i, done) {
			continue
		}
		c := m.Clone()
		if s.wasRejectedAsBusy(i) {
			if s.searchFrom(c, done|1<<i) {
				return true
			}
			continue
		}
		c.BeginCall()
		if d := s.runOnModel(v, c); d != "" {
			s.keepBestDifference(done, "%v: %s", v.c, d)
			continue
		}
		if c.Call.Open != "" {
			s.open = c.Call.Open
			return false
		}
		if s.searchFrom(c, done|1<<i) {
			return true
		}
	}
	moved := false
	for _, v := range m.PossibleActions() {
		c := m.Clone()
		if !c.PerformAction(v) {
			continue
		}
		if c.Call.Open != "" {
			s.open = c.Call.Open
			return false
		}
		moved = true
		if s.searchFrom(c, done) {
			return true
		}
		if done == 1<<len(s.events)-1 && v.Kind != model.Complete { // the order of the rest has no effect
			break
		}
	}
	if moved || done != 1<<len(s.events)-1 {
		return false
	}
	return s.compareIdleDevice(m.Clone(), done)
}

// mayBeNextCall reports whether a call may be the next one: no other pending call had returned before it started.
func (s *callOrderSearch) mayBeNextCall(i int, done uint) bool {
	for k, v := range s.events {
		if done&(1<<k) == 0 && v.over < s.events[i].begun {
			return false
		}
	}
	return true
}

// wasRejectedAsBusy reports whether a call was rejected because another one was changing the same region.
func (s *callOrderSearch) wasRejectedAsBusy(i int) bool {
	v := s.events[i]
	mr := regionChangedBy(v.c)
	if mr == 0 || !errors.Is(v.g.err, syscall.EBUSY) {
		return false
	}
	return slices.ContainsFunc(s.events, func(o *timedCall) bool {
		return o != v && regionChangedBy(o.c) == mr && o.begun < v.over && v.begun < o.over
	})
}

// regionChangedBy returns the region that a call changes; 0: none.
func regionChangedBy(c call) model.ID {
	switch c := c.(type) {
	case reregMR:
		return c.mr
	case mapMR:
		return c.mr
	case destroyObject:
		return c.id
	}
	return 0
}

// runOnModel makes a call on a model and compares the results.
func (s *callOrderSearch) runOnModel(v *timedCall, m *model.Model) string {
	p, ok := v.c.(pollCQ)
	if !ok {
		return compareResult(v.g, v.c.runOnModel(s.x, m, &v.g))
	}
	if v.g.err != nil {
		return v.g.err.Error()
	}
	for i := range v.g.wcs {
		if d := s.x.matchCompletionInModel(m, p.cq, &v.g.wcs[i]); d != nil {
			return d.what
		}
	}
	return ""
}

// compareIdleDevice compares the state of the idle device.
func (s *callOrderSearch) compareIdleDevice(m *model.Model, done uint) bool {
	x := s.x
	m.SetDeferredExecution(false)
	if m.Call.Open != "" {
		s.open = m.Call.Open
		return false
	}
	for id, wcs := range s.rest {
		for i := range wcs {
			if d := x.matchCompletionInModel(m, id, &wcs[i]); d != nil {
				s.keepBestDifference(done, "%s", d.what)
				return false
			}
		}
	}
	was := x.m
	x.m = m
	defer func() { x.m = was }()
	for id, c := range m.Completions.CQs {
		if len(c.Wants) > 0 {
			s.keepBestDifference(done, "cq%d: no completion of %s, want %s", id, x.ids[c.Wants[0].WC.ID],
				formatExpectedCompletion(&c.Wants[0]))
			return false
		}
	}
	for _, f := range []func() *modelDifference{x.compareStates, x.compareMemory, x.compareCallbacks} {
		if d := f(); d != nil {
			s.keepBestDifference(done, "%s", d.what)
			return false
		}
	}
	return true
}

// keepBestDifference keeps the difference of an order that explains the most calls.
func (s *callOrderSearch) keepBestDifference(done uint, format string, args ...any) {
	n := 0
	for i := range s.events {
		if done&(1<<i) != 0 {
			n++
		}
	}
	if s.why == "" || n >= s.most {
		s.most, s.why = n, sprintf(format, args...)
	}
}
