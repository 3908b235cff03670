package reports

import (
	"errors"
	"syscall"

	"verbena/test/suite"
	"verbena/verbs"
)

// expectRefused tries a change that the device must refuse with EINVAL and without any effect.
func expectRefused(e *suite.End, what string, q verbs.QPAttr, mask verbs.AttrMask) {
	e.Helper()
	before, err := e.QP.Query()
	e.Must(err)
	if err := e.QP.Modify(q, mask); !errors.Is(err, syscall.EINVAL) {
		e.Errorf("%s: got %v, want EINVAL", what, err)
	}
	after, err := e.QP.Query()
	e.Must(err)
	if before != after {
		e.Errorf("%s: the failed Modify changed the queue pair: got %+v, want %+v", what, after, before)
	}
}

// testPathCannotChangeInRTS tests that the path of a connected queue pair cannot change, and that the attempt has no
// effect.
func testPathCannotChangeInRTS(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	q := rcAttributes(w, a, b)
	expectRefused(a, "the path in RTS", q, verbs.AttrAH)
	expectRefused(a, "the path MTU in RTS", q, verbs.AttrPathMTU)
	expectRefused(a, "the sequence number in RTS", q, verbs.AttrSendPSN)
	expectRefused(a, "the timeout in RTS", q, verbs.AttrTimeout)
	// These attributes may change.
	w.Must(a.QP.Modify(verbs.QPAttr{MinRNRTimer: 12, Access: verbs.RemoteWrite}, verbs.AttrMinRNRTimer|verbs.AttrAccess))
	got, err := a.QP.Query()
	w.Must(err)
	if got.MinRNRTimer != 12 || got.Access != verbs.RemoteWrite {
		w.Errorf("query after the change: got timer %d and rights %v, want 12 and %v", got.MinRNRTimer, got.Access,
			verbs.RemoteWrite)
	}
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: sge(a, 0, 8), Remote: b.Remote(0)})
	a.WaitSuccess(1)
}

// testRepeatedReset tests that a queue pair in RESET can be reset, and can then be connected as a new queue pair.
func testRepeatedReset(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	for range 2 {
		for range 2 {
			w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
			w.Must(b.QP.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
		}
		connectStepwise(w, a, b, nil)
		b.PostRecv(1, 0, 8)
		a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: sge(a, 0, 8)})
		a.WaitSuccess(2)
		b.WaitSuccess(1)
	}
}

// testResetForgetsRequests tests work requests posted before a reset. These work requests do not complete after the
// reset, receive no data, and use no slots.
func testResetForgetsRequests(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{SendWRs: 4, RecvWRs: 4}), w.NewEnd(verbs.QPInit{SendWRs: 4, RecvWRs: 4})
	connectStepwise(w, a, b, nil)
	room := a.QP.Init().SendWRs
	for range room { // these requests wait for receives
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: sge(a, 0, 8)})
	}
	for range a.QP.Init().RecvWRs {
		a.PostRecv(2, 0, 8)
	}
	for _, e := range []*suite.End{a, b} {
		w.Must(e.QP.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
	}
	connectStepwise(w, a, b, nil)
	for i := range room {
		b.PostRecv(uint64(10+i), 0, 8)
		a.PostSend(verbs.SendWR{ID: uint64(20 + i), Opcode: verbs.Send, Local: sge(a, 0, 8)})
	}
	for i := range room {
		a.WaitSuccess(uint64(20 + i))
		b.WaitSuccess(uint64(10 + i))
	}
	for range a.QP.Init().RecvWRs {
		a.PostRecv(3, 0, 8)
	}
}

// testPostInReset tests that a queue pair refuses receives in RESET, and refuses sends before RTS, even after a failed
// transition.
func testPostInReset(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	recv := func() error { return a.QP.PostRecv(&verbs.RecvWR{ID: 1, Local: sge(a, 0, 8)}) }
	send := func() error { return a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: sge(a, 0, 8)}) }
	if err := recv(); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("PostRecv in RESET: got %v, want EINVAL", err)
	}
	q := rcAttributes(w, a, b)
	modifyTo(w, a, verbs.Init, q)
	w.Must(recv())
	if err := send(); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("PostSend in INIT: got %v, want EINVAL", err)
	}
	modifyTo(w, a, verbs.RTR, q)
	bad := q
	bad.State, bad.RetryCount = verbs.RTS, 8
	expectRefused(a, "RTS with 8 retries", bad, rcAttrMasks[verbs.RTS])
	if err := send(); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("PostSend in RTR: got %v, want EINVAL", err)
	}
	modifyTo(w, a, verbs.RTS, q)
	w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
	if err := recv(); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("PostRecv after a reset: got %v, want EINVAL", err)
	}
	if err := send(); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("PostSend after a reset: got %v, want EINVAL", err)
	}
}

// testPostInErrorIsFlushed tests that requests posted to a queue pair in the error state are flushed after all
// outstanding requests, signalled or not.
func testPostInErrorIsFlushed(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, nil)
	for i := range 5 {
		// This request is unsignalled, and waits for a receive.
		w.Must(a.QP.PostSend(&verbs.SendWR{ID: uint64(i), Opcode: verbs.Send, Local: sge(a, 0, 8)}))
		a.PostRecv(uint64(100+i), 0, 8)
	}
	w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
	w.Must(a.QP.PostSend(&verbs.SendWR{ID: 5, Opcode: verbs.Send}))
	a.PostRecv(105, 0, 8)
	next := map[bool]uint64{false: 0, true: 100}
	for range 12 {
		wc := a.WaitCompletion()
		recv := wc.ID >= 100
		if wc.Status != verbs.Flushed || wc.ID != next[recv] || wc.QPN != a.QP.Num() {
			w.Fatalf("completion: got work request %d with %v of QP %d, want %d flushed", wc.ID, wc.Status, wc.QPN, next[recv])
		}
		next[recv]++
	}
}

// testTransitionAttributes tests that each type of queue pair requires its own attributes for a transition and refuses
// others.
func testTransitionAttributes(w *suite.Testbed) {
	init := verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort
	for _, x := range []struct {
		typ   verbs.QPType
		masks map[verbs.QPState]verbs.AttrMask
	}{
		{verbs.RC, rcAttrMasks},
		{verbs.UC, map[verbs.QPState]verbs.AttrMask{
			verbs.Init: init | verbs.AttrAccess,
			verbs.RTR:  verbs.AttrState | verbs.AttrAH | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRecvPSN,
			verbs.RTS:  verbs.AttrState | verbs.AttrSendPSN,
		}},
		{verbs.UD, map[verbs.QPState]verbs.AttrMask{
			verbs.Init: init | verbs.AttrQKey, verbs.RTR: verbs.AttrState, verbs.RTS: verbs.AttrState | verbs.AttrSendPSN,
		}},
	} {
		a := w.NewEnd(verbs.QPInit{Type: x.typ})
		q := rcAttributes(w, a, a)
		for _, to := range []verbs.QPState{verbs.Init, verbs.RTR, verbs.RTS} {
			q.State = to
			need := x.masks[to]
			for bit := verbs.AttrMask(1); bit <= need; bit <<= 1 {
				if need&bit != 0 && bit != verbs.AttrState {
					expectRefused(a, "a transition without a required attribute", q, need&^bit)
				}
			}
			never := verbs.AttrSendPSN
			if to == verbs.RTS {
				never = verbs.AttrDestQPN
			}
			expectRefused(a, "a transition with an attribute that does not belong there", q, need|never)
			w.Must(a.QP.Modify(q, need))
		}
		q.State = verbs.Init
		expectRefused(a, "RTS to INIT", q, x.masks[verbs.Init])
	}
}

// testAttributeRanges tests that attributes outside their range are refused.
func testAttributeRanges(w *suite.Testbed) {
	d, err := w.Device.Query()
	w.Must(err)
	p, err := w.Device.QueryPort(1)
	w.Must(err)
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	good := rcAttributes(w, a, b)
	for _, s := range []struct {
		to  verbs.QPState
		bad map[string]func(*verbs.QPAttr)
	}{
		{verbs.Init, map[string]func(*verbs.QPAttr){
			"port 0": func(q *verbs.QPAttr) {
				q.Port = 0
			}, "a port beyond the last": func(q *verbs.QPAttr) { q.Port = uint8(d.Ports + 1) },
			"a P_Key index beyond the last": func(q *verbs.QPAttr) { q.PKeyIndex = uint16(p.PKeys) },
			"P_Key index 65535":             func(q *verbs.QPAttr) { q.PKeyIndex = 65535 },
		}},
		{verbs.RTR, map[string]func(*verbs.QPAttr){
			"MTU 0": func(q *verbs.QPAttr) { q.PathMTU = 0 }, "MTU 6": func(q *verbs.QPAttr) { q.PathMTU = 6 },
			"a GID index beyond the last": func(q *verbs.QPAttr) { q.AH.SGIDIndex = p.GIDs },
			"an empty GID":                func(q *verbs.QPAttr) { q.AH.SGIDIndex = min(p.GIDs-1, 255) },
			"port 2 of the path":          func(q *verbs.QPAttr) { q.AH.Port = d.Ports + 1 },
			"more READs than the device":  func(q *verbs.QPAttr) { q.MaxPeerReads = uint8(d.MaxQPReads + 1) },
			"RNR timer code 32":           func(q *verbs.QPAttr) { q.MinRNRTimer = 32 },
			"a QP number above 24 bits":   func(q *verbs.QPAttr) { q.DestQPN = 1 << 24 },
			"no destination":              func(q *verbs.QPAttr) { q.AH.GID = verbs.GID{} },
		}},
		{verbs.RTS, map[string]func(*verbs.QPAttr){
			"timeout code 32": func(q *verbs.QPAttr) { q.Timeout = 32 }, "8 retries": func(q *verbs.QPAttr) { q.RetryCount = 8 },
			"8 RNR retries":              func(q *verbs.QPAttr) { q.RNRRetry = 8 },
			"more READs than the device": func(q *verbs.QPAttr) { q.MaxReads = uint8(d.MaxQPInitReads + 1) },
		}},
	} {
		for what, change := range s.bad {
			q := good
			change(&q)
			q.State = s.to
			expectRefused(a, what, q, rcAttrMasks[s.to])
		}
		modifyTo(w, a, s.to, good)
	}
}

// testQueryReturnsSetValues tests that a query returns the values that were set, even after a reset and a failure.
func testQueryReturnsSetValues(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	want := rcAttributes(w, a, b)
	want.SendPSN, want.RecvPSN, want.Timeout, want.RetryCount, want.RNRRetry, want.MinRNRTimer = 0xabcdef, 0x123456, 17, 3,
		2, 31
	want.AH.TrafficClass, want.AH.FlowLabel, want.AH.HopLimit = 96, 0xfffff, 255
	for _, to := range []verbs.QPState{verbs.Init, verbs.RTR, verbs.RTS} {
		modifyTo(w, a, to, want)
		got, err := a.QP.Query()
		w.Must(err)
		if got.State != to || got.CurState != to {
			w.Errorf("state: got %v and %v, want %v", got.State, got.CurState, to)
		}
	}
	got, err := a.QP.Query()
	w.Must(err)
	want.AH.Port, want.QKey = 1, 0
	got.State, got.CurState, got.QKey = 0, 0, 0
	if got != want {
		w.Errorf("got %+v\nwant %+v", got, want)
	}
}

// testSQDAcceptsRequests tests that a draining send queue accepts requests, and executes them after the queue pair
// returns to RTS.
func testSQDAcceptsRequests(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.SQD, NotifyWhenDrained: true}, verbs.AttrState|verbs.AttrNotifySQD))
	ev, err := w.Device.NextEvent(w.ShortContext())
	w.Must(err)
	if ev.Type != verbs.EventSQDrained || ev.QP != a.QP {
		w.Errorf("event: got %+v, want %v of the queue pair", ev, verbs.EventSQDrained)
	}
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: sge(a, 0, 8), Remote: b.Remote(0)})
	// The other direction continues.
	b.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: sge(b, 0, 8), Remote: a.Remote(0)})
	b.WaitSuccess(2)
	if n, err := a.CQ.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		w.Errorf("completions in SQD: got %d and error %v, want one receive", n, err)
	}
	w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.RTS}, verbs.AttrState))
	a.WaitSuccess(1)
}

// testBadDatagramStopsSendQueue tests that a bad datagram stops only the send queue. The queue pair still receives, and
// can return to RTS.
func testBadDatagramStopsSendQueue(w *suite.Testbed) {
	a, b := w.NewDatagramEnd(), w.NewDatagramEnd()
	to, ah := newAddressHandle(w, a, b)
	back, back2 := newAddressHandle(w, b, a)
	dest := verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}
	expectStatus(a, verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: verbs.SGE{Addr: a.MR.Addr(), Length: 8, LKey: 0xbad},
		To: dest}, verbs.LocalProtection)
	q, err := a.QP.Query()
	w.Must(err)
	if q.State != verbs.SQE {
		w.Fatalf("state: got %v, want SQE", q.State)
	}
	expectStatus(a, verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: sge(a, 0, 8), To: dest}, verbs.Flushed)
	a.PostRecv(3, 0, 100)
	b.PostSend(verbs.SendWR{ID: 4, Opcode: verbs.Send, Local: sge(b, 0, 8),
		To: verbs.Datagram{AH: back2, QPN: back.QPN, QKey: back.QKey}})
	b.WaitSuccess(4)
	a.WaitSuccess(3)
	w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.RTS, CurState: verbs.SQE}, verbs.AttrState|verbs.AttrCurState))
	b.PostRecv(5, 0, 100)
	a.PostSend(verbs.SendWR{ID: 6, Opcode: verbs.Send, Local: sge(a, 0, 8), To: dest})
	a.WaitSuccess(6)
	b.WaitSuccess(5)
}
