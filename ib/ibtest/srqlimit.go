package ibtest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// The limit of a shared receive queue that already has fewer receives.

var srqLimitChecks = []ruleTest{
	{
		name: "SRQ/LimitBelow",
		rule: "a limit that is armed when fewer receives are there raises its event, once: at once, or with the next receive that is taken",
		test: testSRQLimitBelowCount,
	},
	{
		name: "SRQ/LimitRange",
		rule: "the limit is any number up to the capacity, also up to one that the same call sets",
		test: testSRQLimitRange, plain: true,
	},
	{
		name: "SRQ/LimitUnderTraffic",
		rule: "a limit that is armed while messages take receives raises its event once, when fewer receives are there",
		test: testSRQLimitUnderTraffic, plain: true,
	},
}

func testSRQLimitBelowCount(e *testEnv) {
	pd := e.newPD()
	for _, c := range []struct{ there, limit int }{{3, 4}, {3, 8}, {5, 6}, {1, 2}} {
		what := fmt.Sprintf("limit %d with %d receives", c.limit, c.there)
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
		take := func() {
			e.Helper()
			p.postSend(0, 1, 8)
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
			e.waitOneCompletion(p.cqs[1], 0, ib.WCSuccess)
		}
		for range c.there {
			e.mustPostSRQ(srq, ib.RecvWR{SGList: p.buf[1].newSGL(0, 8)})
		}
		e.must("arm the limit", srq.Modify(ib.SRQAttr{Limit: uint32(c.limit)}, ib.SRQAttrLimit))
		take()
		e.eventually(what+": the event when a receive has been taken", func() bool { return events.Load() > 0 })
		for range c.there - 1 {
			take()
		}
		e.awaitDueCallbacks()
		if n := events.Load(); n != 1 {
			e.Fatalf("%s: %d limit events, want 1", what, n)
		}
		a, err := srq.Query()
		e.must("query srq", err)
		if a.Limit != 0 {
			e.Errorf("%s: Query shows limit %d when it has been reached, want 0", what, a.Limit)
		}
	}
}

// longSRQ is a number of receives that needs more than 14 bits.
const longSRQ = 1<<14 + 100

func testSRQLimitRange(e *testEnv) {
	pd := e.newPD()
	var events atomic.Int32
	long := e.newSRQ(pd, ib.SRQInitAttr{
		Attr: ib.SRQAttr{MaxWR: uint32(min(e.deviceAttr().MaxSRQWR, longSRQ)), MaxSGE: 1},
		Event: func(_ *ib.SRQ, ev ib.EventType) {
			if ev == ib.EventSRQLimitReached {
				events.Add(1)
			}
		},
	})
	a, err := long.Query()
	e.must("query srq", err)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: long})
	list := slices.Repeat([]ib.RecvWR{{SGList: p.buf[1].newSGL(0, 8)}}, int(a.MaxWR))
	if n, err := long.PostRecv(list...); n != len(list) {
		e.Fatalf("post %d receives: %d taken, %v", len(list), n, err)
	}
	e.must("arm the limit", long.Modify(ib.SRQAttr{Limit: a.MaxWR}, ib.SRQAttrLimit))
	p.postSend(0, 1, 8)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 0, ib.WCSuccess)
	e.eventually(fmt.Sprintf("the event of limit %d when the first receive has been taken", a.MaxWR),
		func() bool { return events.Load() == 1 })

	small, large := uint32(4), uint32(min(e.deviceAttr().MaxSRQWR, 64))
	limit := large - 2
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: small, MaxSGE: 1}})
	both := ib.SRQAttrMaxWR | ib.SRQAttrLimit
	e.requireFeature("resizing of SRQs", srq.Modify(ib.SRQAttr{MaxWR: small}, ib.SRQAttrMaxWR))
	e.must("raise the capacity and the limit", srq.Modify(ib.SRQAttr{MaxWR: large, Limit: limit}, both))
	if a, err := srq.Query(); err != nil || a.MaxWR < large || a.Limit != limit && a.Limit != 0 { // 0: has been reached
		e.Errorf("capacity %d and limit %d: Query shows %+v (%v)", large, limit, a, err)
	}
	err = srq.Modify(ib.SRQAttr{MaxWR: small, Limit: limit}, both)
	a, queryErr := srq.Query()
	if err == nil && a.MaxWR < limit || queryErr != nil {
		e.Errorf("limit %d of a smaller queue: Modify succeeds, and Query shows %+v (%v)", limit, a, queryErr)
	} else if err != nil {
		e.wantErrno("a limit above the smaller capacity", err, syscall.EINVAL)
	}
}

// testSRQLimitUnderTraffic arms the limit on one thread while another thread takes receives, in each round once. The
// queue is empty at the end of a round.
func testSRQLimitUnderTraffic(e *testEnv) {
	const there = 8
	pd := e.newPD()
	var events atomic.Int32
	srq := e.newSRQ(pd, ib.SRQInitAttr{
		Attr: ib.SRQAttr{MaxWR: there, MaxSGE: 1},
		Event: func(_ *ib.SRQ, ev ib.EventType) {
			if ev == ib.EventSRQLimitReached {
				events.Add(1)
			}
		},
	})
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
	take := func(n int) {
		e.Helper()
		for range n {
			p.postSend(0, 1, 8)
		}
		for range n {
			e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
			e.waitOneCompletion(p.cqs[1], 0, ib.WCSuccess)
		}
	}
	rounds := 50 * e.cfg.load
	for round := range rounds {
		for range there {
			e.mustPostSRQ(srq, ib.RecvWR{SGList: p.buf[1].newSGL(0, 8)})
		}
		limit := there - round%4
		var begun atomic.Bool
		var wg sync.WaitGroup
		var err error
		wg.Go(func() {
			for !begun.Load() {
				runtime.Gosched()
			}
			err = srq.Modify(ib.SRQAttr{Limit: uint32(limit)}, ib.SRQAttrLimit)
		})
		begun.Store(true)
		take(there / 2)
		wg.Wait()
		e.must("arm the limit", err)
		take(there - there/2)
		what := fmt.Sprintf("round %d: limit %d, armed while %d of %d receives are taken", round, limit, there/2, there)
		e.eventually(what+": the event", func() bool { return int(events.Load()) > round })
	}
	e.awaitDueCallbacks()
	if n := int(events.Load()); n != rounds {
		e.Fatalf("a limit that is armed while receives are taken: got %d events, want %d", n, rounds)
	}
}
