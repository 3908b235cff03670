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
		test: testNothingMade,
	},
	{
		name: "DeviceError/NoNewWork",
		rule: "in error no new work request is carried out: it is refused, or completes with a flush error",
		test: testNoNewWork,
	},
	{
		name: "DeviceError/Flush",
		rule: "what is in flight when the device goes into error completes with a flush error",
		test: testErrorFlush,
	},
	{
		name: "DeviceError/EveryState",
		rule: "that holds for queue pairs of every state, and for both of their queues",
		test: func(e *env) {
			states := e.everyState(e.statePairs())
			e.handle.SetError()
			states.flushed("the device went into error")
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
		name: "DeviceError/DestroyWorks",
		rule: "in error everything can be destroyed, and the device unregistered",
		test: func(e *env) {
			p := e.pair(pairConfig{kind: ib.QPTypeRC})
			p.recv(1, 1, 0, 8)
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

func testNothingMade(e *env) {
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	a := e.address()
	// Features that the driver lacks are not tested.
	ah, _ := p.pd.CreateAH(&a)
	srq, _ := p.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
	fast, _ := p.pd.AllocMR(1)
	mw, _ := p.pd.AllocMW(ib.MWType1)
	xrcd, _ := e.dev.AllocXRCD()
	small := e.cq(8, nil)
	resizes := !errors.Is(small.Resize(9), syscall.EOPNOTSUPP)
	moderates := !errors.Is(small.Moderate(1, 0), syscall.EOPNOTSUPP)
	reregs := !errors.Is(p.buf[0].mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: allAccess}), syscall.EOPNOTSUPP)
	_, addr := e.memory(64)
	e.handle.SetError()
	refused := func(what string, err error) {
		e.Helper()
		e.wantErr(what, err, syscall.EIO)
	}
	refused("alloc pd", second(e.dev.AllocPD()))
	refused("register memory", second(p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr, Length: 8, Access: 0})))
	refused("create cq", second(e.dev.CreateCQ(ib.CQInit{Entries: 1})))
	refused("create qp", second(p.pd.CreateQP(ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: p.cqs[0], Type: ib.QPTypeRC})))
	refused("create ah", second(p.pd.CreateAH(&a)))
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
		refused("create srq", second(p.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})))
		refused("modify srq", srq.Modify(ib.SRQAttr{Limit: 1}, ib.SRQAttrLimit))
		e.must("destroy srq", srq.Destroy())
	}
	if fast != nil {
		refused("alloc mr", second(p.pd.AllocMR(1)))
		refused("map memory", fast.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, addr))
		e.must("dereg", fast.Dereg())
	}
	if mw != nil {
		refused("alloc mw", second(p.pd.AllocMW(ib.MWType1)))
		e.must("dealloc mw", mw.Dealloc())
	}
	if xrcd != nil {
		refused("alloc xrcd", second(e.dev.AllocXRCD()))
		e.must("dealloc xrcd", xrcd.Dealloc())
	}
}

func testNoNewWork(e *env) {
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	t := p.traffic()
	fill(p.buf[0].b[:8], 1)
	clear(p.buf[1].b[:8])
	t.ready(1, 8)
	e.handle.SetError()
	n, err := p.qps[0].PostSend(t.message(1, 8))
	if n == 1 {
		e.waitOne(p.cqs[0], 1, ib.WCWRFlushErr)
	} else if err == nil {
		e.Error("post send: refused without an error")
	}
	e.settle()
	for _, b := range p.buf[1].b[:8] {
		if b != 0 {
			e.Fatal("a work request was carried out on a device in error")
		}
	}
}

func testErrorFlush(e *env) {
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	for i := range 3 {
		p.recv(1, uint64(i), 0, 8)
	}
	e.handle.SetError()
	for i := range 3 {
		e.waitOne(p.cqs[1], uint64(i), ib.WCWRFlushErr)
	}
}

// everyState holds queue pairs in every state, with work requests in the queues that the state allows.
type everyState struct {
	e       *env
	pairs   []*pair
	states  []ib.QPState
	pending []map[uint64]bool // on side 0 of each pair
}

// statePairs returns a function that creates the pairs of everyState.
func (e *env) statePairs() func() *pair {
	pd := e.pd()
	return func() *pair {
		p := &pair{e: e, pd: pd}
		for i := range p.qps {
			p.cqs[i] = e.cq(2*e.queueLen, nil)
			p.buf[i] = e.buffer(pd, 64, allAccess)
			p.qps[i] = e.qp(pd, ib.QPInitAttr{SendCQ: p.cqs[i], RecvCQ: p.cqs[i], Type: ib.QPTypeRC})
		}
		return p
	}
}

func (e *env) everyState(newPair func() *pair) *everyState {
	e.Helper()
	x := &everyState{e: e}
	for _, s := range []ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS, ib.QPSQD} {
		p, ids := newPair(), map[uint64]bool{}
		e.up(p.qps[1], p.qps[0].Num(), ib.QPRTS)
		e.up(p.qps[0], p.qps[1].Num(), min(s, ib.QPRTS))
		if s == ib.QPSQD {
			if err := p.qps[0].Modify(ib.QPAttr{State: s}, ib.QPAttrState); err != nil {
				continue // a state that this driver does not support: SQ/Drain
			}
		}
		for i := range uint64(3) {
			p.recv(0, i, 0, 8)
			ids[i] = true
			if s >= ib.QPRTS { // to a peer without receives
				p.send(0, 100+i, 8)
				ids[100+i] = true
			}
		}
		x.pairs, x.states, x.pending = append(x.pairs, p), append(x.states, s), append(x.pending, ids)
	}
	return x
}

// flushed waits for a flush error of each work request.
func (x *everyState) flushed(since string) {
	e := x.e
	e.Helper()
	for i, p := range x.pairs {
		ids, wc := x.pending[i], make([]ib.WC, 8)
		for w := e.newWait(); len(ids) > 0; {
			n, err := p.cqs[0].Poll(wc)
			e.must("poll", err)
			for _, c := range wc[:n] {
				if !ids[c.ID] || c.Status != ib.WCWRFlushErr {
					e.Fatalf("queue pair that was in %v: completion of work request %d with %q, want a flush error of one of %v",
						x.states[i], c.ID, c.Status, ids)
				}
				delete(ids, c.ID)
			}
			if n == 0 && w.over() {
				e.Fatalf("waited %v in vain for %d completions of a queue pair that was in %v when %s", e.cfg.timeout, len(ids),
					x.states[i], since)
			}
		}
	}
	e.settle()
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

// each runs a test n times, each time on a fresh device.
func (e *env) each(n int, f func(e *env, round int)) {
	for i := range n {
		func() {
			s := &scope{TB: e.TB}
			defer s.close()
			fresh := newEnv(s, e.cfg, e.checked)
			fresh.register()
			f(fresh, i)
		}()
	}
}

// errorRounds is the number of devices that are put in error during other activity.
const errorRounds = 16

// anyMoment waits up to about 10 µs, so that the next action meets any moment of other threads' calls.
func (e *env) anyMoment() {
	for range rand.IntN(2000) {
		e.dev.State()
	}
}

func testPostDuringError(e *env) {
	e.each(errorRounds*e.cfg.load, func(e *env, round int) {
		p := e.pair(pairConfig{kind: ib.QPTypeRC, entries: 4 * e.queueLen})
		x := e.poster(p, 0, e.queueLen)
		for x.recvs.Load() <= int64(round%8) && int(x.sends.Load()) < e.queueLen {
			runtime.Gosched()
		}
		e.anyMoment()
		e.handle.SetError()
		x.end(p.cqs[0], "while the device went into error")
	})
}

func testCreateDuringError(e *env) {
	e.each(errorRounds*e.cfg.load, func(e *env, round int) {
		pd, cq := e.pd(), e.cq(16*e.queueLen, nil)
		buf := e.buffer(pd, 64, allAccess)
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
						qps = append(qps, own(e, qp, qp.Destroy))
						mu.Unlock()
					}
					for s := ib.QPInit; err == nil && s <= ib.QPRTS; s++ {
						err = qp.Modify(e.attr(s, qp.Num()), upMask(ib.QPTypeRC, s))
					}
					made.Add(1)
					if err != nil {
						e.wantErr("create or modify a queue pair while the device goes into error", err, syscall.EIO)
						return
					}
				}
			})
		}
		for int(made.Load()) < round%4 {
			runtime.Gosched()
		}
		e.anyMoment()
		e.handle.SetError()
		wg.Wait()
		// Each queue pair is in RESET, or flushes the requests that it accepts.
		for i, qp := range qps {
			state := qp.State()
			recv, _ := qp.PostRecv(ib.RecvWR{ID: uint64(2 * i), SGList: buf.sgl(0, 8)})
			send, _ := qp.PostSend(ib.SendWR{ID: uint64(2*i + 1), Opcode: ib.WRSend, Flags: ib.SendSignaled,
				SGList: buf.sgl(8, 8)})
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
