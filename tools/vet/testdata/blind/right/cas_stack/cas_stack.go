package cas_stack

import (
	"sync/atomic"

	"verbena/ib"
)

type node struct {
	next *node
	wr   ib.SendWR
}

type stack struct {
	head atomic.Pointer[node]
	high atomic.Int64
	n    atomic.Int64
}

func (s *stack) push(wr ib.SendWR) {
	x := &node{wr: wr}
	for {
		x.next = s.head.Load()
		if s.head.CompareAndSwap(x.next, x) {
			break
		}
	}
	n := s.n.Add(1)
	for h := s.high.Load(); n > h && !s.high.CompareAndSwap(h, n); h = s.high.Load() {
	}
}

func (s *stack) pop() *node {
	for {
		x := s.head.Load()
		if x == nil {
			return nil
		}
		if s.head.CompareAndSwap(x, x.next) {
			s.n.Add(-1)
			return x
		}
	}
}

type qp struct {
	ib.DriverQP
	s stack
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	for _, wr := range wrs {
		q.s.push(wr)
	}
	q.s.pop()
	return len(wrs), nil
}
