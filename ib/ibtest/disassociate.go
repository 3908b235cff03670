package ibtest

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"verbena/ib"
	"verbena/umem"
)

// Point 6: a user context that is detached from the device.

var disassociateChecks = []ruleTest{
	{
		name: "Disassociate/Flush",
		rule: "what is outstanding on a context's queue pairs is flushed, once, when the context is cut off; others notice nothing",
		test: testDisassociateFlushes,
	},
	{
		name: "Disassociate/EveryState",
		rule: "that holds for queue pairs of every state, and for both of their queues",
		test: func(e *testEnv) {
			hook, c, newPair := newUserPairFunc(e)
			states := e.newQPsInEveryState(newPair)
			e.disassociate(hook, c)
			states.waitAllRequestsFlushed("its context was cut off")
		},
	},
	{
		name: "Disassociate/WaitingPeer",
		rule: "a sender that waits for a receive, or for its peer to leave INIT, does not wait for a peer that is cut off",
		test: testPeerOfDisassociated,
	},
	{
		name: "Disassociate/Harmless",
		rule: "when Disassociate has returned, the queues that are shared with the process have no effect, whatever it writes there",
		test: testNoEffectAfterDisassociate,
	},
}

// testPeerOfDisassociated connects a queue pair of another consumer with a queue pair of the context.
func testPeerOfDisassociated(e *testEnv) {
	pd := e.newPD()
	defer e.connector.useShortestTimeout()()
	for _, init := range []bool{false, true} {
		hook, c, newPair := newUserPairFunc(e)
		user := newPair()
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		e.connector.resetQPs(p.qps[0])
		p.qps[1], p.cqs[1], p.buf[1] = user.qps[1], user.cqs[1], user.buf[1]
		for i := range p.qps {
			e.connector.moveQPUpTo(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
		}
		p.checkWaitingRequestsFail(init, "is cut off with its context", func(*pair) { e.disassociate(hook, c) })
	}
}

// testUserContext is the user context of a test.
type testUserContext struct {
	mem     *umem.Local
	regions [][]byte
}

func (p *testUserContext) Space() umem.Space { return p.mem }

func (p *testUserContext) AllocShared(size int) (ib.Shared, error) {
	b := make([]byte, (size+4095)&^4095)
	p.regions = append(p.regions, b)
	return ib.Shared{Mem: b, Offset: uint64(len(p.regions)-1) << 32, Free: func() {}}, nil
}

// newUserPairFunc creates a user context, and returns a function that creates pairs of queue pairs for it.
func newUserPairFunc(e *testEnv) (ib.Disassociator, *testUserContext, func() *pair) {
	e.Helper()
	hook, ok := ib.As[ib.Disassociator](userSide.Driver(e.dev))
	if !ok {
		e.Skip("the driver has no ib.Disassociator")
	}
	c := &testUserContext{mem: e.mem}
	udata := func() *ib.Udata { return &ib.Udata{Context: c, Out: make([]byte, 256)} }
	if d, ok := ib.As[ib.UserContexter](userSide.Driver(e.dev)); ok {
		e.must("alloc user context", d.AllocUserContext(udata()))
		destroyAtEnd(e, c, func() error { d.DeallocUserContext(c); return nil })
	}
	pd := e.newPD()
	return hook, c, func() *pair {
		e.Helper()
		p := &pair{e: e, pd: pd}
		for i := range p.qps {
			cq, err := userSide.CreateCQ(e.dev, ib.CQInit{Entries: 2 * e.queueLen}, udata())
			e.requireFeature("completion queues of user contexts", err)
			p.cqs[i] = destroyAtEnd(e, cq, cq.Destroy)
			p.buf[i] = e.newBufferUsing(func(m ib.MRInit) (*ib.MR, error) { return userSide.RegMR(p.pd, m, udata()) },
				pairBufferLen,
				allAccess)
			init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
				Cap: e.defaultQPCap()}
			qp, err := userSide.CreateQP(p.pd, init, udata())
			e.requireFeature("queue pairs of user contexts", err)
			p.qps[i] = destroyAtEnd(e, qp, qp.Destroy)
		}
		return p
	}
}

// newUserPair creates a user context with a connected pair of queue pairs.
func (e *testEnv) newUserPair() (ib.Disassociator, *testUserContext, *pair) {
	e.Helper()
	hook, c, newPair := newUserPairFunc(e)
	p := newPair()
	for i := range p.qps {
		e.connector.moveQPUpTo(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
	}
	return hook, c, p
}

// disassociate calls the hook.
func (e *testEnv) disassociate(hook ib.Disassociator, c *testUserContext) {
	e.Helper()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		hook.Disassociate(c)
	}()
	select {
	case <-returned:
	case <-time.After(e.cfg.timeout):
		e.Fatalf("Disassociate has not returned after %v: it may not wait for the process", e.cfg.timeout)
	}
}

func testDisassociateFlushes(e *testEnv) {
	hook, c, p := e.newUserPair()
	_, _, stranger := e.newUserPair()
	others := []*pair{e.newPair(pairConfig{kind: ib.QPTypeRC}), stranger}
	for i := range 3 {
		p.postRecv(1, uint64(i), 0, 8)
	}
	for _, other := range others {
		other.postRecv(1, 9, 0, 8)
	}
	e.disassociate(hook, c)
	for i := range 3 {
		e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCWRFlushErr)
	}
	for _, other := range others {
		other.postSend(0, 8, 8)
		e.waitOneCompletion(other.cqs[0], 8, ib.WCSuccess)
		e.waitOneCompletion(other.cqs[1], 9, ib.WCSuccess)
	}
	e.awaitDueCallbacks()
	var wc [1]ib.WC
	if n, err := p.cqs[1].Poll(wc[:]); err != nil || n != 0 {
		e.Errorf("poll after all is flushed: %d completions, %v; work request %d has completed twice", n, err, wc[0].ID)
	}
	e.destroyPair(p)
}

func testNoEffectAfterDisassociate(e *testEnv) {
	hook, c, p := e.newUserPair()
	e.disassociate(hook, c)
	before := make([][]byte, len(c.regions))
	for i, b := range c.regions {
		for k := range b { // arbitrary contents
			b[k] = byte(k*5 + i)
		}
		before[i] = slices.Clone(b)
	}
	for _, qp := range p.qps {
		if u, ok := userSide.Queue(qp); ok {
			var h ib.Hold
			userSide.HoldCallbacks(e.dev, &h)
			doorbell(u, &h)
			h.Run()
		}
		var errno syscall.Errno
		if _, _, err := qp.Query(^ib.QPAttrMask(0)); err != nil && !errors.As(err, &errno) {
			e.Errorf("query: %v", err)
		}
	}
	e.awaitDueCallbacks()
	for i, b := range c.regions {
		if !slices.Equal(b, before[i]) {
			e.Errorf("the driver wrote into region %d that it shares with a process which is cut off", i)
		}
	}
	e.destroyPair(p)
}
