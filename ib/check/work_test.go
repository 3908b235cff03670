package check_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/umem"
)

// testConsumer holds two connected queue pairs on a device in checked mode.
type testConsumer struct {
	t    *testing.T
	core ib.Core
	h    *ib.DeviceHandle
	dev  *ib.Device
	pd   *ib.PD
	cq   *ib.CQ
	srq  *ib.SRQ
	mr   *ib.MR
	a, b *ib.QP

	calls atomic.Int32 // number of handler calls

	mu   sync.Mutex
	seen []check.Violation
}

type consumerConfig struct {
	entries int
	handler func(*ib.CQ)
	event   func(*ib.QP, ib.EventType)
	shared  bool // b uses an SRQ
	reuse   bool // Config.TargetReuse
	weak    weak.Set
	wrap    func(ib.Driver) ib.Driver
}

const queueDepth = 4 // number of entries of each queue

func newConsumer(t *testing.T, c consumerConfig) *testConsumer {
	t.Helper()
	x := &testConsumer{t: t}
	check.On(&x.core, check.Config{Timeout: 200 * time.Millisecond, TargetReuse: c.reuse, Report: func(v check.Violation) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.seen = append(x.seen, v)
	}})
	x.h = loopback.New("loop0", nil).Handle()
	if c.weak != 0 {
		x.h.Wrap(func(d ib.Driver) ib.Driver { return weak.New(d, weak.Config{Choices: c.weak}) })
	}
	if c.wrap != nil {
		x.h.Wrap(c.wrap)
	}
	x.dev = x.h.Device()
	x.failOnError(x.core.Register(x.h))
	if c.entries == 0 {
		c.entries = 4 * queueDepth
	}
	var err error
	x.pd, err = x.dev.AllocPD()
	x.failOnError(err)
	x.cq, err = x.dev.CreateCQ(ib.CQInit{Entries: c.entries, Handler: c.handler})
	x.failOnError(err)
	x.mr, err = x.pd.RegBytes(make([]byte, 4096), ib.AccessLocalWrite)
	x.failOnError(err)
	init := ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: x.cq, RecvCQ: x.cq, Event: c.event,
		Cap: ib.QPCap{MaxSendWR: queueDepth, MaxRecvWR: queueDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 8}}
	x.a, err = x.pd.CreateQP(init)
	x.failOnError(err)
	if c.shared {
		x.srq, err = x.pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: queueDepth, MaxSGE: 1}})
		x.failOnError(err)
		init.SRQ = x.srq
	}
	x.b, err = x.pd.CreateQP(init)
	x.failOnError(err)
	here, err := x.dev.Local(1)
	x.failOnError(err)
	x.failOnError(ib.ConnectPair(x.a, x.b, here, here, ib.Path{}))
	return x
}

func (x *testConsumer) failOnError(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *testConsumer) reportedRules() (rules []check.Rule) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, v := range x.seen {
		rules = append(rules, v.Rule)
	}
	return rules
}

// destroyBothAndExpect destroys the remaining objects, and checks that exactly these rules were violated.
func (x *testConsumer) destroyBothAndExpect(want ...check.Rule) {
	x.t.Helper()
	x.destroyQPsAndExpect([]*ib.QP{x.a, x.b}, want)
}

// destroyAndExpect is end for a consumer without b, which has been destroyed.
func (x *testConsumer) destroyAndExpect(want ...check.Rule) {
	x.t.Helper()
	x.destroyQPsAndExpect([]*ib.QP{x.a}, want)
}

func (x *testConsumer) destroyQPsAndExpect(qps []*ib.QP, want []check.Rule) {
	x.t.Helper()
	for _, qp := range qps {
		x.moveToError(qp)
	}
	x.pollAll()
	for _, qp := range qps {
		x.failOnError(qp.Destroy())
	}
	if x.srq != nil {
		x.failOnError(x.srq.Destroy())
	}
	x.failOnError(x.cq.Destroy())
	if x.mr != nil {
		x.failOnError(x.mr.Dereg())
	}
	x.failOnError(x.pd.Dealloc())
	x.failOnError(x.core.Unregister(x.h))
	x.expectRules(want...)
}

func (x *testConsumer) expectRules(want ...check.Rule) {
	x.t.Helper()
	if got := x.reportedRules(); !slices.Equal(got, want) {
		x.t.Errorf("reported: got %v, want %v", got, want)
		for _, v := range x.seen {
			x.t.Log(v)
		}
	}
	for _, v := range x.seen {
		if len(v.Stacks) < 2 {
			x.t.Errorf("stacks: got %d, want at least 2: %v", len(v.Stacks), v)
		}
	}
}

func (x *testConsumer) moveToError(qp *ib.QP) {
	x.failOnError(qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
}

func (x *testConsumer) firstRegionSGL() []ib.SGE {
	return []ib.SGE{{Addr: x.mr.Addr(), Length: 8, LKey: x.mr.LKey()}}
}

func (x *testConsumer) postSend(id uint64, flags ib.SendFlags) {
	x.t.Helper()
	_, err := x.a.PostSend(ib.SendWR{ID: id, Opcode: ib.WRSend, Flags: flags, SGList: x.firstRegionSGL()})
	x.failOnError(err)
}

func (x *testConsumer) postRecv(id uint64) {
	x.t.Helper()
	wr := ib.RecvWR{ID: id, SGList: x.firstRegionSGL()}
	var err error
	if x.srq != nil {
		_, err = x.srq.PostRecv(wr)
	} else {
		_, err = x.b.PostRecv(wr)
	}
	x.failOnError(err)
}

// pollAll polls until the queue is empty, and returns the number of completions.
func (x *testConsumer) pollAll() (all int) {
	x.t.Helper()
	wc := make([]ib.WC, 3)
	for {
		n, err := x.cq.Poll(wc)
		x.failOnError(err)
		if all += n; n == 0 {
			return all
		}
	}
}

// reregister deregisters the memory, and registers new memory.
func (x *testConsumer) reregister() {
	x.t.Helper()
	x.failOnError(x.mr.Dereg())
	x.mr = nil
}

// TestCheckReportsFreedRegionInUse checks that a region must not be freed before a completion proves that no work
// request uses the region.
func TestCheckReportsFreedRegionInUse(t *testing.T) {
	for _, c := range []struct {
		name   string
		use    func(x *testConsumer)
		caught bool
	}{
		{"a send that waits", func(x *testConsumer) { x.postSend(1, ib.SendSignaled) }, true},
		{"a receive", func(x *testConsumer) { x.postRecv(1) }, true},
		{"a send that was not polled", func(x *testConsumer) { x.postRecv(1); x.postSend(2, ib.SendSignaled) }, true},
		{"of two sends, one was polled", func(x *testConsumer) {
			x.postRecv(1)
			x.postSend(2, ib.SendSignaled)
			x.pollAll()
			x.postSend(3, ib.SendSignaled)
		}, true},
		{"an unsignaled send", func(x *testConsumer) { x.postRecv(1); x.postSend(2, 0); x.pollAll() }, true},
		{"an unsignaled send behind one that was polled, in one list", func(x *testConsumer) {
			x.postRecv(1)
			x.postRecv(2)
			wr := ib.SendWR{ID: 3, Opcode: ib.WRSend, Flags: ib.SendSignaled}
			_, err := x.a.PostSend(wr, ib.SendWR{ID: 4, Opcode: ib.WRSend, SGList: x.firstRegionSGL()})
			x.failOnError(err)
			x.pollAll()
		}, true},
		{"an unsignaled send before one that was polled, in one list", func(x *testConsumer) {
			x.postRecv(1)
			x.postRecv(2)
			_, err := x.a.PostSend(ib.SendWR{ID: 3, Opcode: ib.WRSend, SGList: x.firstRegionSGL()},
				ib.SendWR{ID: 4, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: x.firstRegionSGL()})
			x.failOnError(err)
			x.pollAll()
		}, false},
		{"the same IDs", func(x *testConsumer) {
			x.postRecv(0)
			x.postSend(0, ib.SendSignaled)
			x.pollAll()
			x.postSend(0, ib.SendSignaled)
		},
			true},
		{"flushed, and not polled", func(x *testConsumer) { x.postRecv(1); x.moveToError(x.b) }, true},
		{"polled", func(x *testConsumer) { x.postRecv(1); x.postSend(2, ib.SendSignaled); x.pollAll() }, false},
		{"an unsignaled send before one that was polled", func(x *testConsumer) {
			x.postRecv(1)
			x.postRecv(2)
			x.postSend(3, 0)
			x.postSend(4, ib.SendSignaled)
			x.pollAll()
		}, false},
		{"the same IDs, polled", func(x *testConsumer) {
			for range 3 {
				x.postRecv(0)
				x.postSend(0, 0)
				x.postRecv(0)
				x.postSend(0, ib.SendSignaled)
				x.pollAll()
			}
		}, false},
		{"flushed and polled", func(x *testConsumer) {
			x.postRecv(1)
			x.postSend(2, 0)
			x.postSend(3, 0)
			x.moveToError(x.a)
			x.moveToError(x.b)
			x.pollAll()
		}, false},
		{"flushed and polled, the same IDs", func(x *testConsumer) {
			x.postRecv(0)
			x.postSend(0, 0) // completed
			x.postSend(0, ib.SendSignaled)
			x.postSend(0, 0)
			x.moveToError(x.a)
			x.moveToError(x.b)
			x.pollAll()
		}, false},
		{"reset", func(x *testConsumer) {
			x.postSend(1, ib.SendSignaled)
			x.failOnError(x.a.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
		}, false},
		{"inline", func(x *testConsumer) {
			_, err := x.a.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: []byte{1}})
			x.failOnError(err)
		}, false},
		{"a device in error", func(x *testConsumer) { x.postSend(1, ib.SendSignaled); x.h.SetError() }, false},
		{"a receive that was refused", func(x *testConsumer) {
			for range queueDepth {
				x.postRecv(1)
			}
			if n, err := x.b.PostRecv(ib.RecvWR{ID: 9, SGList: x.firstRegionSGL()}); n != 0 || err == nil {
				x.t.Errorf("PostRecv to a full queue: got %d, %v, want 0 and an error", n, err)
			}
			x.moveToError(x.b)
			x.pollAll()
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newConsumer(t, consumerConfig{})
			c.use(x)
			x.reregister()
			if c.caught {
				x.destroyBothAndExpect(check.RuleInFlight)
			} else {
				x.destroyBothAndExpect()
			}
		})
	}
}

// TestCheckReportsRegionChangedInUse checks requests that register, invalidate or bind. The requests use a region
// that is not in their gather list.
func TestCheckReportsRegionChangedInUse(t *testing.T) {
	const access = ib.AccessLocalWrite | ib.AccessRemoteRead
	type world struct {
		*testConsumer
		fast, plain *ib.MR
		mw          *ib.MW
	}
	post := func(x *world, wrs ...ib.SendWR) {
		x.t.Helper()
		_, err := x.a.PostSend(wrs...)
		x.failOnError(err)
		x.pollAll()
	}
	reg := func(x *world, flags ib.SendFlags) ib.SendWR {
		return ib.SendWR{ID: 1, Opcode: ib.WRRegMR, Flags: flags,
			Reg: &ib.FastReg{MR: x.fast, Key: x.fast.RKey(), Access: access}}
	}
	inv := func(key uint32, flags ib.SendFlags) ib.SendWR {
		return ib.SendWR{ID: 2, Opcode: ib.WRLocalInv, Flags: flags, InvalidateRKey: key}
	}
	bind := func(x *world, flags ib.SendFlags) ib.SendWR {
		return ib.SendWR{ID: 3, Opcode: ib.WRBindMW, Flags: flags,
			Bind: &ib.BindMW{MW: x.mw, RKey: x.mw.RKey() + 1, MR: x.plain,
				Addr: x.plain.Addr(), Length: 8, Access: ib.AccessRemoteRead}}
	}
	for _, c := range []struct {
		name   string
		use    func(x *world)
		caught bool
	}{
		{"an unsignaled registration", func(x *world) { post(x, reg(x, 0)); post(x, inv(x.fast.RKey(), 0)) }, true},
		{"an unsignaled invalidation", func(x *world) { post(x, reg(x, ib.SendSignaled), inv(x.fast.RKey(), 0)) }, true},
		{"of an earlier variant of the key", func(x *world) {
			post(x, reg(x, ib.SendSignaled), inv(x.fast.RKey(), 0))
			x.fast.UpdateKey(7)
		}, true},
		{"an unsignaled bind", func(x *world) { post(x, bind(x, 0)) }, true},
		{"registered and invalidated", func(x *world) { post(x, reg(x, 0), inv(x.fast.RKey(), ib.SendSignaled)) }, false},
		{"bound and invalidated", func(x *world) { post(x, bind(x, 0)); post(x, inv(x.mw.RKey(), ib.SendSignaled)) }, false},
		{"the window's key is invalidated", func(x *world) {
			post(x, bind(x, ib.SendSignaled))
			post(x, inv(x.mw.RKey(), 0))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &world{testConsumer: newConsumer(t, consumerConfig{})}
			var err error
			x.fast, err = x.pd.AllocMR(2)
			x.failOnError(err)
			space := umem.NewLocal()
			addr, err := space.Add(make([]byte, 64))
			x.failOnError(err)
			x.failOnError(x.fast.Map(space, nil, []umem.Range{{Addr: addr, Length: 64}}, 0x1000))
			x.plain, err = x.pd.RegBytes(make([]byte, 64), ib.AccessLocalWrite|ib.AccessMWBind)
			x.failOnError(err)
			x.mw, err = x.pd.AllocMW(ib.MWType2)
			x.failOnError(err)
			c.use(x)
			x.failOnError(x.fast.Dereg())
			x.failOnError(x.mw.Dealloc())
			x.failOnError(x.plain.Dereg())
			if c.caught {
				x.destroyBothAndExpect(check.RuleInFlight)
			} else {
				x.destroyBothAndExpect()
			}
		})
	}
}

// TestCheckReportsPollAfterDestroy checks that polling a completion of a destroyed queue pair is reported. Without such
// a completion nothing is reported.
func TestCheckReportsPollAfterDestroy(t *testing.T) {
	for _, c := range []struct {
		name   string
		use    func(x *testConsumer)
		caught bool
	}{
		{"flushed", func(x *testConsumer) { x.postRecv(1); x.postRecv(2); x.moveToError(x.b) }, true},
		{"completed", func(x *testConsumer) { x.postRecv(1); x.postSend(2, ib.SendSignaled) }, true},
		{"drained", func(x *testConsumer) { x.postRecv(1); x.moveToError(x.b); x.pollAll() }, false},
		{"not completed", func(x *testConsumer) { x.postRecv(1) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newConsumer(t, consumerConfig{})
			c.use(x)
			x.failOnError(x.b.Destroy())
			x.pollAll()
			if c.caught {
				x.destroyAndExpect(check.RuleDestroyUndrained)
			} else {
				x.destroyAndExpect()
			}
		})
	}
}

// TestCheckEmptyPollIsNoDrain checks that an empty poll does not count as draining on a device that delays
// completions.
func TestCheckEmptyPollIsNoDrain(t *testing.T) {
	x := newConsumer(t, consumerConfig{weak: weak.Of(weak.LateFlush)})
	x.postRecv(1)
	x.moveToError(x.b)
	x.failOnError(x.b.Destroy())
	if n := x.pollAll(); n != 0 {
		t.Fatalf("completions in the first poll: got %d, want 0", n)
	}
	for begin := time.Now(); x.pollAll() == 0; {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("completion of the flushed receive: got none in 10s, want one")
		}
	}
	x.destroyAndExpect(check.RuleDestroyUndrained)
}

// TestCheckReportsUndrainedSRQDestroy checks that a queue pair with an SRQ must not be destroyed before
// EventQPLastWQEReached.
func TestCheckReportsUndrainedSRQDestroy(t *testing.T) {
	for _, awaited := range []bool{false, true} {
		last := make(chan bool, 1)
		x := newConsumer(t, consumerConfig{shared: true, event: func(_ *ib.QP, e ib.EventType) {
			if e == ib.EventQPLastWQEReached {
				last <- true
			}
		}})
		x.postRecv(1)
		x.postRecv(2)
		if awaited {
			x.moveToError(x.b)
			<-last
			x.destroyBothAndExpect()
			continue
		}
		x.failOnError(x.b.Destroy())
		x.destroyAndExpect(check.RuleSRQUndrained)
	}
}

// TestCheckReportsSmallCQ checks that a CQ must have an entry for each request that may complete on the CQ.
func TestCheckReportsSmallCQ(t *testing.T) {
	const entries = 5
	for _, c := range []struct {
		name   string
		use    func(x *testConsumer)
		caught bool
	}{
		{"unsignaled sends and receives", func(x *testConsumer) {
			for i := range uint64(queueDepth) {
				x.postSend(i, 0) // the sends wait for receives of the peer
			}
			x.expectRules()
			for i := range 2 {
				x.expectRules()
				_, err := x.a.PostRecv(ib.RecvWR{ID: uint64(i), SGList: x.firstRegionSGL()})
				x.failOnError(err)
			}
		}, true},
		{"polled in between", func(x *testConsumer) {
			for i := range uint64(50) {
				x.postRecv(i)
				x.postSend(i, ib.SendSignaled)
				x.pollAll()
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newConsumer(t, consumerConfig{entries: entries})
			c.use(x)
			if c.caught {
				x.destroyBothAndExpect(check.RuleCQTooSmall)
			} else {
				x.destroyBothAndExpect()
			}
		})
	}
}

// noCompletionQPDriver is a driver with completions that do not name their queue pair.
type noCompletionQPDriver struct{ ib.Driver }

type noCompletionQPCQ struct{ ib.DriverCQ }

func (d noCompletionQPDriver) Unwrap() ib.Driver { return d.Driver }
func (c noCompletionQPCQ) Unwrap() ib.DriverCQ   { return c.DriverCQ }

func (d noCompletionQPDriver) CreateCQ(cq ib.CQHandle, a ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	c, err := d.Driver.CreateCQ(cq, a, u)
	return noCompletionQPCQ{c}, err
}

func (c noCompletionQPCQ) Poll(wc []ib.WC) (int, error) {
	n, err := c.DriverCQ.Poll(wc)
	for i := range wc[:n] {
		wc[i].QP = nil
	}
	return n, err
}

// TestCheckReportsCompletionWithoutQP checks that a driver is reported if its completions do not name their queue pair.
// The consumer is not reported, although its CQ seems to be too small.
func TestCheckReportsCompletionWithoutQP(t *testing.T) {
	x := newConsumer(t, consumerConfig{entries: 5, wrap: func(d ib.Driver) ib.Driver { return noCompletionQPDriver{d} }})
	for i := range uint64(5) {
		x.postRecv(i)
		x.postSend(i, ib.SendSignaled)
		x.pollAll()
	}
	x.destroyBothAndExpect(check.RuleResult)
}

// TestCheckReportsUnsignaledOnlyQueue checks the report for a send queue that is filled with unsignaled work requests
// only. Such a queue stays full for ever.
func TestCheckReportsUnsignaledOnlyQueue(t *testing.T) {
	for _, c := range []struct {
		name     string
		signaled uint64 // each n-th request is signaled
		n        uint64
		caught   bool
	}{
		{"none is signaled", 1000, queueDepth + 1, true},
		{"the queue is filled once", 1000, queueDepth, false},
		{"one request per queue length is signaled", queueDepth, 5 * queueDepth, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newConsumer(t, consumerConfig{})
			for i := range c.n {
				x.postRecv(i)
				var flags ib.SendFlags
				if i%c.signaled == c.signaled-1 {
					flags = ib.SendSignaled
				}
				x.postSend(i, flags)
				x.pollAll()
			}
			if c.caught {
				x.destroyBothAndExpect(check.RuleUnsignaledOnly)
			} else {
				x.destroyBothAndExpect()
			}
		})
	}
}
