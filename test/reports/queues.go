package reports

import (
	"context"
	"errors"
	"syscall"
	"time"

	"verbena/test/suite"
	"verbena/verbs"
)

// newSharedPair returns a connected pair. The second queue pair receives from a shared receive queue.
func newSharedPair(w *suite.Testbed, wrs int) (a, b *suite.End, srq *verbs.SRQ) {
	w.Helper()
	a, b = w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	srq, err := b.PD.CreateSRQ(wrs, 1)
	w.Must(err)
	w.Must(b.QP.Close())
	// The queue pair ignores these sizes.
	b.QP, err = b.PD.CreateQP(verbs.QPInit{SendCQ: b.CQ, SRQ: srq, RecvWRs: 1 << 30, RecvSGEs: 1 << 30})
	w.Must(err)
	connectStepwise(w, a, b, nil)
	return a, b, srq
}

// testLastWQEReached tests that a failed queue pair reports, once, that it takes no more receives from its shared
// queue.
func testLastWQEReached(w *suite.Testbed) {
	a, b, srq := newSharedPair(w, 8)
	for i := range 3 {
		w.Must(srq.PostRecv(&verbs.RecvWR{ID: uint64(i), Local: sge(b, 0, 8)}))
	}
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: sge(a, 0, 8)})
	a.WaitSuccess(1)
	b.WaitSuccess(0)
	w.Must(b.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
	ev, err := w.Device.NextEvent(w.ShortContext())
	w.Must(err)
	if ev.Type != verbs.EventLastWQE || ev.QP != b.QP {
		w.Errorf("event: got %+v, want %v of the queue pair", ev, verbs.EventLastWQE)
	}
	w.Must(b.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
	expectNoEvent(w)
	if n, err := b.CQ.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		w.Errorf("completions: got %d and error %v, want none, because the receives belong to the shared queue", n, err)
	}
	// Another queue pair uses the remaining receives.
	c := w.NewEnd(verbs.QPInit{})
	w.Must(c.QP.Close())
	c.QP, err = b.PD.CreateQP(verbs.QPInit{SendCQ: c.CQ, SRQ: srq})
	w.Must(err)
	d := w.NewEnd(verbs.QPInit{})
	connectStepwise(w, d, c, nil)
	d.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: sge(d, 0, 8)})
	d.WaitSuccess(2)
	c.WaitSuccess(1)
	if err := srq.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a shared receive queue in use: got %v, want EBUSY", err)
	}
}

// expectNoEvent checks that no asynchronous event arrives.
func expectNoEvent(w *suite.Testbed) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if ev, err := w.Device.NextEvent(ctx); err == nil {
		w.Errorf("event: got %+v, want none", ev)
	}
}

// testSRQLimitEventOnce tests that a limit causes one event, is 0 afterwards, and can be set again. A resize keeps the
// limit.
func testSRQLimitEventOnce(w *suite.Testbed) {
	a, b, srq := newSharedPair(w, 16)
	post := func(n int) {
		for range n {
			w.Must(srq.PostRecv(&verbs.RecvWR{ID: 1, Local: sge(b, 0, 8)}))
		}
	}
	send := func() {
		a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: sge(a, 0, 8)})
		a.WaitSuccess(2)
		b.WaitSuccess(1)
	}
	post(5)
	for range 2 {
		w.Must(srq.SetLimit(4))
		w.Must(srq.Resize(100))
		if got, err := srq.Query(); err != nil || got.Limit != 4 || got.MaxWR < 100 {
			w.Errorf("shared receive queue: got %+v and error %v, want limit 4 and at least 100", got, err)
		}
		send() // 4 receives remain, which is not below the limit
		expectNoEvent(w)
		send()
		ev, err := w.Device.NextEvent(w.ShortContext())
		w.Must(err)
		if ev.Type != verbs.EventSRQLimit || ev.SRQ != srq {
			w.Errorf("got %+v, want %v", ev, verbs.EventSRQLimit)
		}
		if got, err := srq.Query(); err != nil || got.Limit != 0 {
			w.Errorf("limit after the event: got %d and error %v, want 0", got.Limit, err)
		}
		send()
		expectNoEvent(w)
		post(3)
	}
	if err := srq.Resize(1); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Resize below the number of posted receives: got %v, want EINVAL", err)
	}
	for range 5 {
		send()
	}
}

// testArmReportsLaterCompletions tests that arming reports later completions, and does not report present completions.
// A failed request counts as solicited, regardless of its flags.
func testArmReportsLaterCompletions(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	ch, err := w.Device.CreateChannel()
	w.Must(err)
	cq, err := w.Device.CreateCQ(16, ch)
	w.Must(err)
	w.Must(b.QP.Close())
	b.QP, err = b.PD.CreateQP(verbs.QPInit{SendCQ: b.CQ, RecvCQ: cq})
	w.Must(err)
	w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
	connectStepwise(w, a, b, nil)
	send := func(f verbs.SendFlags) {
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Flags: f, Local: sge(a, 0, 8)})
		a.WaitSuccess(1)
	}
	event := func(what string, want bool) {
		w.Helper()
		d := time.Duration(10 * time.Millisecond)
		if want {
			d = 10 * time.Second
		}
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		if _, err := ch.Wait(ctx); (err == nil) != want {
			w.Errorf("%s: got %v, want event: %v", what, err, want)
		}
	}
	drop := func() {
		w.Helper()
		if n, err := cq.Poll(make([]verbs.WC, 16)); n == 0 || err != nil {
			w.Errorf("Poll: got %d and error %v, want a completion", n, err)
		}
	}
	for i := range 10 {
		b.PostRecv(uint64(i), 0, 8)
	}
	send(verbs.Solicited)
	w.Must(cq.Arm(false))
	event("armed with a completion in the queue", false)
	send(0)
	event("the next completion", true)
	send(0)
	event("another completion without arming", false)
	drop()
	w.Must(cq.Arm(true))
	send(0)
	event("an unsolicited completion", false)
	send(verbs.Solicited)
	event("a solicited completion", true)
	w.Must(cq.Arm(false))
	w.Must(cq.Arm(true)) // does not replace the first request
	send(0)
	event("armed for all, then for solicited completions", true)
	drop()
	w.Must(cq.Arm(true))
	w.Must(b.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
	event("a flushed receive", true)
	w.Must(b.QP.Close())
	w.Must(cq.Close())
	w.Must(ch.Close())
}

// testCQHoldsReportedEntries tests that a completion queue can hold as many entries as it reports. One more entry
// overflows the queue and raises an event.
func testCQHoldsReportedEntries(w *suite.Testbed) {
	d, err := w.Device.Query()
	w.Must(err)
	if _, err := w.Device.CreateCQ(d.MaxCQE+1, nil); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("CreateCQ beyond the device's limit: got %v, want EINVAL", err)
	}
	if _, err := w.Device.CreateCQ(0, nil); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("CreateCQ without entries: got %v, want EINVAL", err)
	}
	for _, asked := range []int{1, 2, 7, 8, 100} {
		a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
		cq, err := w.Device.CreateCQ(asked, nil)
		w.Must(err)
		n := cq.Entries()
		if n < asked {
			w.Errorf("CreateCQ with %d entries: got %d, want at least as many", asked, n)
		}
		w.Must(b.QP.Close())
		b.QP, err = b.PD.CreateQP(verbs.QPInit{SendCQ: b.CQ, RecvCQ: cq, RecvWRs: n + 1})
		w.Must(err)
		connectStepwise(w, a, b, nil)
		for i := range n + 1 {
			b.PostRecv(uint64(i), 0, 8)
		}
		for range n {
			a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: sge(a, 0, 8)})
			a.WaitSuccess(1)
		}
		expectNoEvent(w)
		wcs := make([]verbs.WC, n+1)
		got, err := cq.Poll(wcs)
		if got != n || err != nil {
			w.Errorf("completion queue of %d entries: got %d completions and error %v, want all", n, got, err)
		}
		for i := range got {
			if wcs[i].ID != uint64(i) || wcs[i].Status != verbs.Success {
				w.Errorf("completion %d: got %+v", i, wcs[i])
			}
		}
	}
}

// testCQOverrunRaisesEvent tests that an overflow of a completion queue raises an error event of that queue.
func testCQOverrunRaisesEvent(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	cq, err := w.Device.CreateCQ(1, nil)
	w.Must(err)
	w.Must(b.QP.Close())
	b.QP, err = b.PD.CreateQP(verbs.QPInit{SendCQ: b.CQ, RecvCQ: cq})
	w.Must(err)
	connectStepwise(w, a, b, nil)
	for i := range cq.Entries() + 1 {
		b.PostRecv(uint64(i), 0, 8)
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: sge(a, 0, 8)})
	}
	ev, err := w.Device.NextEvent(w.ShortContext())
	w.Must(err)
	if ev.Type != verbs.EventCQError || ev.CQ != cq {
		w.Errorf("event: got %+v, want %v of the queue", ev, verbs.EventCQError)
	}
}

// testResizeKeepsEntries tests that a resized completion queue keeps its entries in order, and cannot become smaller
// than their number.
func testResizeKeepsEntries(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	cq, err := w.Device.CreateCQ(63, nil)
	w.Must(err)
	w.Must(b.QP.Close())
	b.QP, err = b.PD.CreateQP(verbs.QPInit{SendCQ: b.CQ, RecvCQ: cq})
	w.Must(err)
	connectStepwise(w, a, b, nil)
	next, posted := uint64(0), uint64(0)
	send := func(n int) {
		for range n {
			b.PostRecv(posted, 0, 8)
			posted++
			a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: sge(a, 0, 8)})
			a.WaitSuccess(1)
		}
	}
	take := func(n int) {
		wcs := make([]verbs.WC, n)
		if got, err := cq.Poll(wcs); got != n || err != nil {
			w.Fatalf("got %d completions, %v, want %d", got, err, n)
		}
		for i := range wcs {
			if wcs[i].ID != next {
				w.Fatalf("completion: got work request %d, want %d", wcs[i].ID, next)
			}
			next++
		}
	}
	send(40)
	take(20)
	send(40) // wraps around the ring
	w.Must(cq.Resize(1000))
	if n := cq.Entries(); n < 1000 {
		w.Errorf("Resize to 1000 entries: got %d, want at least 1000", n)
	}
	send(50)
	take(60)
	if err := cq.Resize(8); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Resize to 8 with 50 completions: got %v, want EINVAL", err)
	}
	w.Must(cq.Resize(50))
	take(50)
	w.Must(cq.Resize(8))
	send(5)
	take(5)
}

// testSeparateSendRecvCQs tests that send completions arrive in the CQ of the send queue, and receive completions in
// the other CQ.
func testSeparateSendRecvCQs(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	recv, err := w.Device.CreateCQ(16, nil)
	w.Must(err)
	w.Must(b.QP.Close())
	b.QP, err = b.PD.CreateQP(verbs.QPInit{SendCQ: b.CQ, RecvCQ: recv})
	w.Must(err)
	connectStepwise(w, a, b, nil)
	b.PostRecv(1, 0, 8)
	a.PostRecv(2, 0, 8)
	a.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.Send, Local: sge(a, 0, 8)})
	a.WaitSuccess(3)
	b.PostSend(verbs.SendWR{ID: 4, Opcode: verbs.Send, Local: sge(b, 0, 8)})
	b.WaitSuccess(4)
	a.WaitSuccess(2)
	var wc [2]verbs.WC
	if n, err := recv.Poll(wc[:]); n != 1 || err != nil || wc[0].ID != 1 {
		w.Errorf("CQ of the receive queue: got %d completions, %+v and error %v, want the completion of the receive", n,
			wc[0], err)
	}
	if err := recv.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a CQ in use: got %v, want EBUSY", err)
	}
	w.Must(b.QP.Close())
	w.Must(recv.Close())
}
