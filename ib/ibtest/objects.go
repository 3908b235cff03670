package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/umem"
)

// Optional kinds of objects.

var objectChecks = []ruleTest{
	{
		name: "SQ/Drain",
		rule: "in SQD nothing is sent, until the queue pair goes back to RTS; the event says when it is drained",
		test: testSQDrain,
	},
	{
		name: "SRQ/Receive",
		rule: "queue pairs that share a receive queue take receives from it in order",
		test: testSRQReceivesInOrder,
	},
	{
		name: "SRQ/Limit",
		rule: "the limit event comes once, when fewer receives than the limit are left",
		test: testSRQLimitEvent,
	},
	{
		name: "SRQ/Errors",
		rule: "a shared receive queue has use counts, a capacity and checked attributes",
		test: testSRQRejectsBadCalls,
	},
	{
		name: "SRQ/LastWQEReached",
		rule: "a queue pair with a shared receive queue that goes to ERR raises the event that no more receives are taken",
		test: testLastWQEReachedEvent,
	},
	{
		name: "SRQ/ConcurrentPost",
		rule: "several may post to a shared receive queue while messages come",
		test: testSRQConcurrentPost, fast: true,
	},
	{
		name: "MW/Type1",
		rule: "a type 1 window gives peers its part of a region until it is bound anew, unbound or freed",
		test: testType1WindowBind,
	},
	{
		name: "MW/Type2",
		rule: "a type 2 window is for one queue pair, and local or remote invalidation ends it",
		test: testType2WindowBind,
	},
	{
		name: "MW/BoundRegion",
		rule: "a region with a bound window cannot be deregistered",
		test: testBoundRegionIsInUse,
	},
	{
		name: "MW/Rights",
		rule: "a window gives the rights of its bind, to a range that may start from zero for type 2",
		test: testWindowRights,
	},
	{
		name: "FastReg/List",
		rule: "a list of ranges is named as if it were one, by the peer and locally, across their edges",
		test: testFastRegRangeList,
	},
	{
		name: "FastReg/Local",
		rule: "what registers, uses and invalidates a region may be posted together, and each finds what the one before it did",
		test: testFastRegPostedTogether,
	},
	{
		name: "FastReg/RegisterInvalidate",
		rule: "a work request registers a region, with a new key each time, and another one invalidates it",
		test: testRegisterAndInvalidate,
	},
	{
		name: "Mcast/Deliver",
		rule: "a datagram for a group reaches those that are attached to it",
		test: testMcastDelivery,
	},
	{
		name: "XRC/Send",
		rule: "an XRC message goes to the shared receive queue that the sender names",
		test: testXRCSend,
	},
}

// newSRQ creates a shared receive queue, or skips the test.
func (e *testEnv) newSRQ(pd *ib.PD, init ib.SRQInitAttr) *ib.SRQ {
	e.Helper()
	srq, err := pd.CreateSRQ(init)
	e.requireFeature("shared receive queues", err)
	return destroyAtEnd(e, srq, srq.Destroy)
}

func testSRQReceivesInOrder(e *testEnv) {
	pd := e.newPD()
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: uint32(e.queueLen), MaxSGE: 1}})
	a := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
	b := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
	buf := a.buf[1]
	for i := range 4 {
		if n, err := srq.PostRecv(ib.RecvWR{ID: uint64(i), SGList: buf.newSGL(64*i, 64)}); n != 1 {
			e.Fatalf("post receive: %v", err)
		}
	}
	for i, p := range []*pair{a, b, b, a} {
		fillPattern(p.buf[0].b[:64], i)
		p.postSend(0, uint64(100+i), 64)
		e.waitOneCompletion(p.cqs[0], uint64(100+i), ib.WCSuccess)
		if wc := e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess); wc.QP != p.qps[1] ||
			!bytes.Equal(buf.b[64*i:64*(i+1)], p.buf[0].b[:64]) {
			e.Errorf("message %d: %+v", i, wc)
		}
	}
	n, err := a.qps[1].PostRecv(ib.RecvWR{SGList: buf.newSGL(0, 8)})
	if n != 0 {
		e.Error("a queue pair with a shared receive queue takes receives of its own")
	}
	e.wantErrno("post receive on a queue pair with a shared queue", err, syscall.EINVAL)
}

func testSRQLimitEvent(e *testEnv) {
	pd := e.newPD()
	var events atomic.Int32
	srq := e.newSRQ(pd, ib.SRQInitAttr{
		Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1},
		Event: func(_ *ib.SRQ, ev ib.EventType) {
			if ev == ib.EventSRQLimitReached {
				events.Add(1)
			}
		},
	})
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
	take := func(n int) {
		for range n {
			p.postSend(0, 1, 8)
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
			e.waitOneCompletion(p.cqs[1], 0, ib.WCSuccess)
		}
		e.awaitDueCallbacks()
	}
	give := func(n int) {
		for range n {
			if k, err := srq.PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(0, 8)}); k != 1 {
				e.Fatalf("post receive: %v", err)
			}
		}
	}
	expect := func(when string, n int32) {
		e.Helper()
		if got := events.Load(); got != n {
			e.Fatalf("%s: %d limit events, want %d", when, got, n)
		}
	}
	limit := func() uint32 {
		a, err := srq.Query()
		e.must("query srq", err)
		return a.Limit
	}
	give(6)
	take(1)
	expect("no limit is set", 0)
	e.must("arm the limit", srq.Modify(ib.SRQAttr{Limit: 3}, ib.SRQAttrLimit))
	if limit() != 3 {
		e.Errorf("limit is %d, want 3", limit())
	}
	take(2)
	expect("3 are left", 0)
	take(1)
	e.eventually("the limit event", func() bool { return events.Load() > 0 })
	expect("2 are left", 1)
	if limit() != 0 {
		e.Errorf("limit is %d when it has been reached", limit())
	}
	take(1)
	expect("the event has come", 1)
	give(5)
	e.must("arm the limit", srq.Modify(ib.SRQAttr{Limit: 6}, ib.SRQAttrLimit))
	take(1)
	e.eventually("the second limit event", func() bool { return events.Load() > 1 })
	expect("armed again", 2)
	give(1)
	e.must("disarm the limit", srq.Modify(ib.SRQAttr{Limit: 0}, ib.SRQAttrLimit))
	take(4)
	expect("disarmed", 2)
}

func testSRQRejectsBadCalls(e *testEnv) {
	pd := e.newPD()
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	buf := e.newBuffer(pd, 64, allAccess)
	qp := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq}).qps
	e.wantErrno("destroy a shared receive queue in use", srq.Destroy(), syscall.EBUSY)
	room := int(srq.Init().Attr.MaxWR)
	for i := range room {
		if n, err := srq.PostRecv(ib.RecvWR{SGList: buf.newSGL(0, 8)}); n != 1 {
			e.Fatalf("post receive %d of %d: %v", i, room, err)
		}
	}
	n, err := srq.PostRecv(ib.RecvWR{SGList: buf.newSGL(0, 8)})
	if n != 0 {
		e.Errorf("a full queue takes more than the %d that it has room for", room)
	}
	e.wantErrno("post to a full shared receive queue", err, syscall.ENOMEM)
	e.wantErrno("limit above the capacity", srq.Modify(ib.SRQAttr{Limit: uint32(room) + 1}, ib.SRQAttrLimit),
		syscall.EINVAL)
	if a, err := srq.Query(); err != nil || int(a.MaxWR) < 4 || a.MaxSGE < 1 {
		e.Errorf("query: %+v, %v", a, err)
	}
	e.destroy(qp[0])
	e.destroy(qp[1])
	e.destroy(srq)
}

func testLastWQEReachedEvent(e *testEnv) {
	pd := e.newPD()
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	var last atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq, event: func(qp *ib.QP, ev ib.EventType) {
		if ev == ib.EventQPLastWQEReached {
			last.Add(1)
		}
	}})
	e.must("modify to ERR", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	e.eventually("the event that the last receive was reached", func() bool { return last.Load() == 1 })
	e.must("modify to ERR again", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	e.awaitDueCallbacks()
	if n := last.Load(); n != 1 {
		e.Errorf("%d events, want 1", n)
	}
}

func testSRQConcurrentPost(e *testEnv) {
	pd := e.newPD()
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: uint32(e.queueLen), MaxSGE: 1}})
	const pairs = 3
	each := 150 * e.cfg.load
	w := randomCalls{}
	var ps []*pair
	for range pairs {
		ps = append(ps, e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq}))
	}
	turn := make(chan *pair, pairs)
	for _, p := range ps {
		turn <- p
	}
	// The assignment of messages to receives is undefined, so each receive has its own part of the buffer.
	const threads = 6
	places, next := e.newBuffer(pd, 8*threads*each, ib.AccessLocalWrite), atomic.Int64{}
	w["message"] = func(*rand.Rand) error {
		p := <-turn
		defer func() { turn <- p }()
		if n, err := srq.PostRecv(ib.RecvWR{SGList: places.newSGL(8*int(next.Add(1)-1), 8)}); n != 1 {
			return err
		}
		if n, err := p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled,
			SGList: p.buf[0].newSGL(0, 8)}); n != 1 {
			return err
		}
		if err := e.pollWithRetry(p.cqs[0], 1); err != nil {
			return err
		}
		return e.pollWithRetry(p.cqs[1], 1)
	}
	w["query"] = func(*rand.Rand) error { return errorOf(srq.Query()) }
	w["modify"] = func(*rand.Rand) error { return srq.Modify(ib.SRQAttr{Limit: 1}, ib.SRQAttrLimit) }
	w.runConcurrently(e, threads, each)
}

func testCQResizeKeepsCompletions(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, entries: 16})
	e.requireFeature("resizing of CQs", p.cqs[0].Resize(32))
	t := p.newMessageSender()
	began := time.Now()
	if n := p.cqs[0].Entries(); n < 32 {
		e.Errorf("%d entries, asked for 32", n)
	}
	for i := range 30 {
		t.deliverMessage(uint64(i), 8)
	}
	e.waitOneCompletion(p.cqs[0], 0, ib.WCSuccess)
	// A further message has arrived only after the earlier ones. Their acknowledgements may still be in flight, and
	// only polling shows which have arrived; so wait much longer than the messages take.
	p.sendAndKeepCompletion(31)
	time.Sleep(200*time.Millisecond + 2*time.Since(began))
	if err := p.cqs[0].Resize(4); p.cqs[0].Entries() < 30 {
		e.Errorf("a queue with 30 completions has %d entries now", p.cqs[0].Entries())
	} else {
		e.wantErrno("resize below what is waiting", err, syscall.EINVAL)
	}
	e.must("resize to what is waiting", p.cqs[0].Resize(30))
	n := p.cqs[0].Entries()
	for i := 30; i < n && n < 64; i++ { // the rest of the queue
		p.sendAndKeepCompletion(uint64(i + 2))
	}
	time.Sleep(200*time.Millisecond + 2*time.Since(began))
	e.must("resize of a full queue to its size", p.cqs[0].Resize(n))
	e.must("resize", p.cqs[0].Resize(100))
	for i := range 29 {
		e.waitOneCompletion(p.cqs[0], uint64(i+1), ib.WCSuccess)
	}
	e.waitOneCompletion(p.cqs[0], 31, ib.WCSuccess)
	for i := 30; i < n && n < 64; i++ {
		e.waitOneCompletion(p.cqs[0], uint64(i+2), ib.WCSuccess)
	}
	p.exchangeMessage(0, 140, 8)
}

// sendAndKeepCompletion sends a message and leaves its send completion in the queue.
func (p *pair) sendAndKeepCompletion(id uint64) {
	p.e.Helper()
	p.postRecv(1, id, 0, 8)
	p.postSend(0, id, 8)
	p.e.waitOneCompletion(p.cqs[1], id, ib.WCSuccess)
	p.e.awaitDueCallbacks()
}

// largeModeration is a number of completions that needs more than 8 bits.
const largeModeration = 300

func testCQModeration(e *testEnv) {
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
	arm := func() {
		_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
		e.must("request notify", err)
	}
	e.requireFeature("moderation of CQs", p.cqs[1].Moderate(3, 0))
	arm()
	for i := range 2 {
		p.exchangeMessage(0, uint64(i), 8)
	}
	e.awaitDueCallbacks()
	if n := calls.Load(); n != 0 {
		e.Errorf("%d notifications after 2 of 3 completions", n)
	}
	p.exchangeMessage(0, 3, 8)
	e.eventually("the notification after 3 completions", func() bool { return calls.Load() == 1 })
	e.must("moderate to a large count", p.cqs[1].Moderate(largeModeration, 0))
	arm()
	for i := range largeModeration - 1 {
		p.exchangeMessage(0, uint64(100+i), 8)
	}
	e.awaitDueCallbacks()
	if n := calls.Load(); n != 1 {
		e.Errorf("%d notifications after %d of %d completions, want none", n-1, largeModeration-1, largeModeration)
	}
	p.exchangeMessage(0, 99, 8)
	e.eventually(fmt.Sprintf("the notification after %d completions", largeModeration),
		func() bool { return calls.Load() == 2 })
	calls.Store(1)
	e.must("moderate", p.cqs[1].Moderate(1000, time.Millisecond))
	arm()
	p.exchangeMessage(0, 4, 8)
	e.eventually("the notification after a millisecond", func() bool { return calls.Load() == 2 })
	e.must("moderate no more", p.cqs[1].Moderate(0, 0))
	arm()
	p.exchangeMessage(0, 5, 8)
	e.eventually("the notification without moderation", func() bool { return calls.Load() == 3 })
	for i, to := range []struct {
		count  int
		period time.Duration
	}{{0, 0}, {1, 0}, {1000, time.Millisecond}, {2000, time.Millisecond}} { // while a notification is delayed
		e.must("moderate", p.cqs[1].Moderate(1000, 50*time.Millisecond))
		arm()
		p.exchangeMessage(0, uint64(10+i), 8)
		e.must("moderate otherwise", p.cqs[1].Moderate(to.count, to.period))
		e.eventually(fmt.Sprintf("the notification that was held back when moderation changed to %d and %v", to.count,
			to.period),
			func() bool { return int(calls.Load()) == 4+i })
	}
	const period = 20 * time.Millisecond
	e.must("moderate", p.cqs[1].Moderate(2, period))
	arm()
	p.exchangeMessage(0, 20, 8)
	time.Sleep(period / 2)
	p.exchangeMessage(0, 21, 8)
	e.eventually("the notification after 2 completions", func() bool { return calls.Load() == 8 })
	arm()
	began := time.Now()
	p.exchangeMessage(0, 22, 8)
	e.eventually("the notification after the period", func() bool { return calls.Load() == 9 })
	if took := time.Since(began); took < period {
		e.Errorf("notification of 1 of 2 completions after %v, want %v: the delay began with an earlier notification", took, period)
	}
	e.must("moderate", p.cqs[1].Moderate(1000, 50*time.Millisecond))
	arm()
	p.exchangeMessage(0, 6, 8) // a notification is in flight when the objects are destroyed
}

// newMW allocates a window, or skips the test.
func (e *testEnv) newMW(pd *ib.PD, kind ib.MWType) *ib.MW {
	e.Helper()
	mw, err := pd.AllocMW(kind)
	e.requireFeature("memory windows", err)
	return destroyAtEnd(e, mw, mw.Dealloc)
}

// bindAndWait posts a bind on side 1, which owns the memory, and waits.
func (p *pair) bindAndWait(b ib.BindMW, status ib.WCStatus) {
	p.e.Helper()
	before := b.MW.RKey()
	p.postSendWR(1, ib.SendWR{ID: 77, Opcode: ib.WRBindMW, Flags: ib.SendSignaled, Bind: &b})
	wc := p.e.waitOneCompletion(p.cqs[1], 77, status)
	if status == ib.WCSuccess && (wc.Opcode != ib.WCBindMW || b.MW.RKey() != before&^0xff|b.RKey&0xff) {
		p.e.Fatalf("bind: %+v, key %#x was %#x, want its low bits as in %#x", wc, b.MW.RKey(), before, b.RKey)
	}
}

// writeAndWait posts an RDMA WRITE of 8 bytes from side 0, and returns its status.
func (p *pair) writeAndWait(addr uint64, rkey uint32) ib.WCStatus {
	p.e.Helper()
	p.postSendWR(0, ib.SendWR{
		ID: 78, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8), RemoteAddr: addr, RKey: rkey,
	})
	return p.e.waitAnyCompletion(p.cqs[0]).Status
}

// reconnect reconnects a pair that has failed.
func (p *pair) reconnect() {
	p.e.Helper()
	p.e.connector.resetQPs(p.qps[:]...)
	for i := range p.qps {
		p.e.connector.moveQPUpTo(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
		p.e.drainCQ(p.cqs[i]) // flushed requests
	}
}

func (p *pair) wantWriteStatus(what string, addr uint64, rkey uint32, want ib.WCStatus) {
	p.e.Helper()
	if got := p.writeAndWait(addr, rkey); got != want {
		p.e.Fatalf("%s: %q, want %q", what, got, want)
	}
	if want != ib.WCSuccess {
		p.reconnect()
	}
}

func testType1WindowBind(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	mw := e.newMW(p.pd, ib.MWType1)
	b := p.buf[1]
	p.wantWriteStatus("write by a window that is not bound", b.addr, mw.RKey(), ib.WCRemAccessErr)
	bind := func(off, n int, access ib.AccessFlags) ib.BindMW {
		return ib.BindMW{MW: mw, MR: b.mr, RKey: ib.IncRKey(mw.RKey()), Addr: b.addr + uint64(off), Length: uint64(n),
			Access: access}
	}
	p.bindAndWait(bind(100, 50, ib.AccessRemoteWrite), ib.WCSuccess)
	first := mw.RKey()
	p.wantWriteStatus("write by the window", b.addr+100, first, ib.WCSuccess)
	p.wantWriteStatus("write to the window's end", b.addr+142, first, ib.WCSuccess)
	p.wantWriteStatus("write behind the window's end", b.addr+143, first, ib.WCRemAccessErr)
	p.bindAndWait(bind(200, 50, ib.AccessRemoteWrite), ib.WCSuccess)
	p.wantWriteStatus("write by the old key", b.addr+100, first, ib.WCRemAccessErr)
	p.wantWriteStatus("write by the new key", b.addr+200, mw.RKey(), ib.WCSuccess)
	p.bindAndWait(bind(200, 50, ib.AccessRemoteRead), ib.WCSuccess)
	p.wantWriteStatus("write by a window for reading", b.addr+200, mw.RKey(), ib.WCRemAccessErr)
	p.bindAndWait(bind(0, 0, 0), ib.WCSuccess)
	p.wantWriteStatus("write by a window that was unbound", b.addr+200, mw.RKey(), ib.WCRemAccessErr)
	p.bindAndWait(bind(pairBufferLen-8, 16, ib.AccessRemoteWrite), ib.WCMWBindErr)
	p.reconnect()
	p.bindAndWait(bind(0, 50, ib.AccessRemoteWrite), ib.WCSuccess)
	key := mw.RKey()
	e.destroy(mw)
	p.wantWriteStatus("write by a window that was freed", b.addr, key, ib.WCRemAccessErr)
}

func testType2WindowBind(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	other := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: p.pd})
	mw := e.newMW(p.pd, ib.MWType2)
	b := p.buf[1]
	bind := func() ib.BindMW {
		return ib.BindMW{MW: mw, MR: b.mr, RKey: ib.IncRKey(mw.RKey()), Addr: b.addr, Length: 64,
			Access: ib.AccessRemoteWrite}
	}
	p.bindAndWait(bind(), ib.WCSuccess)
	p.wantWriteStatus("write by the window", b.addr, mw.RKey(), ib.WCSuccess)
	other.wantWriteStatus("write by another queue pair", b.addr, mw.RKey(), ib.WCRemAccessErr)
	p.bindAndWait(bind(), ib.WCMWBindErr) // the window is already bound
	p.reconnect()
	invalidate := func(what string, status ib.WCStatus) {
		e.Helper()
		p.postSendWR(1, ib.SendWR{ID: 79, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: mw.RKey()})
		if wc := e.waitAnyCompletion(p.cqs[1]); wc.Status != status {
			e.Fatalf("%s: %q, want %q", what, wc.Status, status)
		}
	}
	invalidate("local invalidation", ib.WCSuccess)
	p.wantWriteStatus("write by a window that was invalidated", b.addr, mw.RKey(), ib.WCRemAccessErr)
	p.bindAndWait(bind(), ib.WCSuccess)
	p.postRecv(1, 80, 0, 8)
	p.postSendWR(0, ib.SendWR{ID: 80, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8),
		InvalidateRKey: mw.RKey()})
	e.waitOneCompletion(p.cqs[0], 80, ib.WCSuccess)
	wc := e.waitOneCompletion(p.cqs[1], 80, ib.WCSuccess)
	if wc.Flags&ib.WCWithInvalidate == 0 || wc.InvalidateRKey != mw.RKey() {
		e.Errorf("remote invalidation: %+v", wc)
	}
	p.wantWriteStatus("write by a window that the peer invalidated", b.addr, mw.RKey(), ib.WCRemAccessErr)
	low := bind()
	low.RKey = ^mw.RKey()
	p.bindAndWait(low, ib.WCSuccess)
	p.wantWriteStatus("write by the window, whose key was bound by its low bits", b.addr, mw.RKey(), ib.WCSuccess)
	// A failing invalidation has no response: the receiver's completion reports it (class J of IBA 9.9.6.3).
	e.connector.ackTimeout, e.connector.retries = 12, 1 // 17 ms
	p.reconnect()
	p.postRecv(1, 81, 0, 8)
	p.postSendWR(0, ib.SendWR{ID: 81, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8),
		InvalidateRKey: mw.RKey() ^ 1})
	e.waitOneCompletion(p.cqs[1], 81, ib.WCMWBindErr)
	e.waitOneCompletion(p.cqs[0], 81, ib.WCRetryExcErr)
}

func testBoundRegionIsInUse(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	mw := e.newMW(p.pd, ib.MWType1)
	target := e.newBuffer(p.pd, 64, allAccess)
	p.bindAndWait(ib.BindMW{
		MW: mw, MR: target.mr, RKey: ib.IncRKey(mw.RKey()), Addr: target.addr, Length: 64, Access: ib.AccessRemoteWrite,
	}, ib.WCSuccess)
	e.wantErrno("deregister a region with a bound window", target.mr.Dereg(), syscall.EBUSY, syscall.EINVAL)
	p.wantWriteStatus("write by the window", target.addr, mw.RKey(), ib.WCSuccess)
	e.destroy(mw)
	e.destroy(target.mr)
	plain := e.newBuffer(p.pd, 64, ib.AccessLocalWrite) // without the right to bind
	mw = e.newMW(p.pd, ib.MWType1)
	p.bindAndWait(ib.BindMW{
		MW: mw, MR: plain.mr, RKey: ib.IncRKey(mw.RKey()), Addr: plain.addr, Length: 64, Access: ib.AccessRemoteWrite,
	}, ib.WCMWBindErr)
}

func testRegisterAndInvalidate(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	mr, err := p.pd.AllocMR(2)
	e.requireFeature("fast registration", err)
	destroyAtEnd(e, mr, mr.Dereg)
	b, addr := e.newMemory(64)
	post := func(side int, wr ib.SendWR, status ib.WCStatus) {
		e.Helper()
		wr.ID, wr.Flags = 81, ib.SendSignaled
		p.postSendWR(side, wr)
		if wc := e.waitAnyCompletion(p.cqs[side]); wc.Status != status {
			e.Fatalf("opcode %d: %q, want %q", wr.Opcode, wc.Status, status)
		}
	}
	var old uint32
	for round := range 3 {
		const iova = 0x100000
		e.must("map", mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, iova))
		mr.UpdateKey(uint8(round + 1))
		p.wantWriteStatus("write before the registration", iova, mr.RKey(), ib.WCRemAccessErr)
		post(1, ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.RKey(), Access: allAccess &^ ib.AccessMWBind}},
			ib.WCSuccess)
		e.wantErrno("map a region that is registered", mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 32}}, iova),
			syscall.EBUSY)
		fillPattern(p.buf[0].b[:8], round)
		p.wantWriteStatus("write by the region", iova+8, mr.RKey(), ib.WCSuccess)
		if !bytes.Equal(b[8:16], p.buf[0].b[:8]) {
			e.Error("the data are not where they should be")
		}
		if old != 0 {
			p.wantWriteStatus("write by the last round's key", iova, old, ib.WCRemAccessErr)
		}
		old = mr.RKey()
		if round == 1 { // the peer invalidates
			p.postRecv(1, 82, 0, 8)
			post(0, ib.SendWR{Opcode: ib.WRSendWithInv, SGList: p.buf[0].newSGL(0, 8), InvalidateRKey: old}, ib.WCSuccess)
			e.waitOneCompletion(p.cqs[1], 82, ib.WCSuccess)
		} else {
			post(1, ib.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: old}, ib.WCSuccess)
		}
		p.wantWriteStatus("write after the invalidation", iova, old, ib.WCRemAccessErr)
	}
	// The specification has a status of its own, memory management operation error, which enum ib_wc_status lacks.
	p.postSendWR(1, ib.SendWR{ID: 81, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: old})
	if wc := e.waitAnyCompletion(p.cqs[1]); wc.ID != 81 || wc.Status != ib.WCLocQPOpErr && wc.Status != ib.WCMWBindErr {
		e.Errorf("invalidate a region that is invalid: got completion of work request %d with %q, want 81 with %q or %q",
			wc.ID,
			wc.Status, ib.WCLocQPOpErr, ib.WCMWBindErr)
	}
}

func testMcastDelivery(e *testEnv) {
	p, _ := e.newDatagramPair()
	group := ib.GID{0: 0xff, 1: 0x0e, 15: 0x42}
	e.wantErrno("attach to an address that is no group", p.qps[1].AttachMcast(e.connector.gid, 0), syscall.EINVAL,
		syscall.EOPNOTSUPP)
	err := p.qps[1].AttachMcast(group, 0)
	if errors.Is(err, syscall.EADDRNOTAVAIL) { // the device has only IPv4 addresses
		group = ib.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}
		err = p.qps[1].AttachMcast(group, 0)
	}
	e.requireFeature("multicast", err)
	e.wantErrno("destroy a queue pair in a group", p.qps[1].Destroy(), syscall.EBUSY)
	e.wantErrno("attach twice", p.qps[1].AttachMcast(group, 0), syscall.EINVAL)
	a := e.connector.ownAddress()
	a.GRH.DGID = group
	ah, err := p.pd.CreateAH(&a)
	e.must("create ah", err)
	destroyAtEnd(e, ah, ah.Destroy)
	send := func(id uint64) {
		wr := p.newDatagramRequest(id, ah, 16)
		wr.RemoteQPN = 0xffffff
		p.postSendWR(0, wr)
		e.waitOneCompletion(p.cqs[0], id, ib.WCSuccess)
	}
	fillPattern(p.buf[0].b, 1)
	p.postRecv(1, 1, 0, 100)
	send(1)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	if !bytes.Equal(p.buf[1].b[grhLen:grhLen+16], p.buf[0].b[:16]) {
		e.Error("the datagram arrived changed")
	}
	e.must("detach", p.qps[1].DetachMcast(group, 0))
	e.wantErrno("detach twice", p.qps[1].DetachMcast(group, 0), syscall.EINVAL)
	p.postRecv(1, 2, 0, 100)
	send(2)
	own := e.newAH(p.pd)
	p.postSendWR(0, p.newDatagramRequest(3, own, 5)) // is completed later, and consumed first
	if wc := e.waitOneCompletion(p.cqs[1], 2, ib.WCSuccess); int(wc.ByteLen) != grhLen+5 {
		e.Errorf("%d bytes arrived at one that had left the group", wc.ByteLen)
	}
}

func testXRCSend(e *testEnv) {
	x, err := e.dev.AllocXRCD()
	e.requireFeature("XRC domains", err)
	destroyAtEnd(e, x, x.Dealloc)
	pd, sender, receiver := e.newPD(), e.newCQ(16, nil), e.newCQ(16, nil)
	var srqs [2]*ib.SRQ
	for i := range srqs {
		srqs[i] = e.newSRQ(pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: receiver, Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
	}
	if srqs[0].Num() == srqs[1].Num() {
		e.Errorf("both shared receive queues have number %d", srqs[0].Num())
	}
	ini := e.newQP(pd, ib.QPInitAttr{Type: ib.QPTypeXRCInit, SendCQ: sender})
	tgt := e.newQP(pd, ib.QPInitAttr{Type: ib.QPTypeXRCTgt, XRCD: x})
	e.connector.moveQPUpTo(ini, tgt.Num(), ib.QPRTS)
	e.connector.moveQPUpTo(tgt, ini.Num(), ib.QPRTS)
	buf := e.newBuffer(pd, 256, allAccess)
	for i, to := range []int{1, 0, 0, 1} {
		fillPattern(buf.b[:16], i)
		if n, err := srqs[to].PostRecv(ib.RecvWR{ID: uint64(10*to + i), SGList: buf.newSGL(128, 16)}); n != 1 {
			e.Fatalf("post receive: %v", err)
		}
		n, err := ini.PostSend(ib.SendWR{
			ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(0, 16), RemoteSRQN: srqs[to].Num(),
		})
		if n != 1 {
			e.Fatalf("post send: %v", err)
		}
		e.waitOneCompletion(sender, uint64(i), ib.WCSuccess)
		e.waitOneCompletion(receiver, uint64(10*to+i), ib.WCSuccess)
		if !bytes.Equal(buf.b[:16], buf.b[128:144]) {
			e.Error("the message arrived changed")
		}
	}
	// The target's rights, and the limit of the queue, are checked for other services elsewhere.
	var limits atomic.Int32
	limited := e.newSRQ(pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: receiver, Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1},
		Event: func(_ *ib.SRQ, ev ib.EventType) {
			if ev == ib.EventSRQLimitReached {
				limits.Add(1)
			}
		}})
	for i := range uint64(2) {
		e.mustPostSRQ(limited, ib.RecvWR{ID: i, SGList: buf.newSGL(128, 16)})
	}
	e.must("arm the limit", limited.Modify(ib.SRQAttr{Limit: 2}, ib.SRQAttrLimit))
	message := func(op ib.WROpcode) ib.WC {
		e.Helper()
		n, err := ini.PostSend(ib.SendWR{ID: 8, Opcode: op, Flags: ib.SendSignaled, SGList: buf.newSGL(0, 8),
			RemoteSRQN: limited.Num(),
			RemoteAddr: buf.addr + 64, RKey: buf.mr.RKey()})
		if n != 1 {
			e.Fatalf("post opcode %v: %v", op, err)
		}
		return e.waitAnyCompletion(sender)
	}
	if wc := message(ib.WRSend); wc.Status != ib.WCSuccess {
		e.Fatalf("a message: %+v", wc)
	}
	e.waitOneCompletion(receiver, 0, ib.WCSuccess)
	e.eventually("the event that the limit of an XRC shared receive queue is reached",
		func() bool { return limits.Load() > 0 })
	ops := []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead}
	if a := e.deviceAttr(); a.AtomicCap != ib.AtomicNone {
		ops = append(ops, ib.WRAtomicFetchAdd)
	}
	for _, op := range ops {
		if !e.supportsOperation(ib.QPTypeRC, op) {
			continue
		}
		if wc := message(op); wc.Status != ib.WCSuccess {
			e.Fatalf("opcode %v to a target that allows it: %q", op, wc.Status)
		}
		before := bytes.Clone(buf.b)
		e.must("take the rights away", tgt.Modify(ib.QPAttr{}, ib.QPAttrAccessFlags))
		fillPattern(buf.b[:8], 99)
		copy(before, buf.b[:8])
		if wc := message(op); wc.Status != ib.WCRemInvReqErr || !bytes.Equal(buf.b, before) {
			e.Errorf("opcode %v to a target that does not allow it: %q, memory changed: %v", op, wc.Status,
				!bytes.Equal(buf.b, before))
		}
		e.connector.resetQPs(ini, tgt)
		e.connector.moveQPUpTo(ini, tgt.Num(), ib.QPRTS)
		e.connector.moveQPUpTo(tgt, ini.Num(), ib.QPRTS)
	}
	e.wantErrno("dealloc an XRC domain in use", x.Dealloc(), syscall.EBUSY)
	unused := uint32(0x5a5a5a)
	for unused == srqs[0].Num() || unused == srqs[1].Num() {
		unused++
	}
	if n, err := ini.PostSend(ib.SendWR{ID: 9, Opcode: ib.WRSend, SGList: buf.newSGL(0, 16),
		RemoteSRQN: unused}); n != 1 {
		e.Fatalf("post send: %v", err)
	}
	if wc := e.waitAnyCompletion(sender); wc.Status == ib.WCSuccess || wc.ID != 9 {
		e.Errorf("a message to a queue that is not: %+v", wc)
	}
}
