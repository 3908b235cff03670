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

// RunShared makes the calls of a seed on a device, and then an episode of concurrent calls. The run ends with it,
// because several orders with different states may explain the results.
func RunShared(make Factory, seed uint64, steps int) *Failure {
	f := once(make, func(x *runner) (calls []call, err error) {
		x.episodes = true
		d := newDrawer(x, seed, steps)
		for i := range steps {
			if i > sharedSetup && d.one(3) {
				if threads := d.episode(); len(threads) > 1 {
					if err := x.episode(d, threads); err != nil {
						return calls, err
					}
					return calls, errOpen
				}
			}
			c := d.draw()
			if c == nil {
				break
			}
			calls = append(calls, c)
			if err := x.make(c); err != nil {
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

// episode draws the calls of several threads on a few objects.
func (d *drawer) episode() (threads [][]call) {
	x := d.x
	if x.m.Dead {
		return nil
	}
	for _, q := range x.m.QPs { // a waiting request may end by itself
		if len(q.Sends) > 0 || q.State == ib.QPSQD {
			return nil
		}
	}
	q := d.qp()
	if q == nil {
		return nil
	}
	e := &episode{d: d, q: q, changed: map[model.ID]bool{}, peer: x.m.QPs[x.objs[q.ID].peer]}
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
		c := e.call()
		if c == nil || !x.fit(c) || !e.allows(c) {
			continue
		}
		t := d.IntN(len(threads))
		threads[t] = append(threads[t], c)
		n++
	}
	return slices.DeleteFunc(threads, func(t []call) bool { return len(t) == 0 })
}

// episode describes concurrent calls.
type episode struct {
	d       *drawer
	q, peer *model.QP
	either  *model.QP         // last queue pair drawn
	kind    int               // last method drawn
	changed map[model.ID]bool // regions
	resized bool
	used    map[model.ID]bool
	dropped map[model.ID]bool // destroyed objects
}

// call draws one of the calls.
func (e *episode) call() call {
	d := e.d
	cq := pick(d, []model.ID{e.q.SendCQ, e.q.RecvCQ, e.peer.SendCQ, e.peer.RecvCQ})
	either, kind := pick(d, []*model.QP{e.q, e.peer}), d.IntN(10)
	if e.either != nil && d.one(3) { // calls of one method on one object
		either, kind = e.either, e.kind
	}
	e.either, e.kind = either, kind
	switch kind {
	case 0:
		return queryQP{either.ID}
	case 1, 2:
		return e.modify(either)
	case 3, 4:
		return e.send()
	case 5:
		return e.receive(either)
	case 6:
		if cq != 0 {
			return pollCQ{cq, 1 + d.IntN(4)}
		}
	case 7:
		if cq != 0 && d.one(3) {
			return resizeCQ{cq, d.room(d.x.attr.MaxCQE, 512)}
		}
		if cq != 0 {
			return armCQ{cq, pick(d, []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited,
				ib.NotifyNextComp | ib.NotifyReportMissed})}
		}
	case 8:
		if c := d.memory(); c != nil && isRereg(c) {
			return c
		}
		if mr := pick(d, ids(d.x.m.Regions, func(r *model.Region) bool { return !r.Dead })); mr != 0 && d.one(2) {
			return destroy{mr}
		}
	case 9:
		return e.local()
	}
	return nil
}

// modify draws a change of a queue pair, but not to SQD.
func (e *episode) modify(q *model.QP) call {
	d := e.d
	c := modifyQP{qp: q.ID, dest: d.x.objs[q.ID].peer, attr: d.attributes(), mask: ib.QPAttrState}
	switch {
	case d.one(4):
		c.attr.State = ib.QPErr
	case d.one(6):
		c.attr.State = ib.QPReset
	case q.State < ib.QPRTS:
		c.attr.State = min(q.State+1+ib.QPState(d.IntN(2)), ib.QPRTS)
		c.mask = ladder(q.Type, c.attr.State)
	default:
		c.attr.State = ib.QPRTS
		if c.mask |= ib.QPAttrAccessFlags; q.Type == ib.QPTypeUD {
			c.mask ^= ib.QPAttrAccessFlags | ib.QPAttrQKey
			c.attr.QKey = 0x11223344 ^ uint32(d.IntN(2))
		}
	}
	return c
}

// send draws a send of a queue pair with inline data, because the data of different requests are not copied in order.
// It posts one request, because a device may complete the first of a list before it accepts the second.
func (e *episode) send() call {
	d, q := e.d, e.q
	if acknowledged(q.Type) && (e.peer.State < ib.QPRTR || e.peer.State > ib.QPSQD) {
		return nil // the request fails when its retries end, at a time that the model does not know
	}
	s := d.send(q, nil)
	if s == nil {
		return nil
	}
	switch s.op {
	case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		s.list, s.inline, s.flags = nil, d.bytes(d.IntN(int(min(q.Cap.MaxInlineData, 64))+1)), s.flags|ib.SendInline
		return postSend{q.ID, []send{*s}}
	}
	return nil
}

// receive draws a receive for a queue pair, or for its shared receive queue.
func (e *episode) receive(q *model.QP) call {
	c, ok := e.d.receives().(postRecv)
	if !ok || c.on != q.ID && c.on != q.SRQ {
		return nil
	}
	c.list = c.list[:1]
	return c
}

// local draws a bind, a registration or an invalidation.
func (e *episode) local() call {
	d := e.d
	if e.q.Type == ib.QPTypeUD || e.q.Type == ib.QPTypeXRCInit || e.q.Type == ib.QPTypeXRCTgt {
		return nil
	}
	for range 8 {
		s := d.send(e.q, nil)
		if s != nil && (s.op == ib.WRBindMW || s.op == ib.WRRegMR || s.op == ib.WRLocalInv) {
			return postSend{e.q.ID, []send{*s}}
		}
	}
	return nil
}

// allows reports whether a call is possible beside those already drawn: consumers do not change memory that their own
// requests use, nor destroy objects that other threads use.
func (e *episode) allows(c call) bool {
	if e.used == nil {
		e.used, e.dropped = map[model.ID]bool{}, map[model.ID]bool{}
	}
	m := e.d.x.m
	for _, id := range c.uses() {
		if e.dropped[id] {
			return false
		}
	}
	switch c := c.(type) {
	case rereg:
		if e.used[c.mr] || m.Received(c.mr) {
			return false
		}
		e.changed[c.mr] = true
	case destroy:
		if e.used[c.id] || e.changed[c.id] || m.Received(c.id) {
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

// event is a call of an episode, with the times of its start and its return.
type event struct {
	thread      int
	c           call
	g           got
	begun, over int64
}

func (v *event) String() string {
	return sprintf("thread %d, from %d to %d: %v -> %s", v.thread, v.begun, v.over, v.c, outcome(v.g))
}

// made makes the call on the device.
func (v *event) made(x *runner, clock *atomic.Int64) {
	v.begun = clock.Add(1)
	if s, ok := v.c.(shareable); ok {
		v.g = s.together(x)
	} else {
		v.g = v.c.device(x)
	}
	v.over = clock.Add(1)
}

// closing returns calls that one thread makes after the episode, to show the resulting state.
func (x *runner) closing() (calls []call) {
	for _, id := range ids(x.m.QPs, all[*model.QP]) {
		calls = append(calls, queryQP{id})
	}
	for _, id := range ids(x.m.CQs, all[*model.CQ]) {
		calls = append(calls, pollCQ{id, 16})
	}
	for _, id := range ids(x.m.QPs, func(q *model.QP) bool { return len(q.Sends) == 0 }) {
		calls = append(calls, modifyQP{qp: id, attr: ib.QPAttr{State: ib.QPErr}, mask: ib.QPAttrState})
	}
	return calls
}

// shareable is a call that behaves differently beside concurrent calls.
type shareable interface {
	together(x *runner) got
}

// together polls without a comparison.
func (c pollCQ) together(x *runner) got {
	wc := make([]ib.WC, c.n)
	n, err := x.take(c.cq, wc)
	return got{err: err, wcs: wc[:n]}
}

// episode makes the calls of several threads concurrently, and searches for an order that explains the results.
func (x *runner) episode(d *drawer, threads [][]call) error {
	var events []*event
	var clock atomic.Int64
	var wg sync.WaitGroup
	x.mu.Lock()
	for _, o := range x.objs {
		o.before = o.calls
	}
	x.mu.Unlock()
	var ready atomic.Int32 // threads that have begun: none makes a call before all of them run
	for t, calls := range threads {
		own := make([]*event, len(calls))
		for i, c := range calls {
			if p, ok := c.(poster); ok {
				p.name(x)
			}
			own[i] = &event{thread: t, c: c}
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
				v.made(x, &clock)
			}
		})
	}
	wg.Wait()
	for _, c := range x.closing() {
		if x.Virtual {
			time.Sleep(50 * time.Millisecond)
		}
		v := &event{thread: len(threads), c: c}
		v.made(x, &clock)
		events = append(events, v)
	}
	for _, v := range events {
		x.trace = append(x.trace, v.String())
		for i := range v.g.wcs {
			x.note("%s", show(&v.g.wcs[i]))
		}
	}
	return x.explain(slices.DeleteFunc(events, func(v *event) bool { // unsupported by the driver
		v.c = x.Abilities.learn(v.c, &v.g)
		return v.c == nil
	}))
}

// explain waits until an order explains the calls and the device's later actions.
func (x *runner) explain(events []*event) error {
	rest := map[model.ID][]ib.WC{} // completions polled afterwards
	begin := time.Now()
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, x.Timeout/20) {
		if x.Virtual {
			time.Sleep(50 * time.Millisecond)
		}
		for _, id := range x.order {
			if o := x.objs[id]; o.cq != nil && !o.dead {
				if err := x.takeAll(id, rest); err != nil {
					return err
				}
			}
		}
		s := &search{x: x, events: events, rest: rest, seen: map[state]bool{}}
		x.searching = true
		base := x.m.Clone()
		base.Begin()
		base.Defer(true)
		found := s.from(base, 0)
		x.searching = false
		switch {
		case found:
			return nil
		case s.open != "":
			return errOpen
		case time.Since(begin) > x.Timeout:
			for id, wcs := range rest {
				for i := range wcs {
					x.trace = append(x.trace, sprintf("afterwards, cq%d: %s", id, show(&wcs[i])))
				}
			}
			return fmt.Errorf("no order of %d calls explains their results (%d states): the nearest: %s", len(events),
				len(s.seen), s.why)
		}
		time.Sleep(pause)
	}
}

// takeAll polls a queue until it is empty.
func (x *runner) takeAll(id model.ID, rest map[model.ID][]ib.WC) error {
	for {
		wc := make([]ib.WC, 16)
		n, err := x.take(id, wc)
		if err != nil {
			return err
		}
		rest[id] = append(rest[id], wc[:n]...)
		if n == 0 {
			return nil
		}
	}
}

// search is a search for an order.
type search struct {
	x      *runner
	events []*event
	rest   map[model.ID][]ib.WC
	seen   map[state]bool // states without a solution
	open   string         // reason why the result of an order is undefined
	why    string         // the difference of an order that explains the most calls
	most   int
}

// state is a state of a search: the bit set of the calls made so far, and the fingerprint of the model.
type state struct {
	done  uint
	model uint64
}

// maxStates limits a search. A search that exceeds it has no result.
const maxStates = 20000

// from continues the search from a state of the model. done is the bit set of the calls made so far. It reports whether
// the observed results can be reached.
func (s *search) from(m *model.Model, done uint) bool {
	if s.open != "" {
		return false
	}
	key := state{done, m.Fingerprint()}
	if s.seen[key] {
		return false
	}
	s.seen[key] = true
	if len(s.seen) > maxStates {
		s.open = "too many orders"
		return false
	}
	for i, v := range s.events {
		if done&(1<<i) != 0 || !s.next(i, done) {
			continue
		}
		c := m.Clone()
		if s.busy(i) {
			if s.from(c, done|1<<i) {
				return true
			}
			continue
		}
		c.Begin()
		if d := s.call(v, c); d != "" {
			s.note(done, "%v: %s", v.c, d)
			continue
		}
		if c.Open != "" {
			s.open = c.Open
			return false
		}
		if s.from(c, done|1<<i) {
			return true
		}
	}
	moved := false
	for _, v := range m.Moves() {
		c := m.Clone()
		if !c.Make(v) {
			continue
		}
		if c.Open != "" {
			s.open = c.Open
			return false
		}
		moved = true
		if s.from(c, done) {
			return true
		}
		if done == 1<<len(s.events)-1 && v.Kind != model.Complete { // the order of the rest has no effect
			break
		}
	}
	if moved || done != 1<<len(s.events)-1 {
		return false
	}
	return s.end(m.Clone(), done)
}

// next reports whether a call may be the next one: no other pending call had returned before it started.
func (s *search) next(i int, done uint) bool {
	for k, v := range s.events {
		if done&(1<<k) == 0 && v.over < s.events[i].begun {
			return false
		}
	}
	return true
}

// busy reports whether a call was rejected because another one was changing the same region.
func (s *search) busy(i int) bool {
	v := s.events[i]
	mr := changes(v.c)
	if mr == 0 || !errors.Is(v.g.err, syscall.EBUSY) {
		return false
	}
	return slices.ContainsFunc(s.events, func(o *event) bool {
		return o != v && changes(o.c) == mr && o.begun < v.over && v.begun < o.over
	})
}

// changes returns the region that a call changes; 0: none.
func changes(c call) model.ID {
	switch c := c.(type) {
	case rereg:
		return c.mr
	case mapMR:
		return c.mr
	case destroy:
		return c.id
	}
	return 0
}

// call makes a call on a model and compares the results.
func (s *search) call(v *event, m *model.Model) string {
	p, ok := v.c.(pollCQ)
	if !ok {
		return compareResult(v.g, v.c.expect(s.x, m, &v.g))
	}
	if v.g.err != nil {
		return v.g.err.Error()
	}
	for i := range v.g.wcs {
		if d := s.x.matchIn(m, p.cq, &v.g.wcs[i]); d != nil {
			return d.what
		}
	}
	return ""
}

// end compares the state of the idle device.
func (s *search) end(m *model.Model, done uint) bool {
	x := s.x
	m.Defer(false)
	if m.Open != "" {
		s.open = m.Open
		return false
	}
	for id, wcs := range s.rest {
		for i := range wcs {
			if d := x.matchIn(m, id, &wcs[i]); d != nil {
				s.note(done, "%s", d.what)
				return false
			}
		}
	}
	was := x.m
	x.m = m
	defer func() { x.m = was }()
	for id, c := range m.CQs {
		if len(c.Wants) > 0 {
			s.note(done, "cq%d: no completion of %s, want %s", id, x.ids[c.Wants[0].WC.ID], describe(&c.Wants[0]))
			return false
		}
	}
	for _, f := range []func() *difference{x.compareStates, x.compareMemory, x.compareCallbacks} {
		if d := f(); d != nil {
			s.note(done, "%s", d.what)
			return false
		}
	}
	return true
}

// note keeps the difference of an order that explains the most calls.
func (s *search) note(done uint, format string, args ...any) {
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
