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
		test: testDisassociate,
	},
	{
		name: "Disassociate/EveryState",
		rule: "that holds for queue pairs of every state, and for both of their queues",
		test: func(e *env) {
			hook, c, newPair := e.userPairs()
			states := e.everyState(newPair)
			e.cutOff(hook, c)
			states.flushed("its context was cut off")
		},
	},
	{
		name: "Disassociate/Harmless",
		rule: "when Disassociate has returned, the queues that are shared with the process have no effect, whatever it writes there",
		test: testDisassociated,
	},
}

// process is the user context of a test.
type process struct {
	mem     *umem.Local
	regions [][]byte
}

func (p *process) Space() umem.Space { return p.mem }

func (p *process) AllocShared(size int) (ib.Shared, error) {
	b := make([]byte, (size+4095)&^4095)
	p.regions = append(p.regions, b)
	return ib.Shared{Mem: b, Offset: uint64(len(p.regions)-1) << 32, Free: func() {}}, nil
}

// userPairs creates a user context, and returns a function that creates pairs of queue pairs for it.
func (e *env) userPairs() (ib.Disassociator, *process, func() *pair) {
	e.Helper()
	hook, ok := ib.As[ib.Disassociator](user.Driver(e.dev))
	if !ok {
		e.Skip("the driver has no ib.Disassociator")
	}
	c := &process{mem: e.mem}
	udata := func() *ib.Udata { return &ib.Udata{Context: c, Out: make([]byte, 256)} }
	if d, ok := ib.As[ib.UserContexter](user.Driver(e.dev)); ok {
		e.must("alloc user context", d.AllocUserContext(udata()))
		own(e, c, func() error { d.DeallocUserContext(c); return nil })
	}
	pd := e.pd()
	return hook, c, func() *pair {
		e.Helper()
		p := &pair{e: e, pd: pd}
		for i := range p.qps {
			cq, err := user.CreateCQ(e.dev, ib.CQInit{Entries: 2 * e.queueLen}, udata())
			e.need("completion queues of user contexts", err)
			p.cqs[i] = own(e, cq, cq.Destroy)
			p.buf[i] = e.bufferBy(func(m ib.MRInit) (*ib.MR, error) { return user.RegMR(p.pd, m, udata()) }, bufLen, allAccess)
			init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
				Cap: e.cap()}
			qp, err := user.CreateQP(p.pd, init, udata())
			e.need("queue pairs of user contexts", err)
			p.qps[i] = own(e, qp, qp.Destroy)
		}
		return p
	}
}

// user creates a user context with a connected pair of queue pairs.
func (e *env) user() (ib.Disassociator, *process, *pair) {
	e.Helper()
	hook, c, newPair := e.userPairs()
	p := newPair()
	for i := range p.qps {
		e.up(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
	}
	return hook, c, p
}

// cutOff calls the hook.
func (e *env) cutOff(hook ib.Disassociator, c *process) {
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

func testDisassociate(e *env) {
	hook, c, p := e.user()
	_, _, stranger := e.user()
	others := []*pair{e.pair(pairConfig{kind: ib.QPTypeRC}), stranger}
	for i := range 3 {
		p.recv(1, uint64(i), 0, 8)
	}
	for _, other := range others {
		other.recv(1, 9, 0, 8)
	}
	e.cutOff(hook, c)
	for i := range 3 {
		e.waitOne(p.cqs[1], uint64(i), ib.WCWRFlushErr)
	}
	for _, other := range others {
		other.send(0, 8, 8)
		e.waitOne(other.cqs[0], 8, ib.WCSuccess)
		e.waitOne(other.cqs[1], 9, ib.WCSuccess)
	}
	e.settle()
	var wc [1]ib.WC
	if n, err := p.cqs[1].Poll(wc[:]); err != nil || n != 0 {
		e.Errorf("poll after all is flushed: %d completions, %v; work request %d has completed twice", n, err, wc[0].ID)
	}
	e.destroyPair(p)
}

func testDisassociated(e *env) {
	hook, c, p := e.user()
	e.cutOff(hook, c)
	before := make([][]byte, len(c.regions))
	for i, b := range c.regions {
		for k := range b { // arbitrary contents
			b[k] = byte(k*5 + i)
		}
		before[i] = slices.Clone(b)
	}
	for _, qp := range p.qps {
		if u, ok := user.Queue(qp); ok {
			var h ib.Hold
			user.HoldCallbacks(e.dev, &h)
			doorbell(u, &h)
			h.Run()
		}
		var errno syscall.Errno
		if _, _, err := qp.Query(^ib.QPAttrMask(0)); err != nil && !errors.As(err, &errno) {
			e.Errorf("query: %v", err)
		}
	}
	e.settle()
	for i, b := range c.regions {
		if !slices.Equal(b, before[i]) {
			e.Errorf("the driver wrote into region %d that it shares with a process which is cut off", i)
		}
	}
	e.destroyPair(p)
}
