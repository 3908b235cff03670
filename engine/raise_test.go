package engine

import (
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
)

// TestRaise tests that each event reaches the function of its object, once, and that the queue pair keeps its state.
func TestRaise(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{})
		d, n := b.a.dev, b.a
		got := map[string]ib.EventType{}
		cq, err := d.IB().CreateCQ(ib.CQInit{Entries: 1, Event: func(_ *ib.CQ,
			e ib.EventType) {
			got["completion queue"] = e
		}})
		check(t, err)
		srq, err := n.pd.CreateSRQ(ib.SRQInitAttr{
			Attr:  ib.SRQAttr{MaxWR: 1, MaxSGE: 1},
			Event: func(_ *ib.SRQ, e ib.EventType) { got["shared receive queue"] = e },
		})
		check(t, err)
		qp, err := n.pd.CreateQP(ib.QPInitAttr{
			Type: ib.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
			Event: func(_ *ib.QP, e ib.EventType) { got["queue pair"] = e },
		})
		check(t, err)
		raised := d.RaiseQP(qp.Num(), ib.EventPathMig) && d.RaiseCQ(cq, ib.EventCQErr) &&
			d.RaiseSRQ(srq, ib.EventSRQLimitReached)
		testutil.AdvanceTime(time.Second)
		want := map[string]ib.EventType{
			"queue pair": ib.EventPathMig, "completion queue": ib.EventCQErr, "shared receive queue": ib.EventSRQLimitReached,
		}
		for what, e := range want {
			if !raised || got[what] != e {
				t.Errorf("%s: raised %v, got %v, want %v", what, raised, got[what], e)
			}
		}
		if qp.State() != ib.QPReset {
			t.Errorf("state of the queue pair: got %v, want RESET", qp.State())
		}
		num := qp.Num()
		check(t, qp.Destroy())
		if d.RaiseQP(num, ib.EventPathMig) {
			t.Error("RaiseQP of a destroyed queue pair: got true, want false")
		}
		check(t, srq.Destroy())
		check(t, cq.Destroy())
	})
}
