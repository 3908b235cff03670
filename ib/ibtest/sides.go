package ibtest

import (
	"fmt"

	"verbena/ib"
)

// Queue pairs with separate completion queues for sends and receives.

var flushQueueChecks = []ruleTest{
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

// qpWithTwoCQs is a queue pair with two completion queues, and its peer.
type qpWithTwoCQs struct {
	*pair
	qp  *ib.QP
	cqs [2]*ib.CQ // for sends, for receives
	ah  *ib.AH    // for datagrams
	bad bool      // the first send has an invalid local key
}

const wrsPerQueue = 4 // outstanding on each side

// newQPWithTwoCQs connects a queue pair of a type; it returns nil if the driver does not support the type.
func newQPWithTwoCQs(e *testEnv, kind ib.QPType, pd *ib.PD) *qpWithTwoCQs {
	e.Helper()
	if e.newQPOfType(kind, pd, e.newCQ(8, nil)) == nil {
		return nil
	}
	p := e.newPair(pairConfig{kind: kind, pd: pd})
	s := &qpWithTwoCQs{pair: p, cqs: [2]*ib.CQ{e.newCQ(e.queueLen, nil), e.newCQ(e.queueLen, nil)}}
	s.qp = e.newQP(pd, ib.QPInitAttr{SendCQ: s.cqs[0], RecvCQ: s.cqs[1], Type: kind})
	e.connector.resetQPs(p.qps[:]...)
	e.connector.moveQPUpTo(s.qp, p.qps[1].Num(), ib.QPRTS)
	e.connector.moveQPUpTo(p.qps[1], s.qp.Num(), ib.QPRTS)
	p.qps[0] = s.qp
	if kind == ib.QPTypeUD {
		s.ah = e.newAH(pd)
	}
	return s
}

// postSendsAndRecvs posts sends and receives, numbered from first; it returns false if they were rejected.
func (s *qpWithTwoCQs) postSendsAndRecvs(first, n int) bool {
	s.e.Helper()
	for i := first; i < first+n; i++ {
		wr := ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGList: s.buf[0].newSGL(0, 8), Flags: ib.SendSignaled}
		if s.qp.Type() == ib.QPTypeUD {
			wr = s.newDatagramRequest(uint64(i), s.ah, 8)
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
		taken, _ := s.qp.PostRecv(ib.RecvWR{ID: uint64(1000 + i), SGList: s.buf[0].newSGL(128, 64)})
		if taken == 0 {
			s.e.Fatalf("post: a send was taken (%v), and a receive was not", err)
		}
	}
	return true
}

// waitBothQueuesFlushed waits for n completions of each side, and checks that no more follow.
func (s *qpWithTwoCQs) waitBothQueuesFlushed(when string, n int) {
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
	e.awaitDueCallbacks()
	if poll(); next != [2]int{n, n} {
		e.Fatalf("%v, %s: got %v completions, want %d of each side", s.qp.Type(), when, next, n)
	}
}

func testFlushQueues(e *testEnv) {
	pd := e.newPD()
	toError := ib.QPAttr{State: ib.QPErr}
	checkFlushMethods(e, pd, []flushMethod{
		{"flushed by Modify to ERR", false, func(s *qpWithTwoCQs) int {
			e.must("modify to ERR", s.qp.Modify(toError, ib.QPAttrState))
			return 0
		}},
		{"posted in ERR", false, func(s *qpWithTwoCQs) int {
			e.must("modify to ERR", s.qp.Modify(toError, ib.QPAttrState))
			if !s.postSendsAndRecvs(wrsPerQueue, 3) {
				e.Fatal("post in ERR: was refused")
			}
			return 3
		}},
		{"flushed since the first in the send queue has failed, and posted thereafter", true, func(s *qpWithTwoCQs) int {
			e.must("modify to RTS", s.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
			e.eventually("an error state", func() bool { return s.qp.State() == ib.QPErr || s.qp.State() == ib.QPSQE })
			if s.qp.Type() != ib.QPTypeRC {
				e.must("modify to ERR", s.qp.Modify(toError, ib.QPAttrState))
			}
			s.postSendsAndRecvs(wrsPerQueue, 2)
			return 2
		}},
	})
}

func testFlushQueuesInError(e *testEnv) {
	checkFlushMethods(e, e.newPD(), []flushMethod{
		{"flushed by an error of the device", false, func(s *qpWithTwoCQs) int {
			e.handle.SetError()
			if s.postSendsAndRecvs(wrsPerQueue, 2) {
				return 2
			}
			return 0
		}},
	})
}

// flushMethod is a way to flush outstanding requests; do returns the number of further requests on each side.
type flushMethod struct {
	when string
	bad  bool
	do   func(s *qpWithTwoCQs) (more int)
}

func checkFlushMethods(e *testEnv, pd *ib.PD, ways []flushMethod) {
	e.Helper()
	for _, way := range ways {
		var all []*qpWithTwoCQs
		for _, kind := range queuePairTypes {
			s := newQPWithTwoCQs(e, kind, pd)
			if s == nil {
				continue
			}
			e.must("modify to SQD", s.qp.Modify(ib.QPAttr{State: ib.QPSQD}, ib.QPAttrState))
			s.bad = way.bad
			if !s.postSendsAndRecvs(0, wrsPerQueue) {
				e.Fatal("post in SQD: was refused")
			}
			all = append(all, s)
		}
		for _, s := range all {
			s.waitBothQueuesFlushed(way.when, wrsPerQueue+way.do(s))
		}
	}
}
