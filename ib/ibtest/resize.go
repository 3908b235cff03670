package ibtest

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// Resizing of queues that are not empty.

var resizeChecks = []ruleTest{
	{
		name: "SRQ/Resize",
		rule: "a shared receive queue that is resized keeps its receives, in order, and its limit; it is not made smaller than what it holds",
		test: testSRQResizeKeepsReceives,
	},
}

func testCQResizeKeepsOrder(e *testEnv) {
	small := e.newCQ(3, nil)
	e.requireFeature("resizing of CQs", small.Resize(4))
	pd := e.newPD()
	for _, first := range []int{8, 5} {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		cq := e.newCQ(first, nil)
		qp := e.newQP(pd, ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: cq, Type: ib.QPTypeRC, Cap: ib.QPCap{
			MaxSendWR: 1, MaxRecvWR: e.defaultQPCap().MaxRecvWR, MaxSendSGE: 1, MaxRecvSGE: 1}})
		e.connector.resetQPs(p.qps[0])
		e.connector.moveQPUpTo(p.qps[0], qp.Num(), ib.QPRTS)
		e.connector.moveQPUpTo(qp, p.qps[0].Num(), ib.QPRTS)
		next, polled := 0, 0
		// complete adds n completions; the sender's completions prove that they are in the queue.
		complete := func(n int) {
			e.Helper()
			for range n {
				if k, err := qp.PostRecv(ib.RecvWR{ID: uint64(next), SGList: p.buf[1].newSGL(0, 8)}); k != 1 {
					e.Fatalf("post receive: %v", err)
				}
				p.postSend(0, uint64(next), 8)
				next++
			}
			e.waitCompletions(p.cqs[0], n)
		}
		poll := func(n int) {
			e.Helper()
			for range min(n, next-polled) {
				e.waitOneCompletion(cq, uint64(polled), ib.WCSuccess)
				polled++
			}
		}
		for turn := range 6 { // number of entries before the wrap-around
			complete(turn)
			poll(turn)
			for _, to := range []int{1, 3, 4, 6, 16, 2, first} {
				complete(min(4, cq.Entries()-(next-polled)))
				before, held := cq.Entries(), next-polled
				err := cq.Resize(to)
				switch now := cq.Entries(); {
				case err == nil && (now < to || now < held):
					e.Fatalf("a completion queue with %d completions has %d entries when it was resized to %d", held, now, to)
				case err != nil && to >= held:
					e.Fatalf("resize a completion queue with %d completions to %d: %v", held, to, err)
				case err != nil:
					e.wantErrno("resize below what is in the queue", err, syscall.EINVAL)
					if now != before {
						e.Fatalf("after a resize that failed there are %d entries, before it %d", now, before)
					}
				}
				poll(1 + turn%2)
			}
			poll(next - polled)
			e.must("resize", cq.Resize(first))
		}
		e.destroy(qp)
	}
}

func testSRQResizeKeepsReceives(e *testEnv) {
	pd := e.newPD()
	dev := e.deviceAttr()
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	e.requireFeature("resizing of shared receive queues", srq.Modify(ib.SRQAttr{MaxWR: 6}, ib.SRQAttrMaxWR))
	var limits atomic.Int32
	for _, first := range []uint32{8, 5} {
		srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: first, MaxSGE: 1},
			Event: func(*ib.SRQ, ib.EventType) { limits.Add(1) }})
		s := &numberedSRQ{pair: e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq}), srq: srq}
		s.tryInvalidSizes(0, uint32(dev.MaxSRQWR)+1)
		for turn := range 6 { // number of entries before the wrap-around
			s.postRecvs(turn)
			s.consumeRecvs(turn)
			for _, to := range []uint32{1, 3, 4, 6, 16, 2, first} {
				s.postRecvs(min(4, s.capacity()-s.remainingRecvs()))
				s.resizeTo(to)
				s.consumeRecvs(1 + turn%2)
			}
			s.consumeRecvs(s.remainingRecvs())
			s.resizeTo(first)
		}
		// An armed limit stays armed.
		s.postRecvs(4)
		e.must("arm the limit", srq.Modify(ib.SRQAttr{Limit: 3}, ib.SRQAttrLimit))
		s.resizeTo(first + 8)
		s.tryInvalidSizes(3)
		s.consumeRecvs(1)
		e.awaitDueCallbacks()
		if n := limits.Swap(0); n != 0 {
			e.Fatalf("%d limit events when as many receives are left as the limit, want 0", n)
		}
		s.consumeRecvs(1)
		e.eventually("the limit event of a queue that was resized when its limit was armed",
			func() bool { return limits.Load() > 0 })
		if n := limits.Swap(0); n != 1 {
			e.Fatalf("%d limit events of a queue that was resized, want 1", n)
		}
		s.consumeRecvs(s.remainingRecvs())
		for s.remainingRecvs() < s.capacity() { // up to the new capacity
			s.postRecvs(1)
		}
		if n, err := srq.PostRecv(ib.RecvWR{SGList: s.buf[1].newSGL(0, 8)}); n == 0 {
			e.wantErrno("post to a full shared receive queue", err, syscall.ENOMEM)
		} else {
			e.Errorf("a shared receive queue takes more than the %d that Query reports", s.capacity())
		}
	}
}

// numberedSRQ is a shared receive queue with numbered receives.
type numberedSRQ struct {
	*pair
	srq         *ib.SRQ
	next, taken int // number of the next receive to post, and of the next one to be consumed
}

func (s *numberedSRQ) remainingRecvs() int { return s.next - s.taken }

func (s *numberedSRQ) capacity() int {
	s.e.Helper()
	a, err := s.srq.Query()
	s.e.must("query srq", err)
	return int(a.MaxWR)
}

func (s *numberedSRQ) postRecvs(n int) {
	s.e.Helper()
	for range n {
		if k, err := s.srq.PostRecv(ib.RecvWR{ID: uint64(s.next), SGList: s.buf[1].newSGL(8*(s.next%1000), 8)}); k != 1 {
			s.e.Fatalf("post receive with %d of %d in the queue: %v", s.remainingRecvs(), s.capacity(), err)
		}
		s.next++
	}
}

// consumeRecvs sends messages for the first n receives, and compares the data.
func (s *numberedSRQ) consumeRecvs(n int) {
	s.e.Helper()
	n = min(n, s.remainingRecvs())
	place := func(side, i int) []byte { return s.buf[side].b[8*((s.taken+i)%1000):][:8] }
	for i := range n {
		fillPattern(place(0, i), s.taken+i)
		s.sendMessage(s.taken + i)
	}
	s.e.waitCompletions(s.cqs[0], n)
	for i, wc := range s.e.waitCompletions(s.cqs[1], n) {
		if wc.ID != uint64(s.taken+i) || wc.Status != ib.WCSuccess {
			s.e.Fatalf("message %d took receive %d, status %q", s.taken+i, wc.ID, wc.Status)
		}
		if !bytes.Equal(place(0, i), place(1, i)) {
			s.e.Fatalf("the message for receive %d is not where it should be", s.taken+i)
		}
	}
	s.taken += n
}

// sendMessage sends the i-th message.
func (s *numberedSRQ) sendMessage(i int) {
	s.e.Helper()
	s.pair.postSendWR(0, ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: s.buf[0].newSGL(8*(i%1000), 8)})
}

// resizeTo requests another capacity, which the driver may round up. It must fail if the receives do not fit.
func (s *numberedSRQ) resizeTo(to uint32) {
	s.e.Helper()
	before, err := s.srq.Query()
	s.e.must("query srq", err)
	err = s.srq.Modify(ib.SRQAttr{MaxWR: to}, ib.SRQAttrMaxWR)
	after, err2 := s.srq.Query()
	s.e.must("query srq", err2)
	switch {
	case err == nil && (after.MaxWR < to || int(after.MaxWR) < s.remainingRecvs()):
		s.e.Fatalf("a shared receive queue with %d receives has room for %d when it was resized to %d", s.remainingRecvs(),
			after.MaxWR,
			to)
	case err == nil:
	case int(to) >= s.remainingRecvs():
		s.e.Fatalf("resize a shared receive queue with %d receives to %d: %v", s.remainingRecvs(), to, err)
	default:
		s.e.wantErrno("resize below what is in the queue", err, syscall.EINVAL)
		if after != before {
			s.e.Fatalf("Query after a refused resize: got %+v, want %+v", after, before)
		}
	}
	if after.MaxSGE != before.MaxSGE || after.Limit != before.Limit {
		s.e.Fatalf("after a resize Query reports %+v, before it %+v", after, before)
	}
}

// tryInvalidSizes tries invalid capacities, and a limit above the capacity.
func (s *numberedSRQ) tryInvalidSizes(sizes ...uint32) {
	s.e.Helper()
	before, err := s.srq.Query()
	s.e.must("query srq", err)
	unchanged := func(what string, a ib.SRQAttr, mask ib.SRQAttrMask) {
		s.e.Helper()
		s.e.wantErrno(what, s.srq.Modify(a, mask), syscall.EINVAL)
		after, err := s.srq.Query()
		s.e.must("query srq", err)
		if after != before {
			s.e.Fatalf("%s: after it Query reports %+v, before it %+v", what, after, before)
		}
	}
	for _, n := range sizes {
		if n == 0 || int(n) > int(before.MaxWR) {
			unchanged(fmt.Sprintf("resize to %d", n), ib.SRQAttr{MaxWR: n}, ib.SRQAttrMaxWR)
		}
	}
	unchanged("a size and a limit far above it", ib.SRQAttr{MaxWR: 16, Limit: 1 << 10}, ib.SRQAttrMaxWR|ib.SRQAttrLimit)
}
