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
		test: testSRQResize,
	},
}

func testCQResize(e *env) {
	small := e.cq(3, nil)
	e.need("resizing of CQs", small.Resize(4))
	pd := e.pd()
	for _, first := range []int{8, 5} {
		p := e.pair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		cq := e.cq(first, nil)
		qp := e.qp(pd, ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: cq, Type: ib.QPTypeRC, Cap: ib.QPCap{
			MaxSendWR: 1, MaxRecvWR: e.cap().MaxRecvWR, MaxSendSGE: 1, MaxRecvSGE: 1}})
		e.reset(p.qps[0])
		e.up(p.qps[0], qp.Num(), ib.QPRTS)
		e.up(qp, p.qps[0].Num(), ib.QPRTS)
		next, polled := 0, 0
		// complete adds n completions; the sender's completions prove that they are in the queue.
		complete := func(n int) {
			e.Helper()
			for range n {
				if k, err := qp.PostRecv(ib.RecvWR{ID: uint64(next), SGList: p.buf[1].sgl(0, 8)}); k != 1 {
					e.Fatalf("post receive: %v", err)
				}
				p.send(0, uint64(next), 8)
				next++
			}
			e.wait(p.cqs[0], n)
		}
		poll := func(n int) {
			e.Helper()
			for range min(n, next-polled) {
				e.waitOne(cq, uint64(polled), ib.WCSuccess)
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
					e.wantErr("resize below what is in the queue", err, syscall.EINVAL)
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

func testSRQResize(e *env) {
	pd := e.pd()
	dev := e.deviceAttr()
	srq := e.srq(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}})
	e.need("resizing of shared receive queues", srq.Modify(ib.SRQAttr{MaxWR: 6}, ib.SRQAttrMaxWR))
	var limits atomic.Int32
	for _, first := range []uint32{8, 5} {
		srq := e.srq(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: first, MaxSGE: 1},
			Event: func(*ib.SRQ, ib.EventType) { limits.Add(1) }})
		s := &sharedQueue{pair: e.pair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq}), srq: srq}
		s.bad(0, uint32(dev.MaxSRQWR)+1)
		for turn := range 6 { // number of entries before the wrap-around
			s.post(turn)
			s.take(turn)
			for _, to := range []uint32{1, 3, 4, 6, 16, 2, first} {
				s.post(min(4, s.room()-s.left()))
				s.resize(to)
				s.take(1 + turn%2)
			}
			s.take(s.left())
			s.resize(first)
		}
		// An armed limit stays armed.
		s.post(4)
		e.must("arm the limit", srq.Modify(ib.SRQAttr{Limit: 3}, ib.SRQAttrLimit))
		s.resize(first + 8)
		s.bad(3)
		s.take(1)
		e.settle()
		if n := limits.Swap(0); n != 0 {
			e.Fatalf("%d limit events when as many receives are left as the limit, want 0", n)
		}
		s.take(1)
		e.eventually("the limit event of a queue that was resized when its limit was armed",
			func() bool { return limits.Load() > 0 })
		if n := limits.Swap(0); n != 1 {
			e.Fatalf("%d limit events of a queue that was resized, want 1", n)
		}
		s.take(s.left())
		for s.left() < s.room() { // up to the new capacity
			s.post(1)
		}
		if n, err := srq.PostRecv(ib.RecvWR{SGList: s.buf[1].sgl(0, 8)}); n == 0 {
			e.wantErr("post to a full shared receive queue", err, syscall.ENOMEM)
		} else {
			e.Errorf("a shared receive queue takes more than the %d that Query reports", s.room())
		}
	}
}

// sharedQueue is a shared receive queue with numbered receives.
type sharedQueue struct {
	*pair
	srq         *ib.SRQ
	next, taken int // number of the next receive to post, and of the next one to be consumed
}

func (s *sharedQueue) left() int { return s.next - s.taken }

func (s *sharedQueue) room() int {
	s.e.Helper()
	a, err := s.srq.Query()
	s.e.must("query srq", err)
	return int(a.MaxWR)
}

func (s *sharedQueue) post(n int) {
	s.e.Helper()
	for range n {
		if k, err := s.srq.PostRecv(ib.RecvWR{ID: uint64(s.next), SGList: s.buf[1].sgl(8*(s.next%1000), 8)}); k != 1 {
			s.e.Fatalf("post receive with %d of %d in the queue: %v", s.left(), s.room(), err)
		}
		s.next++
	}
}

// take sends messages for the first n receives, and compares the data.
func (s *sharedQueue) take(n int) {
	s.e.Helper()
	n = min(n, s.left())
	place := func(side, i int) []byte { return s.buf[side].b[8*((s.taken+i)%1000):][:8] }
	for i := range n {
		fill(place(0, i), s.taken+i)
		s.post1(s.taken + i)
	}
	s.e.wait(s.cqs[0], n)
	for i, wc := range s.e.wait(s.cqs[1], n) {
		if wc.ID != uint64(s.taken+i) || wc.Status != ib.WCSuccess {
			s.e.Fatalf("message %d took receive %d, status %q", s.taken+i, wc.ID, wc.Status)
		}
		if !bytes.Equal(place(0, i), place(1, i)) {
			s.e.Fatalf("the message for receive %d is not where it should be", s.taken+i)
		}
	}
	s.taken += n
}

// post1 sends the i-th message.
func (s *sharedQueue) post1(i int) {
	s.e.Helper()
	s.pair.post(0, ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled,
		SGList: s.buf[0].sgl(8*(i%1000), 8)})
}

// resize requests another capacity, which the driver may round up. It must fail if the receives do not fit.
func (s *sharedQueue) resize(to uint32) {
	s.e.Helper()
	before, err := s.srq.Query()
	s.e.must("query srq", err)
	err = s.srq.Modify(ib.SRQAttr{MaxWR: to}, ib.SRQAttrMaxWR)
	after, err2 := s.srq.Query()
	s.e.must("query srq", err2)
	switch {
	case err == nil && (after.MaxWR < to || int(after.MaxWR) < s.left()):
		s.e.Fatalf("a shared receive queue with %d receives has room for %d when it was resized to %d", s.left(), after.MaxWR,
			to)
	case err == nil:
	case int(to) >= s.left():
		s.e.Fatalf("resize a shared receive queue with %d receives to %d: %v", s.left(), to, err)
	default:
		s.e.wantErr("resize below what is in the queue", err, syscall.EINVAL)
		if after != before {
			s.e.Fatalf("after a resize that failed Query reports %+v, before it %+v", after, before)
		}
	}
	if after.MaxSGE != before.MaxSGE || after.Limit != before.Limit {
		s.e.Fatalf("after a resize Query reports %+v, before it %+v", after, before)
	}
}

// bad tries invalid capacities, and a limit above the capacity.
func (s *sharedQueue) bad(sizes ...uint32) {
	s.e.Helper()
	before, err := s.srq.Query()
	s.e.must("query srq", err)
	unchanged := func(what string, a ib.SRQAttr, mask ib.SRQAttrMask) {
		s.e.Helper()
		s.e.wantErr(what, s.srq.Modify(a, mask), syscall.EINVAL)
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
