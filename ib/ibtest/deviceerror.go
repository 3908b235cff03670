package ibtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// Point 6: a device in the error state.

var deviceErrorChecks = []ruleTest{
	{
		name: "DeviceError/NothingMade",
		rule: "in error nothing is created or modified (EIO)",
		test: testNoCreationInError,
	},
	{
		name: "DeviceError/NoNewWork",
		rule: "in error no new work request is carried out: it is refused, or completes with a flush error",
		test: testNoNewWorkInError,
	},
	{
		name: "DeviceError/Flush",
		rule: "what is in flight when the device goes into error completes with a flush error",
		test: testFlushOnDeviceError,
	},
	{
		name: "DeviceError/EveryState",
		rule: "that holds for queue pairs of every state, and for both of their queues",
		test: func(e *testEnv) {
			states := e.newQPsInEveryState(newPairFunc(e))
			e.handle.SetError()
			states.waitAllRequestsFlushed("the device went into error")
		},
	},
	{
		name: "DeviceError/PostDuringError",
		rule: "what is posted while the device goes into error completes, once, in order",
		test: testPostDuringError, asleep: true, fast: true,
	},
	{
		name: "DeviceError/CreateDuringError",
		rule: "a queue pair that is made, or changes its state, while the device goes into error does no work afterwards",
		test: testCreateDuringError, asleep: true, fast: true,
	},
	{
		name: "DeviceError/LateCalls",
		rule: "that holds for a call that reaches the driver after EnterError, too",
		test: testLateCalls,
	},
	{
		name: "DeviceError/DestroyWorks",
		rule: "in error everything can be destroyed, and the device unregistered",
		test: func(e *testEnv) {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC})
			p.postRecv(1, 1, 0, 8)
			was := p.qps[0].State()
			e.handle.SetError()
			e.must("modify to ERR", p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
			// As if the midlayer had checked a Modify before the error.
			for _, end := range []ib.QPState{ib.QPErr, ib.QPReset} {
				e.must(fmt.Sprintf("modify to %v what is in error meanwhile", end),
					e.handle.QP(p.qps[1]).Modify(&ib.QPAttr{CurState: was, State: end}, ib.QPAttrState, nil))
			}
			e.destroyPair(p)
		},
	},
}

func testNoCreationInError(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	a := e.connector.ownAddress()
	// Features that the driver lacks are not tested.
	ah, _ := p.pd.CreateAH(&a)
	srq, _ := p.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
	fast, _ := p.pd.AllocMR(1)
	mw, _ := p.pd.AllocMW(ib.MWType1)
	xrcd, _ := e.dev.AllocXRCD()
	small := e.newCQ(8, nil)
	resizes := !errors.Is(small.Resize(9), syscall.EOPNOTSUPP)
	moderates := !errors.Is(small.Moderate(1, 0), syscall.EOPNOTSUPP)
	reregs := !errors.Is(p.buf[0].mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: allAccess}), syscall.EOPNOTSUPP)
	_, addr := e.newMemory(64)
	e.handle.SetError()
	refused := func(what string, err error) {
		e.Helper()
		e.wantErrno(what, err, syscall.EIO)
	}
	refused("alloc pd", errorOf(e.dev.AllocPD()))
	refused("register memory", errorOf(p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr, Length: 8, Access: 0})))
	refused("create cq", errorOf(e.dev.CreateCQ(ib.CQInit{Entries: 1})))
	refused("create qp", errorOf(p.pd.CreateQP(ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: ib.QPTypeRC})))
	refused("create ah", errorOf(p.pd.CreateAH(&a)))
	refused("modify qp", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
	refused("modify rights of qp", p.qps[0].Modify(ib.QPAttr{AccessFlags: remote}, ib.QPAttrAccessFlags))
	if resizes {
		refused("resize cq", small.Resize(20))
	}
	if moderates {
		refused("moderate cq", small.Moderate(2, 0))
	}
	if reregs {
		refused("reregister memory", p.buf[0].mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite}))
	}
	if ah != nil {
		refused("modify ah", ah.Modify(&a))
		e.must("destroy ah", ah.Destroy())
	}
	if srq != nil {
		refused("create srq", errorOf(p.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})))
		refused("modify srq", srq.Modify(ib.SRQAttr{Limit: 1}, ib.SRQAttrLimit))
		e.must("destroy srq", srq.Destroy())
	}
	if fast != nil {
		refused("alloc mr", errorOf(p.pd.AllocMR(1)))
		refused("map memory", fast.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, addr))
		e.must("dereg", fast.Dereg())
	}
	if mw != nil {
		refused("alloc mw", errorOf(p.pd.AllocMW(ib.MWType1)))
		e.must("dealloc mw", mw.Dealloc())
	}
	if xrcd != nil {
		refused("alloc xrcd", errorOf(e.dev.AllocXRCD()))
		e.must("dealloc xrcd", xrcd.Dealloc())
	}
}

func testNoNewWorkInError(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	t := p.newMessageSender()
	fillPattern(p.buf[0].b[:8], 1)
	clear(p.buf[1].b[:8])
	t.prepareReceive(1, 8)
	e.handle.SetError()
	n, err := p.qps[0].PostSend(t.newMessageRequest(1, 8))
	if n == 1 {
		e.waitOneCompletion(p.cqs[0], 1, ib.WCWRFlushErr)
	} else if err == nil {
		e.Error("post send: refused without an error")
	}
	e.awaitDueCallbacks()
	for _, b := range p.buf[1].b[:8] {
		if b != 0 {
			e.Fatal("a work request was carried out on a device in error")
		}
	}
}

func testFlushOnDeviceError(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	for i := range 3 {
		p.postRecv(1, uint64(i), 0, 8)
	}
	e.handle.SetError()
	for i := range 3 {
		e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCWRFlushErr)
	}
}

// qpsInEveryState holds queue pairs in every state, with work requests in the queues that the state allows.
type qpsInEveryState struct {
	e       *testEnv
	pairs   []*pair
	states  []ib.QPState
	pending []map[uint64]bool // on side 0 of each pair
}

// newPairFunc returns a function that creates the pairs of newQPsInEveryState.
func newPairFunc(e *testEnv) func() *pair {
	pd := e.newPD()
	return func() *pair {
		p := &pair{e: e, pd: pd}
		for i := range p.qps {
			p.cqs[i] = e.newCQ(2*e.queueLen, nil)
			p.buf[i] = e.newBuffer(pd, 64, allAccess)
			p.qps[i] = e.newQP(pd, ib.QPInitAttr{SendCQ: p.cqs[i], RecvCQ: p.cqs[i], Type: ib.QPTypeRC})
		}
		return p
	}
}

func (e *testEnv) newQPsInEveryState(newPair func() *pair) *qpsInEveryState {
	e.Helper()
	x := &qpsInEveryState{e: e}
	for _, s := range []ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS, ib.QPSQD} {
		p, ids := newPair(), map[uint64]bool{}
		e.connector.moveQPUpTo(p.qps[1], p.qps[0].Num(), ib.QPRTS)
		e.connector.moveQPUpTo(p.qps[0], p.qps[1].Num(), min(s, ib.QPRTS))
		if s == ib.QPSQD {
			if err := p.qps[0].Modify(ib.QPAttr{State: s}, ib.QPAttrState); err != nil {
				continue // a state that this driver does not support: SQ/Drain
			}
		}
		for i := range uint64(3) {
			p.postRecv(0, i, 0, 8)
			ids[i] = true
			if s >= ib.QPRTS { // to a peer without receives
				p.postSend(0, 100+i, 8)
				ids[100+i] = true
			}
		}
		x.pairs, x.states, x.pending = append(x.pairs, p), append(x.states, s), append(x.pending, ids)
	}
	return x
}

// waitAllRequestsFlushed waits for a flush error of each work request.
func (x *qpsInEveryState) waitAllRequestsFlushed(since string) {
	e := x.e
	e.Helper()
	for i, p := range x.pairs {
		ids, wc := x.pending[i], make([]ib.WC, 8)
		for w := e.newWaitLimit(); len(ids) > 0; {
			n, err := p.cqs[0].Poll(wc)
			e.must("poll", err)
			for _, c := range wc[:n] {
				if !ids[c.ID] || c.Status != ib.WCWRFlushErr {
					e.Fatalf("queue pair that was in %v: completion of work request %d with %q, want a flush error of one of %v",
						x.states[i], c.ID, c.Status, ids)
				}
				delete(ids, c.ID)
			}
			if n == 0 && w.yieldAndCheckOver() {
				e.Fatalf("waited %v for %d missing completions of a queue pair that was in %v when %s", e.cfg.timeout, len(ids),
					x.states[i], since)
			}
		}
	}
	e.awaitDueCallbacks()
	for i, p := range x.pairs {
		var wc [1]ib.WC
		if n, _ := p.cqs[0].Poll(wc[:]); n > 0 {
			e.Errorf("queue pair that was in %v: work request %d has completed twice", x.states[i], wc[0].ID)
		}
		if s := p.qps[0].State(); s != ib.QPErr {
			e.Errorf("queue pair that was in %v is in %v, want ERR", x.states[i], s)
		}
	}
}

// runOnFreshDevices runs a test n times, each time on a fresh device.
func runOnFreshDevices(e *testEnv, n int, f func(e *testEnv, round int)) {
	for i := range n {
		func() {
			s := &cleanupScope{TB: e.TB}
			defer s.runCleanups()
			fresh := newTestEnv(s, e.cfg, e.checked)
			fresh.registerDevice()
			f(fresh, i)
		}()
	}
}

// deviceErrorRounds is the number of devices that are put in error during other activity.
const deviceErrorRounds = 16

// waitRandomly waits up to about 10 µs, so that the next action meets any moment of other threads' calls.
func (e *testEnv) waitRandomly() {
	for range rand.IntN(2000) {
		e.dev.State()
	}
}

func testPostDuringError(e *testEnv) {
	runOnFreshDevices(e, deviceErrorRounds*e.cfg.load, func(e *testEnv, round int) {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, entries: 4 * e.queueLen})
		x := startPoster(e, p, 0, e.queueLen)
		for x.recvs.Load() <= int64(round%8) && int(x.sends.Load()) < e.queueLen {
			runtime.Gosched()
		}
		e.waitRandomly()
		e.handle.SetError()
		x.waitPostedRequestsFlushed(p.cqs[0], "while the device went into error")
	})
}

func testCreateDuringError(e *testEnv) {
	runOnFreshDevices(e, deviceErrorRounds*e.cfg.load, func(e *testEnv, round int) {
		pd, cq := e.newPD(), e.newCQ(16*e.queueLen, nil)
		buf := e.newBuffer(pd, 64, allAccess)
		var made atomic.Int32
		var mu sync.Mutex
		var qps []*ib.QP
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for range min(e.queueLen, e.limits.MaxQP/2) {
					qp, err := pd.CreateQP(ib.QPInitAttr{
						SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
						Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
					})
					if err == nil {
						mu.Lock()
						qps = append(qps, destroyAtEnd(e, qp, qp.Destroy))
						mu.Unlock()
					}
					for s := ib.QPInit; err == nil && s <= ib.QPRTS; s++ {
						err = qp.Modify(e.connector.newQPAttr(s, qp.Num()), transitionMask(ib.QPTypeRC, s))
					}
					made.Add(1)
					if err != nil {
						e.wantErrno("create or modify a queue pair while the device goes into error", err, syscall.EIO)
						return
					}
				}
			})
		}
		for int(made.Load()) < round%4 {
			runtime.Gosched()
		}
		e.waitRandomly()
		e.handle.SetError()
		wg.Wait()
		// Each queue pair is in RESET, or flushes the requests that it accepts.
		for i, qp := range qps {
			state := qp.State()
			recv, _ := qp.PostRecv(ib.RecvWR{ID: uint64(2 * i), SGList: buf.newSGL(0, 8)})
			send, _ := qp.PostSend(ib.SendWR{ID: uint64(2*i + 1), Opcode: ib.WRSend, Flags: ib.SendSignaled,
				SGList: buf.newSGL(8, 8)})
			const what = "a queue pair that was made, or changed its state, while the device went into error"
			e.eventually(fmt.Sprintf("%d flush errors of %s, and is in %v", recv+send, what, state), func() bool {
				var wc [2]ib.WC
				n, err := cq.Poll(wc[:])
				e.must("poll", err)
				for _, c := range wc[:n] {
					if c.Status != ib.WCWRFlushErr {
						e.Fatalf("%s, and is in %v: work request completed with %q, want %q", what, state, c.Status, ib.WCWRFlushErr)
					}
				}
				recv -= n
				return recv+send <= 0
			})
		}
	})
}
