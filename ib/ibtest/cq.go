package ibtest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/ib/check"
)

// Completion queues: their size.

var cqChecks = []ruleTest{
	{
		name: "CQ/Overrun",
		rule: "a completion that does not fit raises EventCQErr, once; what is in the queue stays, no more are added, and the queue pair goes to ERR",
		test: testCQOverrun,
	},
	{
		name: "CQ/Resize",
		rule: "resizing keeps what is in the queue, and refuses to become too small for it",
		test: testCQResizeKeepsCompletions,
	},
	{
		name: "CQ/ResizeKeepsOrder",
		rule: "a completion queue that is resized keeps its completions, in order, wherever it wraps around; it is not made smaller than what it holds",
		test: testCQResizeKeepsOrder,
	},
	{
		name: "CQ/ResizeUnderTraffic",
		rule: "resizing while completions come and are polled loses none, and shows none twice",
		test: testCQResizeUnderTraffic,
	},
	{
		name: "CQ/ResizeKeepsArmed",
		rule: "an armed queue is armed after Resize",
		test: testResizedCQStaysArmed,
	},
	{
		name: "CQ/Moderation",
		rule: "a moderated CQ notifies after so many completions, or after so long a time",
		test: testCQModeration,
	},
}

func testCQOverrun(e *testEnv) {
	e.allowViolation(check.RuleCQTooSmall)
	var events atomic.Int32
	cq, err := e.dev.CreateCQ(ib.CQInit{Entries: 4, Event: func(_ *ib.CQ, ev ib.EventType) {
		if ev != ib.EventCQErr {
			e.Errorf("event %v of the queue, want %v", ev, ib.EventCQErr)
		}
		events.Add(1)
	}})
	e.must("create cq", err)
	destroyAtEnd(e, cq, cq.Destroy)
	pd, room := e.newPD(), e.cqCapacity(4)
	buf := e.newBuffer(pd, 8, allAccess)
	var qps [2]*ib.QP
	for i := range qps {
		qps[i] = e.newQP(pd, ib.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
			Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: uint32(room + 2), MaxRecvSGE: 1},
		})
		e.connector.moveQPUpTo(qps[i], qps[i].Num(), ib.QPRTS)
	}
	// Flushed receives fill the queue, in order and all at once. Those of the first queue pair just fit.
	post := func(qp *ib.QP, n int) {
		e.Helper()
		for i := range n {
			if k, err := qp.PostRecv(ib.RecvWR{ID: uint64(i), SGList: []ib.SGE{buf.newSGE(0, 8)}}); k != 1 {
				e.Fatalf("post receive %d of %d: %v", i, n, err)
			}
		}
	}
	post(qps[0], room)
	e.must("modify to ERR", qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	e.awaitDueCallbacks()
	if n := events.Load(); n != 0 {
		e.Fatalf("%d events EventCQErr of a queue that is just full", n)
	}
	wr := ib.SendWR{ID: 1 << 32, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []ib.SGE{buf.newSGE(0, 8)}}
	if n, err := qps[1].PostRecv(ib.RecvWR{ID: 1 << 33, SGList: []ib.SGE{buf.newSGE(0, 8)}}); n != 1 {
		e.Fatalf("post receive: %v", err)
	}
	if n, err := qps[1].PostSend(wr); n != 1 { // to itself
		e.Fatalf("post send: %v", err)
	}
	e.eventually("the event that the queue has no room for a completion (EventCQErr)",
		func() bool { return events.Load() > 0 })
	e.eventually("ERR of the queue pair whose completion is lost", func() bool { return qps[1].State() == ib.QPErr })
	for i, wc := range e.waitCompletions(cq, room) {
		if wc.ID != uint64(i) || wc.Status != ib.WCWRFlushErr {
			e.Fatalf("completion %d of the queue that had no room: work request %d with %q, want the earlier completion", i,
				wc.ID, wc.Status)
		}
	}
	e.awaitDueCallbacks()
	if n := events.Load(); n != 1 {
		e.Errorf("%d events EventCQErr, want 1", n)
	}
	// The queue has room again. A later completion would hide from the consumer that one is missing.
	post(qps[0], 1)
	for range 50 {
		yieldBriefly()
		if n := e.drainCQ(cq); n != 0 {
			e.Fatalf("%d completions of the queue that has lost one, want none any more", n)
		}
	}
}

// cqCapacity returns the number of completions that a queue created with a number of entries holds. A device may hold
// more completions than it reports.
func (e *testEnv) cqCapacity(entries int) int {
	e.Helper()
	var lost atomic.Bool
	like, err := e.dev.CreateCQ(ib.CQInit{Entries: entries, Event: func(*ib.CQ, ib.EventType) { lost.Store(true) }})
	e.must("create cq", err)
	destroyAtEnd(e, like, like.Destroy)
	flushed := min(2*like.Entries()+2, e.limits.MaxQPWR)
	pd := e.newPD()
	qp := e.newQP(pd, ib.QPInitAttr{SendCQ: like, RecvCQ: like, Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: uint32(flushed), MaxRecvSGE: 1}})
	e.connector.moveQPUpTo(qp, qp.Num(), ib.QPRTS)
	for range flushed {
		e.mustPostRecv(qp, ib.RecvWR{})
	}
	e.must("modify to ERR", qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	e.eventually(fmt.Sprintf("the event that a queue of %d entries has no room for %d completions (EventCQErr)",
		like.Entries(), flushed), lost.Load)
	n := e.drainCQ(like)
	if n < like.Entries() {
		e.Fatalf("a queue holds %d completions, want at least the %d that it reports", n, like.Entries())
	}
	return n
}

// testCQResizeUnderTraffic sends a stream of messages while one thread polls and another one resizes.
func testCQResizeUnderTraffic(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	e.requireFeature("resizing of CQs", p.cqs[0].Resize(2*e.queueLen))
	t := p.newMessageSender()
	total := 1500 * e.cfg.load
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			if err := p.cqs[0].Resize(e.queueLen + i%7*e.queueLen); err != nil && !errors.Is(err, syscall.EINVAL) {
				e.Errorf("resize: %v", err)
				return
			}
			runtime.Gosched()
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	sent, next := 0, uint64(0)
	wc := make([]ib.WC, 8)
	for w := e.newWaitLimit(); int(next) < total; {
		for sent < total && sent-int(next) < e.queueLen/2 {
			t.deliverMessage(uint64(sent), 8)
			sent++
		}
		n, err := p.cqs[0].Poll(wc)
		e.must("poll", err)
		for _, c := range wc[:n] {
			if c.ID != next || c.Status != ib.WCSuccess {
				e.Fatalf("completion of work request %d with %q while the queue is resized, want %d: one is lost, or came twice",
					c.ID, c.Status, next)
			}
			next++
		}
		if n > 0 {
			w = e.newWaitLimit()
		} else if w.yieldAndCheckOver() {
			e.Fatalf("waited %v for the completion of work request %d: it is lost, since the queue was resized",
				e.cfg.timeout, next)
		}
	}
}

func testResizedCQStaysArmed(e *testEnv) {
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
	e.requireFeature("resizing of CQs", p.cqs[1].Resize(3*e.queueLen))
	for i, flags := range []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited} {
		_, err := p.cqs[1].ReqNotify(flags)
		e.must("request notify", err)
		e.must("resize", p.cqs[1].Resize((4+i)*e.queueLen))
		e.awaitDueCallbacks()
		if n := calls.Load(); int(n) != i {
			e.Fatalf("Resize of an armed queue without completions: got %d handler calls, want 0", int(n)-i)
		}
		p.postRecv(1, uint64(i), 0, 8)
		p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendSolicited,
			SGList: p.buf[0].newSGL(0,
				8)})
		e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
		e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
		e.eventually("a call of the handler of a queue that was armed before Resize",
			func() bool { return int(calls.Load()) > i })
	}
}
