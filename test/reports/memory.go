package reports

import (
	"errors"
	"syscall"

	"verbena/test/suite"
	"verbena/verbs"
)

// testRemoteWriteNeedsLocalWrite tests that a region that peers may write must also be writable for the device.
func testRemoteWriteNeedsLocalWrite(w *suite.Testbed) {
	e := w.NewEnd(verbs.QPInit{})
	for _, a := range []verbs.Access{verbs.RemoteWrite, verbs.RemoteAtomic, verbs.RemoteWrite | verbs.RemoteRead} {
		if mr, err := e.PD.Alloc(4096, a); !errors.Is(err, syscall.EINVAL) {
			w.Errorf("access %#x without LocalWrite: got %v, want EINVAL", uint32(a), err)
			if err == nil {
				w.Must(mr.Close())
			}
		}
	}
	// the last flag is optional
	for _, a := range []verbs.Access{0, verbs.RemoteRead, verbs.BindWindows, verbs.LocalWrite | verbs.RemoteAtomic,
		1 << 20} {
		mr, err := e.PD.Alloc(4096, a)
		if err != nil {
			w.Errorf("access %#x: got %v, want nil", uint32(a), err)
			continue
		}
		w.Must(mr.Close())
	}
}

// testLocalAndRemoteKeys tests that the local key works only for this side, and the remote key only for peers. Each
// device checks the rights of both keys.
func testLocalAndRemoteKeys(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	readOnly, err := b.PD.Alloc(4096, verbs.RemoteRead)
	w.Must(err)
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Read, Local: sge(a, 0, 8), Remote: readOnly.Remote(0)})
	a.WaitSuccess(1)
	local, err := b.PD.Alloc(4096, verbs.LocalWrite)
	w.Must(err)
	b.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: local.SGE(0, 8), Remote: a.Remote(0)})
	b.WaitSuccess(2)
	// The local key of a region without remote rights is invalid for peers.
	expectStatus(a, verbs.SendWR{ID: 3, Opcode: verbs.Read, Local: sge(a, 0, 8),
		Remote: verbs.Remote{Addr: local.Addr(), RKey: local.LKey()}},
		verbs.RemoteAccessError)
	// A READ into memory without LocalWrite is also invalid.
	c, d := w.NewPair(verbs.QPInit{})
	mine, err := c.PD.Alloc(4096, verbs.RemoteRead)
	w.Must(err)
	expectStatus(c, verbs.SendWR{ID: 4, Opcode: verbs.Read, Local: mine.SGE(0, 8), Remote: d.Remote(0)},
		verbs.LocalProtection)
}

// bindWindow binds a window, and returns the status of the completion.
func bindWindow(e *suite.End, mw *verbs.MW, off, n int, access verbs.Access) verbs.Status {
	e.Helper()
	key := mw.NextKey()
	e.PostSend(verbs.SendWR{ID: 70, Opcode: verbs.BindWindow,
		Window: verbs.Bind{MW: mw, MR: e.MR, Offset: off, Length: n, Access: access, NewKey: key}})
	wc := e.WaitCompletion()
	if wc.Status == verbs.Success {
		mw.Bound(key)
	}
	return wc.Status
}

// testBindInvalidatesFormerKeys tests that each bind makes the requested key valid and the former keys invalid, even
// when their 8 bits wrap around.
func testBindInvalidatesFormerKeys(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	mw, err := b.PD.AllocMW()
	w.Must(err)
	index := mw.RKey() >> 8
	for i := range 300 {
		if s := bindWindow(b, mw, 0, 64, verbs.RemoteWrite|verbs.RemoteRead); s != verbs.Success {
			w.Fatalf("bind %d: got %v", i, s)
		}
		if mw.RKey()>>8 != index {
			w.Fatalf("bind %d: got key %#x, want a key of index %#x", i, mw.RKey(), index)
		}
		if i%50 == 0 || i > 250 && i < 260 {
			a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: sge(a, 0, 8),
				Remote: verbs.Remote{Addr: b.MR.Addr(), RKey: mw.RKey()}})
			a.WaitSuccess(1)
		}
		b.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.LocalInvalidate, InvalidateKey: mw.RKey()})
		b.WaitSuccess(2)
	}
	expectStatus(a, verbs.SendWR{ID: 3, Opcode: verbs.Write, Local: sge(a, 0, 8),
		Remote: verbs.Remote{Addr: b.MR.Addr(), RKey: mw.RKey()}},
		verbs.RemoteAccessError)
}

// testWindowLifecycle binds a window, sends the key to the peer with a fence, waits for an access by the peer, and
// invalidates the window. Afterwards the window can be bound again.
func testWindowLifecycle(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	mw, err := b.PD.AllocMW()
	w.Must(err)
	for i := range 5 {
		key := mw.NextKey()
		a.PostRecv(1, 0, 8)
		n, err := b.QP.PostSends([]verbs.SendWR{
			{ID: 2, Opcode: verbs.BindWindow, Window: verbs.Bind{MW: mw, MR: b.MR, Offset: 4096, Length: 4096,
				Access: verbs.RemoteWrite, NewKey: key}},
			{ID: 3, Opcode: verbs.Send, Flags: verbs.Fence | verbs.Signaled, Local: sge(b, 0, 8)},
		})
		if err != nil || n != 2 {
			w.Fatalf("PostSends: got %d, %v", n, err)
		}
		mw.Bound(key)
		a.WaitSuccess(1)
		b.WaitSuccess(3)
		want := a.Fill(0, 100, byte(i))
		b.PostRecv(4, 0, 8)
		a.PostSend(verbs.SendWR{ID: 5, Opcode: verbs.Write, Local: sge(a, 0, 100),
			Remote: verbs.Remote{Addr: b.MR.Addr() + 4096, RKey: key}})
		a.PostSend(verbs.SendWR{ID: 6, Opcode: verbs.SendInvalidate, InvalidateKey: key})
		a.WaitSuccess(5)
		a.WaitSuccess(6)
		if wc := b.WaitSuccess(4); wc.Flags&verbs.WithInvalidate == 0 || wc.Key != key {
			w.Errorf("completion: got %+v, want key %#x invalidated", wc, key)
		}
		w.MustEqual(b.MR.Bytes()[4096:4196], want)
		if err := b.MR.Close(); err == nil && i < 4 {
			b.MR, err = b.PD.Alloc(endMemorySize, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.BindWindows)
			w.Must(err)
		} else if err != nil {
			w.Errorf("Close of the region after the invalidation: got %v, want success", err)
		}
	}
}

// testWindowIsLimitedToRegion tests that a window can have no right that its region lacks, and no memory outside the
// region. A region with a window cannot be deregistered.
func testWindowIsLimitedToRegion(w *suite.Testbed) {
	for name, x := range map[string]struct {
		region verbs.Access
		off, n int
		want   verbs.Access
	}{
		"a region without BindWindows": {verbs.LocalWrite, 0, 64, verbs.RemoteRead},
		"writing without LocalWrite":   {verbs.BindWindows, 0, 64, verbs.RemoteWrite},
		"atomics without LocalWrite":   {verbs.BindWindows, 0, 64, verbs.RemoteAtomic},
		"one byte beyond the region":   {verbs.LocalWrite | verbs.BindWindows, 4095, 2, verbs.RemoteRead},
		"a range that begins outside":  {verbs.LocalWrite | verbs.BindWindows, 5000, 1, verbs.RemoteRead},
	} {
		e, _ := w.NewPair(verbs.QPInit{})
		mr, err := e.PD.Alloc(4096, x.region)
		w.Must(err)
		mw, err := e.PD.AllocMW()
		w.Must(err)
		wr := verbs.SendWR{Opcode: verbs.BindWindow, Flags: verbs.Signaled,
			Window: verbs.Bind{MW: mw, MR: mr, Offset: x.off, Length: x.n, Access: x.want, NewKey: mw.NextKey()}}
		if err := e.QP.PostSend(&wr); err == nil {
			if wc := e.WaitCompletion(); wc.Status != verbs.WindowBindError {
				w.Errorf("%s: got %v, want %v", name, wc.Status, verbs.WindowBindError)
			}
		} else if !errors.Is(err, syscall.EINVAL) {
			w.Errorf("%s: got %v, want EINVAL", name, err)
		}
		w.Must(mr.Close())
	}
	e, _ := w.NewPair(verbs.QPInit{})
	mw, err := e.PD.AllocMW()
	w.Must(err)
	if s := bindWindow(e, mw, 0, 64, verbs.RemoteRead); s != verbs.Success {
		w.Errorf("bind: got %v", s)
	}
	if err := e.MR.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a region with a window: got %v, want EBUSY", err)
	}
	w.Must(mw.Close())
	w.Must(e.MR.Close())
}

// testObjectsShareProtectionDomain tests that objects used together must belong to one protection domain.
func testObjectsShareProtectionDomain(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	other := w.NewEnd(verbs.QPInit{})
	expectStatus(a, verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: sge(other, 0, 8), Remote: b.Remote(0)},
		verbs.LocalProtection)
	a, b = w.NewPair(verbs.QPInit{})
	expectStatus(a, verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: sge(a, 0, 8), Remote: other.Remote(0)},
		verbs.RemoteAccessError)
	ev, err := w.Device.NextEvent(w.ShortContext())
	w.Must(err)
	if ev.Type != verbs.EventQPAccessError || ev.QP != b.QP {
		w.Errorf("event: got %+v, want %v of the target", ev, verbs.EventQPAccessError)
	}
}

// testGroupDeliversOnce tests that a queue pair receives a group's datagrams once, even if it attached twice. A second
// detach is an error, and so is an address that is not a group.
func testGroupDeliversOnce(w *suite.Testbed) {
	a, b := w.NewDatagramEnd(), w.NewDatagramEnd()
	group := verbs.GID{10: 0xff, 11: 0xff, 12: 239, 13: 7, 14: 8, 15: 9}
	w.Must(b.QP.Attach(group))
	w.Must(b.QP.Attach(group))
	g, err := w.Device.DefaultGID(1)
	w.Must(err)
	ah, err := a.PD.CreateAH(verbs.AHAttr{GID: group, SGIDIndex: g.Index})
	w.Must(err)
	for i := range 2 {
		b.PostRecv(uint64(i), 0, 100)
	}
	a.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.Send, Local: sge(a, 0, 8),
		To: verbs.Datagram{AH: ah, QPN: 0xffffff, QKey: verbs.DefaultQKey}})
	a.WaitSuccess(3)
	b.WaitSuccess(0)
	if n, _ := b.CQ.Poll(make([]verbs.WC, 1)); n != 0 {
		w.Error("datagram after two Attach calls: got it twice, want it once")
	}
	w.Must(b.QP.Detach(group))
	if err := b.QP.Detach(group); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("second Detach: got %v, want EINVAL", err)
	}
	if err := a.QP.Detach(group); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Detach of another group: got %v, want EINVAL", err)
	}
	if err := b.QP.Attach(g.GID); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Attach to an address that is not a group: got %v, want EINVAL", err)
	}
	rc := w.NewEnd(verbs.QPInit{})
	if err := rc.QP.Attach(group); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Attach of an RC queue pair: got %v, want EINVAL", err)
	}
	// A queue pair in a group cannot be destroyed.
	w.Must(b.QP.Attach(group))
	if err := b.QP.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close while attached: got %v, want EBUSY", err)
	}
	w.Must(b.QP.Detach(group))
	w.Must(b.QP.Close())
}

// testWrongQKeyIsDropped tests that a datagram with a wrong Q_Key is dropped. A Q_Key with the highest bit set selects
// the Q_Key of the sender's queue pair.
func testWrongQKeyIsDropped(w *suite.Testbed) {
	a, b := w.NewDatagramEnd(), w.NewDatagramEnd()
	to, ah := newAddressHandle(w, a, b)
	b.PostRecv(1, 0, 100)
	send := func(id uint64, key uint32, n int) {
		a.PostSend(verbs.SendWR{ID: id, Opcode: verbs.Send, Local: sge(a, 0, n),
			To: verbs.Datagram{AH: ah, QPN: to.QPN, QKey: key}})
		a.WaitSuccess(id)
	}
	send(2, to.QKey+1, 7)
	send(3, 0xffffffff, 8)
	if wc := b.WaitSuccess(1); wc.ByteLen != suite.GRHSize+8 {
		w.Errorf("receive: got %d bytes, want the datagram of 8", wc.ByteLen)
	}
}
