package embed_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"verbena/verbs"
)

// TestOverflow checks that the completions before an overflow are returned, and that a later wait fails.
func TestOverflow(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	a, b := newTestEnd(t, dev, verbs.QPInit{SendWRs: 256, SignalAll: true}), newTestEnd(t, dev, verbs.QPInit{})
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
		if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Write, Local: a.mr.SGE(0, 4),
			Remote: b.remoteMemory()}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if e, err := dev.NextEvent(ctx); err != nil || e.Type != verbs.EventCQError || e.CQ != small {
		t.Fatalf("NextEvent: got %+v, %v, want %v", e, err, verbs.EventCQError)
	}
	n := 0
	var errs []error
	for _, err := range small.Completions(ctx) {
		if n++; err != nil {
			errs = append(errs, err)
		}
	}
	if n != room+1 || len(errs) != 1 || !errors.Is(errs[0], verbs.ErrOverflow) {
		t.Errorf("Completions: got %d with errors %v, want %d and %v as the last error", n, errs, room, verbs.ErrOverflow)
	}
	if err := small.Arm(false); !errors.Is(err, verbs.ErrOverflow) {
		t.Errorf("Arm: got %v, want %v", err, verbs.ErrOverflow)
	}
}

// TestCompletionsContinueAfterFailure checks that a failed completion is returned with its error, and that later
// completions follow. The last pair must have the reason for the end.
func TestCompletionsContinueAfterFailure(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	a := newTestEnd(t, dev, verbs.QPInit{})
	if err := a.qp.Prepare(verbs.Path{}); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(3) {
		if err := a.qp.PostRecv(&verbs.RecvWR{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.qp.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var ids []uint64
	var last error
	for wc, err := range a.cq.Completions(ctx) {
		if last = err; !errors.Is(err, verbs.Flushed) {
			break
		}
		if ids = append(ids, wc.ID); len(ids) == 3 {
			time.AfterFunc(time.Millisecond, func() { cancel(cause) })
		}
	}
	if want := []uint64{0, 1, 2}; !slices.Equal(ids, want) || !errors.Is(last, cause) {
		t.Errorf("Completions: got work requests %v and last error %v, want %v and %v", ids, last, want, cause)
	}
	// A loop that ends early must leave the remaining completions in the queue.
	more := newTestEnd(t, dev, verbs.QPInit{SignalAll: true})
	if err := verbs.ConnectPair(more.qp, newTestEnd(t, dev, verbs.QPInit{}).qp); err != nil {
		t.Fatal(err)
	}
	if err := more.qp.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(4) {
		if err := more.qp.PostSend(&verbs.SendWR{ID: id, Opcode: verbs.Send}); err != nil {
			t.Fatal(err)
		}
	}
	for want := range uint64(4) {
		for wc := range more.cq.Completions(t.Context()) {
			if wc.ID != want {
				t.Errorf("work request: got ID %d, want %d", wc.ID, want)
			}
			break
		}
	}
}
