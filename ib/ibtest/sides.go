package ibtest

import (
	"fmt"

	"verbena/ib"
)

// Queue pairs with separate completion queues for sends and receives.

var sideChecks = []ruleTest{
	{
		name: "Errors/FlushQueues",
		rule: "flushed work requests complete on the completion queue of their side, in order, as others do, whatever has flushed them",
		test: testFlushQueues,
	},
	{
		name: "DeviceError/FlushQueues",
		rule: "so do those that an error of the device flushes",
		test: testFlushQueuesInError,
	},
}

// sided is a queue pair with two completion queues, and its peer.
type sided struct {
	*pair
	qp  *ib.QP
	cqs [2]*ib.CQ // for sends, for receives
	ah  *ib.AH    // for datagrams
	bad bool      // the first send has an invalid local key
}

const sidedWRs = 4 // outstanding on each side

// sided connects a queue pair of a type; it returns nil if the driver does not support the type.
func (e *env) sided(kind ib.QPType, pd *ib.PD) *sided {
	e.Helper()
	if e.ofType(kind, pd, e.cq(8, nil)) == nil {
		return nil
	}
	p := e.pair(pairConfig{kind: kind, pd: pd})
	s := &sided{pair: p, cqs: [2]*ib.CQ{e.cq(e.queueLen, nil), e.cq(e.queueLen, nil)}}
	s.qp = e.qp(pd, ib.QPInitAttr{SendCQ: s.cqs[0], RecvCQ: s.cqs[1], Type: kind})
	e.reset(p.qps[:]...)
	e.up(s.qp, p.qps[1].Num(), ib.QPRTS)
	e.up(p.qps[1], s.qp.Num(), ib.QPRTS)
	p.qps[0] = s.qp
	if kind == ib.QPTypeUD {
		s.ah = e.ah(pd)
	}
	return s
}

// postBoth posts sends and receives, numbered from first; it returns false if they were rejected.
func (s *sided) postBoth(first, n int) bool {
	s.e.Helper()
	for i := first; i < first+n; i++ {
		wr := ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGList: s.buf[0].sgl(0, 8), Flags: ib.SendSignaled}
		if s.qp.Type() == ib.QPTypeUD {
			wr = s.datagram(uint64(i), s.ah, 8)
		}
		if s.bad && i == 0 {
			wr.SGList[0].LKey += 0x12345600
		}
		if i%2 == 1 {
			wr.Flags = 0 // it completes because it fails
		}
		sent, err := s.qp.PostSend(wr)
		if sent == 0 {
			return false
		}
		taken, _ := s.qp.PostRecv(ib.RecvWR{ID: uint64(1000 + i), SGList: s.buf[0].sgl(128, 64)})
		if taken == 0 {
			s.e.Fatalf("post: a send was taken (%v), and a receive was not", err)
		}
	}
	return true
}

// flushed waits for n completions of each side, and checks that no more follow.
func (s *sided) flushed(when string, n int) {
	e := s.e
	e.Helper()
	var next [2]int
	wc := make([]ib.WC, 4)
	poll := func() {
		e.Helper()
		for side, cq := range s.cqs {
			k, err := cq.Poll(wc)
			e.must("poll", err)
			for _, c := range wc[:k] {
				want := uint64(1000*side + next[side])
				if c.ID != want || c.Status == ib.WCSuccess || c.QPNum != s.qp.Num() {
					e.Fatalf("%v, %s: on the completion queue of side %d work request %d has completed with %q, want %d flushed",
						s.qp.Type(), when, side, c.ID, c.Status, want)
				}
				next[side]++
			}
		}
	}
	e.eventually(fmt.Sprintf("%v, %s: %d completions of each side", s.qp.Type(), when, n), func() bool {
		poll()
		return next[0] >= n && next[1] >= n
	})
	e.settle()
	if poll(); next != [2]int{n, n} {
		e.Fatalf("%v, %s: got %v completions, want %d of each side", s.qp.Type(), when, next, n)
	}
}

func testFlushQueues(e *env) {
	pd := e.pd()
	toError := ib.QPAttr{State: ib.QPErr}
	e.flushBy(pd, []flushWay{
		{"flushed by Modify to ERR", false, func(s *sided) int {
			e.must("modify to ERR", s.qp.Modify(toError, ib.QPAttrState))
			return 0
		}},
		{"posted in ERR", false, func(s *sided) int {
			e.must("modify to ERR", s.qp.Modify(toError, ib.QPAttrState))
			if !s.postBoth(sidedWRs, 3) {
				e.Fatal("post in ERR: was refused")
			}
			return 3
		}},
		{"flushed since the first in the send queue has failed, and posted thereafter", true, func(s *sided) int {
			e.must("modify to RTS", s.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
			e.eventually("an error state", func() bool { return s.qp.State() == ib.QPErr || s.qp.State() == ib.QPSQE })
			if s.qp.Type() != ib.QPTypeRC {
				e.must("modify to ERR", s.qp.Modify(toError, ib.QPAttrState))
			}
			s.postBoth(sidedWRs, 2)
			return 2
		}},
	})
}

func testFlushQueuesInError(e *env) {
	e.flushBy(e.pd(), []flushWay{
		{"flushed by an error of the device", false, func(s *sided) int {
			e.handle.SetError()
			if s.postBoth(sidedWRs, 2) {
				return 2
			}
			return 0
		}},
	})
}

// flushWay is a way to flush outstanding requests; do returns the number of further requests on each side.
type flushWay struct {
	when string
	bad  bool
	do   func(s *sided) (more int)
}

func (e *env) flushBy(pd *ib.PD, ways []flushWay) {
	e.Helper()
	for _, way := range ways {
		var all []*sided
		for _, kind := range queuePairTypes {
			s := e.sided(kind, pd)
			if s == nil {
				continue
			}
			e.must("modify to SQD", s.qp.Modify(ib.QPAttr{State: ib.QPSQD}, ib.QPAttrState))
			s.bad = way.bad
			if !s.postBoth(0, sidedWRs) {
				e.Fatal("post in SQD: was refused")
			}
			all = append(all, s)
		}
		for _, s := range all {
			s.flushed(way.when, sidedWRs+way.do(s))
		}
	}
}
