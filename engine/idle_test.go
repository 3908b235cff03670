package engine

import (
	"testing"

	"verbena/ib"
)

// TestIdleQueuePairHasNoRoom tests that a connected queue pair allocates room for work requests with its first request,
// not when it runs for another reason.
func TestIdleQueuePairHasNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		qp := qpOf(b.a.qp)
		room := func() (n int) {
			qp.exclusively(func(p *pass) {
				qp.advance(p)
				n = len(qp.req.wqes)
			})
			return n
		}
		if n := room(); n != 0 {
			t.Errorf("room for work requests of an idle queue pair: got %d, want 0", n)
		}
		transfer(b, ib.WRSend, 100, 1)
		if n := room(); n == 0 {
			t.Error("room for work requests after a request: got 0, want some")
		}
	})
}
