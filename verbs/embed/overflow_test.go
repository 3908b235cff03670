package embed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"verbena/verbs"
)

// TestOverflow: the completions that were in a CQ before it overflowed are taken from it, and a wait for more is an error.
func TestOverflow(t *testing.T) {
	dev := open(t, software(t), "")
	a, b := newEnd(t, dev, verbs.QPInit{SendWRs: 256, SignalAll: true}), newEnd(t, dev, verbs.QPInit{})
	small, err := dev.CreateCQ(4, nil)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := a.pd.CreateQP(verbs.QPInit{SendCQ: small, SendWRs: 256, SignalAll: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := verbs.ConnectPair(qp, b.qp); err != nil {
		t.Fatal(err)
	}
	room := small.Entries()
	for range room + 1 {
		if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Write, Local: a.mr.SGE(0, 4), Remote: b.remote()}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if e, err := dev.NextEvent(ctx); err != nil || e.Type != verbs.EventCQError || e.CQ != small {
		t.Fatalf("NextEvent: got %+v, %v, want %v", e, err, verbs.EventCQError)
	}
	wc := make([]verbs.WC, 1)
	for range room {
		if _, err := small.Wait(ctx, wc); err != nil || wc[0].Status != verbs.Success {
			t.Fatalf("Wait: got %v, %v, want one that was there before", wc[0].Status, err)
		}
	}
	if n, err := small.Wait(ctx, wc); !errors.Is(err, verbs.ErrOverflow) {
		t.Errorf("Wait: got %d, %v, want %v", n, err, verbs.ErrOverflow)
	}
	if err := small.Arm(false); !errors.Is(err, verbs.ErrOverflow) {
		t.Errorf("Arm: got %v, want %v", err, verbs.ErrOverflow)
	}
}
