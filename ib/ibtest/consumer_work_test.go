package ibtest

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/umem"
)

// newRCPair returns a connected pair.
func newRCPair(e *testEnv) *pair { return e.newPair(pairConfig{kind: ib.QPTypeRC}) }

func (e *testEnv) awaitViolationReport() {
	e.Helper()
	e.eventually("a report", e.Failed)
}

// newWrongHandlerConsumer returns a wrong consumer that calls a function in a completion handler.
func newWrongHandlerConsumer(what string, f func(e *testEnv, p *pair, cq *ib.CQ), says string) wrongConsumer {
	return wrongConsumer{defect: what, says: says, use: func(e *testEnv) {
		runInHandler(e, func(p *pair, cq *ib.CQ) { f(e, p, cq) })
	}}
}

// wrongWorkConsumers misuse work requests.
var wrongWorkConsumers = []wrongConsumer{
	{
		defect: "deregisters the memory of a posted receive",
		use: func(e *testEnv) {
			p := newRCPair(e)
			p.postRecv(1, 1, 0, 64)
			e.destroy(p.buf[1].mr)
		},
		says: "MR.Dereg while a work request that names the region is outstanding",
	},
	{
		defect: "deregisters the memory of a request after the reply and before the completion of the request",
		use: func(e *testEnv) {
			p := newRCPair(e)
			reply := e.newBuffer(p.pd, 64, allAccess)
			p.postRecv(1, 1, 0, 64)
			if _, err := p.qps[0].PostRecv(ib.RecvWR{ID: 2, SGList: reply.newSGL(0, 64)}); err != nil {
				e.Fatal(err)
			}
			p.postSend(0, 3, 64)
			e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
			p.postSend(1, 4, 64)
			e.eventually("the reply", func() bool {
				wc := make([]ib.WC, 1)
				n, _ := p.cqs[1].Poll(wc) // the acknowledgement
				return n == 1
			})
			e.destroy(p.buf[0].mr)
		},
		says: "rule in-flight",
	},
	{
		defect: "fills the memory of a request again after the reply and before the completion of the request",
		use: func(e *testEnv) {
			p := newRCPair(e)
			request, reply := e.newBuffer(p.pd, 64, ib.AccessLocalWrite), e.newBuffer(p.pd, 64, ib.AccessLocalWrite)
			p.postRecv(1, 1, 0, 64)
			if _, err := p.qps[0].PostRecv(ib.RecvWR{ID: 2, SGList: reply.newSGL(0, 64)}); err != nil {
				e.Fatal(err)
			}
			p.postSendWR(0, ib.SendWR{ID: 3, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: request.newSGL(0, 64)})
			e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
			request.b[0]++
			e.waitOneCompletion(p.cqs[0], 3, ib.WCSuccess)
		},
		says: "rule source-changed",
	},
	{
		defect: "deregisters the source of an unsignaled write without the completion of a later request",
		use: func(e *testEnv) {
			p := newRCPair(e)
			p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8),
				RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()})
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
			p.postSendWR(0, ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, SGList: p.buf[0].newSGL(0, 8),
				RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()})
			e.destroy(p.buf[0].mr)
		},
		says: "rule in-flight",
	},
	{
		defect: "deregisters a region after an unsignaled invalidation without the completion of a later request",
		use: func(e *testEnv) {
			p := newRCPair(e)
			mr, err := p.pd.AllocMR(1)
			e.must("alloc mr", err)
			destroyAtEnd(e, mr, mr.Dereg)
			_, addr := e.newMemory(64)
			e.must("map", mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, addr))
			p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRRegMR, Flags: ib.SendSignaled, Reg: &ib.FastReg{MR: mr,
				Key: mr.RKey()}})
			p.postSendWR(0, ib.SendWR{ID: 2, Opcode: ib.WRLocalInv, InvalidateRKey: mr.RKey()})
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
			e.destroy(mr)
		},
		says: "rule in-flight",
	},
	{
		defect: "deregisters memory after the transition to ERR and before the flushed completion",
		use: func(e *testEnv) {
			p := newRCPair(e)
			p.postRecv(1, 1, 0, 64)
			e.must("modify to ERR", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			e.destroy(p.buf[1].mr)
		},
		says: "rule in-flight",
	},
	{
		defect: "changes the translation of a region with a posted receive",
		use: func(e *testEnv) {
			p := newRCPair(e)
			p.postRecv(1, 1, 0, 64)
			_, addr := e.newMemory(4096)
			e.must("reregister", p.buf[1].mr.Rereg(ib.MRChangeTranslation, ib.MRChange{Space: e.mem, Addr: addr, Length: 4096}))
		},
		says: "MR.Rereg while a work request that names the region is outstanding",
	},
	{
		defect: "deregisters the memory of receives in a shared receive queue",
		use: func(e *testEnv) {
			pd := e.newPD()
			srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
			_, err := srq.PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(0, 64)})
			e.must("post receive", err)
			e.destroy(p.buf[1].mr)
		},
		says: "outstanding on a SRQ",
	},
	{
		defect: "destroys a queue pair before it polls its flushed receives",
		use: func(e *testEnv) {
			p := newRCPair(e)
			p.postRecv(1, 1, 0, 64)
			e.must("modify to ERR", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			e.destroy(p.qps[1])
			e.waitCompletions(p.cqs[1], 1)
		},
		says: "rule destroy-undrained",
	},
	{
		defect: "destroys a queue pair with completions left in a shared CQ",
		use: func(e *testEnv) {
			pd := e.newPD()
			cq, buf := e.newCQ(8, nil), e.newBuffer(pd, 64, allAccess)
			var qps [2]*ib.QP
			for i := range qps {
				qps[i] = e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
					Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			}
			for i, qp := range qps {
				e.connector.moveQPUpTo(qp, qps[1-i].Num(), ib.QPRTS)
			}
			errorOf(qps[1].PostRecv(ib.RecvWR{SGList: buf.newSGL(0, 8)}))
			errorOf(qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(0, 8)}))
			e.waitCompletions(cq, 1)
			time.Sleep(10 * time.Millisecond)
			e.destroy(qps[0])
			e.destroy(qps[1])
			e.waitCompletions(cq, 1)
		},
		says: "rule destroy-undrained",
	},
	{
		defect: "destroys a queue pair with a shared receive queue without awaiting the last WQE",
		use: func(e *testEnv) {
			pd := e.newPD()
			srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
			for range 4 {
				errorOf(srq.PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(0, 64)}))
			}
			e.must("modify to ERR", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			e.destroy(p.qps[1])
		},
		says: "rule srq-undrained",
	},
	{
		defect: "posts more receives than the number of CQ entries",
		use: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, entries: e.queueLen / 2})
			for k := range e.queueLen/2 + 1 {
				p.postRecv(1, uint64(k), 0, 8)
			}
		},
		says: "rule cq-too-small",
	},
	{
		defect: "creates a CQ with entries for signaled work requests only, although all failing requests complete",
		use: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, entries: 4})
			for k := range 8 { // the peer has no receives
				var flags ib.SendFlags
				if k%4 == 3 {
					flags = ib.SendSignaled
				}
				p.postSendWR(0, ib.SendWR{Opcode: ib.WRSend, Flags: flags, SGList: p.buf[0].newSGL(0, 8)})
			}
		},
		says: "rule cq-too-small",
	},
	{
		defect: "adds a second queue pair to a CQ with entries for one",
		use: func(e *testEnv) {
			pd := e.newPD()
			cq, buf := e.newCQ(e.queueLen, nil), e.newBuffer(pd, 64, allAccess)
			for range 2 {
				qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
				e.connector.moveQPUpTo(qp, 1, ib.QPInit)
				for range e.queueLen {
					errorOf(qp.PostRecv(ib.RecvWR{SGList: buf.newSGL(0, 8)}))
				}
			}
		},
		says: "rule cq-too-small",
	},
	{
		defect: "signals no send",
		use: func(e *testEnv) {
			p := newRCPair(e)
			for k := range 3 * e.queueLen {
				p.postRecv(1, uint64(k), 0, 8)
				p.postSendWR(0, ib.SendWR{Opcode: ib.WRSend, SGList: p.buf[0].newSGL(0, 8)})
				e.waitOneCompletion(p.cqs[1], uint64(k), ib.WCSuccess)
			}
		},
		says: "rule unsignaled-only",
	},
	{
		defect: "posts to a destroyed shared receive queue",
		use: func(e *testEnv) {
			srq := e.newSRQ(e.newPD(), ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
			e.destroy(srq)
			errorOf(srq.PostRecv(ib.RecvWR{}))
		},
		says: "SRQ.PostRecv on a SRQ that was destroyed",
	},
	{
		defect: "modifies a destroyed address handle",
		use: func(e *testEnv) {
			ah := e.newAH(e.newPD())
			e.destroy(ah)
			a := e.connector.ownAddress()
			ah.Modify(&a)
		},
		says: "AH.Modify on a AH that was destroyed",
	},
	{
		defect: "deregisters a region twice on its error path",
		use: func(e *testEnv) {
			mr := e.newBuffer(e.newPD(), 64, allAccess).mr
			e.destroy(mr)
			mr.Dereg()
		},
		says: "MR.Dereg on a MR that was destroyed",
	},
	{
		defect: "posts from a thread after another thread destroyed the connection",
		use: func(e *testEnv) {
			p := newRCPair(e)
			var end atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for !end.Load() {
					p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
				}
			})
			e.destroy(p.qps[0])
			e.awaitViolationReport()
			end.Store(true)
			wg.Wait()
		},
		says: "QP.PostSend on a QP that was destroyed",
	},
}

// wrongCallbackConsumers misuse callbacks or notifications.
var wrongCallbackConsumers = []wrongConsumer{
	{
		defect: "does not rearm its CQ on one return path of its handler",
		use: func(e *testEnv) {
			var calls atomic.Int32
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(cq *ib.CQ) {
				wc := make([]ib.WC, 4)
				cq.Poll(wc)
				calls.Add(1)
			}}})
			errorOf(p.cqs[1].ReqNotify(ib.NotifyNextComp))
			p.postRecv(1, 1, 0, 8)
			p.postSend(0, 1, 8)
			e.eventually("the handler", func() bool { return calls.Load() == 1 })
			p.postRecv(1, 2, 0, 8)
			p.postSend(0, 2, 8)
			e.awaitViolationReport()
		},
		says: "rule not-rearmed",
	},
	{
		defect: "polls one completion per handler call, and arms its CQ only if there is none",
		use: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(cq *ib.CQ) {
				if n, _ := cq.Poll(make([]ib.WC, 1)); n == 0 {
					cq.ReqNotify(ib.NotifyNextComp)
				}
			}}})
			errorOf(p.cqs[1].ReqNotify(ib.NotifyNextComp))
			for i := range 2 {
				p.postRecv(1, uint64(i), 0, 8)
				p.postSend(0, uint64(i), 8)
			}
			e.awaitViolationReport()
		},
		says: "polled one batch and returned without ReqNotify",
	},
	{
		defect: "arms its CQ, polls one batch, and leaves the other completions to the next call",
		use: func(e *testEnv) {
			var calls atomic.Int32
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(cq *ib.CQ) {
				cq.ReqNotify(ib.NotifyNextComp)
				cq.Poll(make([]ib.WC, 2))
				calls.Add(1)
			}}})
			for i := range 5 {
				p.postRecv(1, uint64(i), 0, 8)
				p.postSend(0, uint64(i), 8)
			}
			errorOf(p.cqs[1].ReqNotify(ib.NotifyNextComp))
			p.postRecv(1, 5, 0, 8)
			p.postSend(0, 5, 8)
			e.eventually("the handler", func() bool { return calls.Load() == 1 })
			e.awaitViolationReport()
		},
		says: "of which 4 have not been polled",
	},
	{
		defect: "arms its CQ after polling, and does not poll again",
		use: func(e *testEnv) {
			runInHandler(e, func(p *pair, cq *ib.CQ) {
				wc := make([]ib.WC, 4)
				cq.Poll(wc)
				p.postRecv(1, 2, 0, 8) // not reported
				p.postSend(0, 2, 8)
				cq.ReqNotify(ib.NotifyNextComp)
			})
			e.awaitViolationReport()
		},
		says: "rule arm-without-poll",
	},
	{
		defect: "ignores the report of missed completions, and waits for the handler",
		use: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) {}}})
			p.postRecv(1, 1, 0, 8)
			p.postSend(0, 1, 8)
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
			missed, err := p.cqs[1].ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
			e.must("request notify", err)
			if !missed {
				e.Fatal("nothing was missed")
			}
			e.awaitViolationReport()
		},
		says: "rule arm-without-poll",
	},
	{
		defect: "takes a lock in a handler that a sleeping thread holds",
		use: func(e *testEnv) {
			var mu sync.Mutex
			var begun atomic.Bool
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) {
				begun.Store(true)
				mu.Lock()
				defer mu.Unlock()
			}}})
			errorOf(p.cqs[1].ReqNotify(ib.NotifyNextComp))
			mu.Lock()
			defer mu.Unlock()
			p.postRecv(1, 1, 0, 8)
			p.postSend(0, 1, 8)
			e.eventually("the handler", begun.Load)
			e.awaitViolationReport()
		},
		says: "rule sleep-in-callback",
	},
	newWrongHandlerConsumer("resizes the CQ in its handler", func(_ *testEnv, _ *pair, cq *ib.CQ) { cq.Resize(256) },
		"rule sleep-in-callback"),
	newWrongHandlerConsumer("queries a queue pair in a handler", func(_ *testEnv, p *pair,
		_ *ib.CQ) {
		p.qps[0].Query(ib.QPAttrState)
	},
		"QP.Query, which may sleep, called in the completion handler"),
	newWrongHandlerConsumer("deregisters the memory of a completed message in a handler", func(e *testEnv, p *pair,
		_ *ib.CQ) {
		p.buf[0].mr.Dereg()
	}, "MR.Dereg, which may sleep, called in the completion handler"),
	newWrongHandlerConsumer("registers a function for events in a handler", func(e *testEnv, _ *pair, _ *ib.CQ) {
		go e.dev.OnEvent(func(ib.Event) {})()
	}, "Device.OnEvent, which may sleep, called in the completion handler"),
	newWrongHandlerConsumer("reads from a pipe in a handler", func(e *testEnv, _ *pair, _ *ib.CQ) {
		r, w, err := os.Pipe()
		e.must("make a pipe", err)
		time.AfterFunc(50*time.Millisecond, func() { w.Close() })
		r.Read(make([]byte, 1))
		r.Close()
	}, "the completion handler sleeps (IO wait)"),
	newWrongHandlerConsumer("starts threads in a handler, and waits for them", func(*testEnv, *pair, *ib.CQ) {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { sleepFor(50 * time.Millisecond) })
		}
		wg.Wait()
	}, "rule sleep-in-callback"),
	newWrongHandlerConsumer("runs an endless computation in a handler", func(e *testEnv, _ *pair, _ *ib.CQ) {
		for end := time.Now().Add(e.cfg.timeout); !e.Failed() && time.Now().Before(end); {
		}
	}, "the completion handler has run for"),
	{
		defect: "calls a fatal check of a test in a handler, which ends the goroutine",
		use: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { runtime.Goexit() }}})
			errorOf(p.cqs[1].ReqNotify(ib.NotifyNextComp))
			p.postRecv(1, 1, 0, 8)
			p.postSend(0, 1, 8)
			e.awaitViolationReport()
		},
		says: "rule callback-returns",
	},
	{
		defect: "waits in a queue pair's event function for the later flush",
		use: func(e *testEnv) {
			var done atomic.Bool
			flushed := make(chan int)
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, event: func(*ib.QP, ib.EventType) {
				<-flushed
				done.Store(true)
			}})
			// Cause an access error at the peer.
			p.postSendWR(1, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: p.buf[1].newSGL(0, 8), RKey: ^uint32(0)})
			time.AfterFunc(inspectableSleep, func() { close(flushed) })
			e.eventually("the event", done.Load)
		},
		says: "the event function of a QP sleeps",
	},
	{
		defect: "destroys a shared receive queue in its limit event",
		use: func(e *testEnv) {
			var done atomic.Bool
			srq := e.newSRQ(e.newPD(), ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1, Limit: 1},
				Event: func(srq *ib.SRQ, _ ib.EventType) {
					srq.Destroy()
					done.Store(true)
				}})
			e.must("set the limit", srq.Modify(ib.SRQAttr{Limit: 1}, ib.SRQAttrLimit))
			e.eventually("the event", done.Load)
		},
		says: "rule wait-for-self",
	},
	{
		defect: "unregisters its function for events in that function",
		use: func(e *testEnv) {
			var stop func()
			var done atomic.Bool
			stop = e.dev.OnEvent(func(ib.Event) {
				stop()
				done.Store(true)
			})
			e.handle.DispatchEvent(ib.EventPortErr, 1)
			e.eventually("the event", done.Load)
		},
		says: "rule wait-for-self",
	},
	{
		defect: "returns on its error path without running its held callbacks",
		use: func(e *testEnv) {
			var wg sync.WaitGroup
			wg.Go(e.handle.HoldCallbacks)
			wg.Wait()
			e.awaitViolationReport()
		},
		says: "rule hold",
	},
}

// wrongLifeCycleConsumers misuse the life cycle of objects, devices and clients.
var wrongLifeCycleConsumers = []wrongConsumer{
	{
		defect: "leaves its function for events registered after Remove",
		use: func(e *testEnv) {
			registerWithClient(e, func(d *ib.Device) (any, error) {
				d.OnEvent(func(ib.Event) {})
				return nil, nil
			}, func(*ib.Device, any) {})
			e.unregisterDevice()
		},
		asleep: true, says: "objects left when Remove of client wrong returned: event function",
	},
	{
		defect: "leaks the address handle of each answer that it cannot send",
		use: func(e *testEnv) {
			registerWithClient(e, func(d *ib.Device) (any, error) {
				e.connector.selectGID()
				pd, err := d.AllocPD()
				if err == nil {
					a := e.connector.ownAddress()
					_, err = pd.CreateAH(&a)
				}
				return pd, err
			}, func(_ *ib.Device, data any) { data.(*ib.PD).Dealloc() })
			e.unregisterDevice()
		},
		asleep: true, says: "objects left when Remove of client wrong returned: PD, AH",
	},
	{
		defect: "waits in Remove for a user that keeps its reference",
		use: func(e *testEnv) {
			gone := make(chan int)
			var once sync.Once
			e.TB.(*recordingTB).onNextFailure(func() { once.Do(func() { close(gone) }) })
			registerWithClient(e, func(d *ib.Device) (any, error) { return nil, nil }, func(*ib.Device, any) { <-gone })
			e.unregisterDevice()
		},
		asleep: true, says: "rule client-returns",
	},
	{
		defect: "holds a lock of its Remove while it unregisters",
		use: func(e *testEnv) {
			var mu sync.Mutex
			var once sync.Once
			unlock := func() { once.Do(mu.Unlock) }
			e.TB.(*recordingTB).onNextFailure(unlock)
			cl := registerWithClient(e, func(d *ib.Device) (any, error) { return nil, nil }, func(*ib.Device, any) {
				mu.Lock()
				defer mu.Unlock()
			})
			mu.Lock()
			e.core.UnregisterClient(cl)
			unlock()
		},
		asleep: true, says: "rule lock-across-register",
	},
	{
		defect: "continues work of its Add after its unregistration, on a device that remains",
		use: func(e *testEnv) {
			removed, done := make(chan int), make(chan int)
			cl := registerWithClient(e, func(d *ib.Device) (any, error) {
				go func() {
					defer close(done)
					<-removed
					d.QueryPort(1)
				}()
				return nil, nil
			}, func(*ib.Device, any) {})
			e.core.UnregisterClient(cl)
			close(removed)
			<-done
		},
		asleep: true, says: "Device.QueryPort called when Remove of client wrong had returned",
	},
	{
		defect: "polls a CQ left over by its Remove, while another client uses the device",
		use: func(e *testEnv) {
			var cq *ib.CQ
			cl := registerWithClient(e, func(d *ib.Device) (_ any, err error) {
				cq, err = d.CreateCQ(ib.CQInit{Entries: 4})
				return nil, err
			}, func(*ib.Device, any) {})
			e.registerClient(&ib.Client{Name: "other", Add: func(*ib.Device) (any, error) { return nil, nil },
				Remove: func(*ib.Device, any) {}})
			e.core.UnregisterClient(cl)
			cq.Poll(make([]ib.WC, 1))
			cq.Destroy()
		},
		asleep: true, says: "rule use-after-remove",
	},
	{
		defect: "unregisters the device in its function for a fatal event",
		use: func(e *testEnv) {
			var done atomic.Bool
			stop := e.dev.OnEvent(func(ib.Event) {
				if err := e.core.Unregister(e.handle); err != syscall.EDEADLK && err == nil {
					e.Errorf("unregister in the function: %v", err)
				}
				done.Store(true)
			})
			defer stop()
			e.handle.DispatchEvent(ib.EventDeviceFatal, 0)
			e.eventually("the event", done.Load)
		},
		says: "rule wait-for-self",
	},
}
