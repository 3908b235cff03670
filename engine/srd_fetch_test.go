package engine

import (
	"testing"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/clock"
	"verbena/uapi"
)

// endlessQueue is a send queue of a program that posts a request whenever the device takes one.
type endlessQueue struct {
	queue.SendQueue
	to    *path
	taken int
}

func (*endlessQueue) Capacity() int          { return 4096 }
func (*endlessQueue) Posted() (uint32, bool) { return 0, true }
func (q *endlessQueue) Take()                { q.taken++ }

func (q *endlessQueue) Fetch(_ int, w *queue.Send) (found, ok bool) {
	*w = queue.Send{Opcode: uapi.WRSend, To: q.to, QPN: 5, QKey: testQKey}
	return true, true
}

// TestSRDFetches tests that a run of a queue pair takes a limited number of requests from a program that goes on
// posting, and that later runs take more, up to the size of the queue.
func TestSRDFetches(t *testing.T) {
	s := newTestSRD(10)
	qp := s.qp
	qp.dev.requests, qp.dev.clock = userShares{room: allRequests}, clock.System
	qp.typ, qp.datagram, qp.state, qp.srd = ib.QPTypeSRD, true, ib.QPRTS, s
	qp.req.qp, qp.egress.blocked = qp, true // nothing leaves, so no request ends
	to := &path{dst: addrA}
	q := &endlessQueue{to: to}
	qp.sq = q
	p := newPass(qp.dev)
	for runs := 1; runs <= q.Capacity()/maxFetches; runs++ {
		s.run(p)
		if q.taken != runs*maxFetches || !s.more {
			t.Fatalf("after %d runs: got %d requests and more = %t, want %d and true", runs, q.taken, s.more, runs*maxFetches)
		}
	}
	if s.run(p); q.taken != q.Capacity() || s.more {
		t.Errorf("run with a full queue: got %d requests and more = %t, want %d and false", q.taken, s.more, q.Capacity())
	}
}
