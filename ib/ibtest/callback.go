package ibtest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// Point 3: callbacks.

var callbackChecks = []ruleTest{
	{
		name: "Callback/NotFromCallchain",
		rule: "a completion that a method call raises is delivered when the call has returned",
		test: testNoCallbackInCallchain,
	},
	{
		name: "Callback/MissedReport",
		rule: "a request for notification reports a completion that is there already",
		test: testReportMissedCompletion,
	},
	{
		name: "Callback/OncePerRequest",
		rule: "the handler is called once for each request, and not without one",
		test: testHandlerOncePerRequest,
	},
	{
		name: "Callback/SolicitedOnly",
		rule: "a request for solicited completions is answered by those, and by failures, only",
		test: testSolicitedOnly,
	},
	{
		name: "Callback/SolicitedOperations",
		rule: "the solicited flag counts for each operation that takes a receive, of each type of service",
		test: testSolicitedOperations,
	},
	{
		name: "Callback/MissedSolicited",
		rule: "a request for solicited completions reports one that is there already",
		test: testReportMissedSolicited,
	},
	{
		name: "Callback/ArmedFlushOnError",
		rule: "the flush when the device goes into error wakes an armed CQ, whatever it was armed for",
		test: testFlushWakesArmedCQ,
	},
	{
		name: "Callback/NoneAfterDestroy",
		rule: "no handler runs when its CQ has been destroyed",
		test: testNoCallbackAfterDestroy, fast: true,
	},
	{
		name: "Callback/NoLostNotification",
		rule: "a handler that polls, arms, and polls again when completions were missed, sees every completion",
		test: testHandlerPollsAll, fast: true,
	},
	{
		name: "Callback/OneHandlerAtATime",
		rule: "one completion handler of a CQ runs at a time, also when it arms the CQ while completions come",
		test: testOneHandlerAtATime, fast: true,
	},
	{
		name: "Callback/QueuesInParallel",
		rule: "handlers of different CQs run in parallel",
		test: testHandlersInParallel,
	},
}

func testNoCallbackInCallchain(e *testEnv) {
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) {
		calls.Add(1)
		if isCalledFrom("ib.(*QP).PostSend", "ib.(*QP).PostRecv", "ib.(*CQ).Poll", "ib.(*CQ).ReqNotify") {
			e.Errorf("rule callchain: the handler was called from within a method")
		}
	}}})
	for i := range 20 {
		_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
		e.must("request notify", err)
		p.exchangeMessage(0, uint64(i), 8)
		e.eventually("a call of the handler for each time that the CQ was armed",
			func() bool { return int(calls.Load()) == i+1 })
	}
}

// isCalledFrom reports whether the callchain contains a function with a name that ends in one of names.
func isCalledFrom(names ...string) bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for {
		f, more := frames.Next()
		for _, n := range names {
			if strings.HasSuffix(f.Function, n) {
				return true
			}
		}
		if !more {
			return false
		}
	}
}

// testOneHandlerAtATime completes requests of several connections on one CQ, whose handler re-arms it at once.
func testOneHandlerAtATime(e *testEnv) {
	const senders = 4
	each := min(200*e.cfg.load, e.limits.MaxCQE/senders)
	var running, polled atomic.Int32
	shared := e.newCQ(senders*each, func(cq *ib.CQ) { // the senders do not wait for the handler
		if running.Add(1) != 1 {
			e.Errorf("rule one-handler: two handlers of one CQ at once")
		}
		cq.ReqNotify(ib.NotifyNextComp)
		runtime.Gosched()
		var wc [8]ib.WC
		for {
			n, err := cq.Poll(wc[:])
			if err != nil {
				e.Errorf("poll: %v", err)
			}
			if n == 0 {
				break
			}
			polled.Add(int32(n))
		}
		running.Add(-1)
	})
	_, err := shared.ReqNotify(ib.NotifyNextComp)
	e.must("request notify", err)
	pd := e.newPD()
	buf := e.newBuffer(pd, 64, allAccess)
	var threads sync.WaitGroup
	for i := range senders {
		cq := e.newCQ(2*e.queueLen, nil)
		from := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
		to := e.newQP(pd, ib.QPInitAttr{SendCQ: shared, RecvCQ: shared, Type: ib.QPTypeRC})
		e.connector.moveQPUpTo(from, to.Num(), ib.QPRTS)
		e.connector.moveQPUpTo(to, from.Num(), ib.QPRTS)
		threads.Go(func() {
			for k := range each {
				if err := e.postRecvWithRetry(to, ib.RecvWR{ID: uint64(k), SGList: buf.newSGL(8*i, 8)}); err != nil {
					e.Errorf("%v", err)
				}
				hold := i%2 == 0 // half of the threads run callbacks themselves
				if hold {
					e.handle.HoldCallbacks()
				}
				n, err := from.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(32+8*i, 8)})
				if hold {
					e.handle.RunCallbacks()
				}
				if n != 1 {
					e.Errorf("post send: %v", err)
					return
				}
				if err := e.pollWithRetry(cq, 1); err != nil {
					e.Errorf("%v", err)
					return
				}
			}
		})
	}
	threads.Wait()
	e.eventually("the handler to see all completions", func() bool { return int(polled.Load()) == senders*each })
}

// testHandlerPollsAll sends a stream of messages to a handler that polls, arms, and polls again if completions were
// missed.
func testHandlerPollsAll(e *testEnv) {
	total := 2000 * e.cfg.load
	var running, polled, calls atomic.Int32
	var p *pair
	p = e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(cq *ib.CQ) {
		if running.Add(1) != 1 {
			e.Errorf("rule one-handler: two handlers of one CQ at once")
		}
		calls.Add(1)
		var wc [7]ib.WC
		for {
			n, err := cq.Poll(wc[:])
			if err != nil {
				e.Errorf("poll: %v", err)
			}
			for _, w := range wc[:n] {
				if w.Status != ib.WCSuccess {
					e.Errorf("completion with %q", w.Status)
				}
				p.qps[1].PostRecv(ib.RecvWR{ID: w.ID + uint64(e.queueLen/2), SGList: p.buf[1].newSGL(0, 8)})
			}
			polled.Add(int32(n))
			if n > 0 {
				continue
			}
			missed, err := cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
			if err != nil {
				e.Errorf("request notify: %v", err)
			}
			if !missed {
				break
			}
		}
		running.Add(-1)
	}}})
	for i := range e.queueLen / 2 {
		p.postRecv(1, uint64(i), 0, 8)
	}
	_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
	e.must("request notify", err)
	wc := make([]ib.WC, e.queueLen)
	sent, done := 0, 0
	e.eventually("all messages (rule: no armed notification is lost)", func() bool {
		for sent < total && sent-done < e.queueLen/2 {
			n, err := p.qps[0].PostSend(ib.SendWR{
				ID: uint64(sent), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8),
			})
			e.must("post send", err)
			sent += n
		}
		n, err := p.cqs[0].Poll(wc)
		e.must("poll", err)
		done += n
		if e.Failed() {
			e.FailNow()
		}
		return done == total
	})
	e.eventually("the handler to see all completions (rule: no armed notification is lost)", func() bool {
		return int(polled.Load()) == total
	})
	if calls.Load() == 0 {
		e.Error("the handler was never called")
	}
}

func testReportMissedCompletion(e *testEnv) {
	for range 10 {
		var calls atomic.Int32
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
		for again := false; ; again = true {
			missed, err := p.cqs[1].ReqNotify(ib.NotifySolicited | ib.NotifyReportMissed)
			e.must("request notify", err)
			if !missed {
				break
			}
			if again {
				e.Fatalf("an empty queue reports missed completions twice, want at most once")
			}
		}
		for id := range 2 {
			p.postRecv(1, uint64(id), 0, 8)
			p.postSend(0, uint64(id), 8)
			e.waitOneCompletion(p.cqs[0], uint64(id), ib.WCSuccess)
		} // so the first receive has completed
		missed, err := p.cqs[1].ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
		e.must("request notify", err)
		if !missed {
			e.eventually("a call of the handler, since nothing was reported as missed", func() bool { return calls.Load() > 0 })
		}
		e.waitCompletions(p.cqs[1], 2)
	}
}

// awaitDueCallbacks waits for due callbacks. It raises a callback and waits for it.
func (e *testEnv) awaitDueCallbacks() {
	e.Helper()
	e.awaitEventDelivery()
	for range 10 {
		yieldBriefly()
	}
}

// awaitEventDelivery returns when all raised events have been delivered.
func (e *testEnv) awaitEventDelivery() {
	e.Helper()
	var seen atomic.Bool
	stop := e.dev.OnEvent(func(ib.Event) { seen.Store(true) })
	defer stop()
	e.handle.DispatchEvent(ib.EventClientReregister, 1)
	e.eventually("an event of the device", seen.Load)
}

func testHandlerOncePerRequest(e *testEnv) {
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
	p.exchangeMessage(0, 1, 8)
	e.awaitDueCallbacks()
	if n := calls.Load(); n != 0 {
		e.Fatalf("rule notify-once: without a request got %d handler calls, want 0", n)
	}
	for range 3 { // several requests before a completion count as one
		_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
		e.must("request notify", err)
	}
	for i := range 5 {
		p.exchangeMessage(0, uint64(i), 8)
	}
	e.eventually("the handler", func() bool { return calls.Load() > 0 })
	e.awaitDueCallbacks()
	if n := calls.Load(); n != 1 {
		e.Errorf("rule notify-once: got %d handler calls, want 1", n)
	}
}

func testSolicitedOnly(e *testEnv) {
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
	arm := func(f ib.NotifyFlags) {
		_, err := p.cqs[1].ReqNotify(f)
		e.must("request notify", err)
	}
	expect := func(what string, want int32) {
		e.Helper()
		e.eventually("a call of the handler for "+what, func() bool { return calls.Load() >= want })
		e.awaitDueCallbacks()
		if n := calls.Load(); n != want {
			e.Fatalf("%s: got %d handler calls, want %d", what, n, want)
		}
	}
	arm(ib.NotifySolicited)
	p.exchangeMessage(0, 1, 8)
	expect("a completion that was not solicited", 0)
	p.postRecv(1, 2, 0, 8)
	p.postSendWR(0, ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSolicited | ib.SendSignaled,
		SGList: p.buf[0].newSGL(0, 8)})
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 2, ib.WCSuccess)
	expect("a solicited completion", 1)
	arm(ib.NotifySolicited)
	arm(ib.NotifyNextComp) // the wider of two requests applies
	arm(ib.NotifySolicited)
	p.exchangeMessage(0, 3, 8)
	expect("any completion, which was asked for, too", 2)
	arm(ib.NotifySolicited)
	p.postRecv(1, 4, 0, 8)
	e.must("modify to ERR", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	e.waitOneCompletion(p.cqs[1], 4, ib.WCWRFlushErr)
	expect("a failure", 3)
}

func testSolicitedOperations(e *testEnv) {
	pd := e.newPD()
	for _, kind := range queuePairTypes {
		if e.newQPOfType(kind, pd, e.newCQ(8, nil)) == nil {
			continue
		}
		var calls atomic.Int32
		p := e.newPair(pairConfig{kind: kind, pd: pd, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
		ops := p.probeSupportedOperations()
		window := func(*ib.SendWR) {}
		if mw, err := pd.AllocMW(ib.MWType2); err == nil {
			destroyAtEnd(e, mw, mw.Dealloc)
			window = func(wr *ib.SendWR) {
				if wr.Opcode != ib.WRSendWithInv {
					return
				}
				p.bindAndWait(ib.BindMW{MW: mw, MR: p.buf[1].mr, RKey: ib.IncRKey(mw.RKey()), Addr: p.buf[1].addr, Length: 64,
					Access: remote},
					ib.WCSuccess)
				wr.InvalidateRKey = mw.RKey()
			}
			if kind == ib.QPTypeRC {
				ops = append(ops, qpOperation{"SEND with invalidate", ib.SendWR{Opcode: ib.WRSendWithInv, SGList: p.buf[0].newSGL(0,
					8)},
					ib.WCSend, true})
			}
		}
		for _, o := range ops {
			if !o.receives {
				continue
			}
			what := fmt.Sprintf("%v, %s", kind, o.what)
			for i, flags := range []ib.SendFlags{0, ib.SendSolicited} {
				wr := o.wr
				wr.ID, wr.Flags = uint64(i), ib.SendSignaled|flags
				window(&wr)
				calls.Store(0)
				_, err := p.cqs[1].ReqNotify(ib.NotifySolicited)
				e.must("request notify", err)
				p.postRecv(1, uint64(i), 0, 64)
				p.postSendWR(0, wr)
				e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
				e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
				e.awaitDueCallbacks()
				if n := calls.Load(); flags == 0 && n != 0 {
					e.Fatalf("%s, not solicited: got %d handler calls, want 0", what, n)
				}
			}
			e.eventually("a call of the handler for "+what+" that is solicited", func() bool { return calls.Load() == 1 })
		}
	}
}

func testReportMissedSolicited(e *testEnv) {
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
	p.postRecv(1, 1, 0, 8)
	p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendSolicited,
		SGList: p.buf[0].newSGL(0, 8)})
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	e.awaitDueCallbacks()
	missed, err := p.cqs[1].ReqNotify(ib.NotifySolicited | ib.NotifyReportMissed)
	e.must("request notify", err)
	if !missed {
		e.eventually("a call of the handler, since a solicited completion was there, and was not reported as missed",
			func() bool { return calls.Load() > 0 })
	}
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
}

func testFlushWakesArmedCQ(e *testEnv) {
	var calls [2]atomic.Int32
	var hs [2]func(*ib.CQ)
	for i := range hs {
		hs[i] = func(*ib.CQ) { calls[i].Add(1) }
	}
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: hs})
	for i, flags := range []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited} {
		_, err := p.cqs[i].ReqNotify(flags)
		e.must("request notify", err)
		p.postRecv(i, uint64(i), 0, 8)
	}
	e.handle.SetError()
	for i := range p.cqs {
		var wc [1]ib.WC
		for w := e.newWaitLimit(); ; {
			n, err := p.cqs[i].Poll(wc[:])
			e.must("poll", err)
			if n > 0 {
				break
			}
			if w.yieldAndCheckOver() {
				e.Log("there is no flush: see DeviceError/NoNewWork and DeviceError/Flush")
				return
			}
		}
		e.eventually("a call of the handler of an armed queue for the flush of a device in error",
			func() bool { return calls[i].Load() > 0 })
	}
	e.awaitDueCallbacks()
	for i := range calls {
		if n := calls[i].Load(); n != 1 {
			e.Errorf("flush: got %d handler calls, want 1", n)
		}
	}
}

// testHandlersInParallel makes the first handler spin until the other one runs.
func testHandlersInParallel(e *testEnv) {
	var first, second, gaveUp atomic.Bool
	var done atomic.Int32
	handlers := [2]func(*ib.CQ){
		func(*ib.CQ) {
			first.Store(true)
			for !second.Load() && !gaveUp.Load() {
				runtime.Gosched() //verbena:allow nosleep awake on purpose, until the other handler runs
			}
			done.Add(1)
		},
		func(*ib.CQ) {
			second.Store(true)
			done.Add(1)
		},
	}
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: handlers})
	e.Cleanup(func() { gaveUp.Store(true) })
	defer gaveUp.Store(true)
	for _, cq := range p.cqs {
		_, err := cq.ReqNotify(ib.NotifyNextComp)
		e.must("request notify", err)
	}
	// Flushed receives are used because the network may deliver the completions of messages one after the other, on one
	// thread.
	var threads sync.WaitGroup
	flush := func(i int) {
		p.postRecv(i, 1, 0, 8)
		threads.Go(func() {
			if err := p.qps[i].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState); err != nil {
				e.Errorf("modify to ERR: %v", err)
			}
		})
	}
	flush(0)
	e.eventually("the first handler", first.Load)
	flush(1)
	e.eventually("the second handler while the first runs", func() bool { return done.Load() == 2 })
	threads.Wait()
}

func testNoCallbackAfterDestroy(e *testEnv) {
	rounds := 50 * e.cfg.load
	for i := range rounds {
		var gone, late atomic.Bool
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(cq *ib.CQ) {
			if gone.Load() {
				late.Store(true)
			}
			cq.ReqNotify(ib.NotifyNextComp)
		}}})
		_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
		e.must("request notify", err)
		for k := range 10 {
			p.postRecv(1, uint64(k), 0, 8)
		}
		for k := range i % 10 {
			p.postSend(0, uint64(k), 8)
		}
		e.wantErrno("destroy a CQ in use", p.cqs[1].Destroy(), syscall.EBUSY)
		e.destroy(p.qps[0])
		e.destroy(p.qps[1])
		e.destroy(p.cqs[1])
		gone.Store(true)
		e.destroy(p.cqs[0])
		e.destroy(p.buf[0].mr)
		e.destroy(p.buf[1].mr)
		e.destroy(p.pd)
		e.must("remove memory", e.mem.Remove(p.buf[0].addr))
		e.must("remove memory", e.mem.Remove(p.buf[1].addr))
		if late.Load() {
			e.Fatal("a handler ran after its CQ had been destroyed")
		}
	}
	e.awaitDueCallbacks()
}
