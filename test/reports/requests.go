package reports

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"
	"time"

	"verbena/test/suite"
	"verbena/uapi"
	"verbena/verbs"
)

// sge returns an element of n bytes of an End's memory.
func sge(e *suite.End, off, n int) verbs.SGE { return e.MR.SGE(off, n) }

// expectStatus posts a work request and waits for its completion, which must have the given status.
func expectStatus(e *suite.End, wr verbs.SendWR, want verbs.Status) {
	e.Helper()
	e.PostSend(wr)
	if wc := e.WaitCompletion(); wc.Status != want || wc.ID != wr.ID {
		e.Errorf("%v: got %v of work request %d, want %v of %d", wr.Opcode, wc.Status, wc.ID, want, wr.ID)
	}
}

// testZeroLengthRequest tests that a request of no bytes accesses no memory, so its keys are not checked. The peer
// still acknowledges the request, as for a keep-alive.
func testZeroLengthRequest(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	nowhere := verbs.Remote{Addr: 0, RKey: 0}
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Remote: nowhere})
	a.WaitSuccess(1)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Read, Remote: nowhere})
	if wc := a.WaitSuccess(2); wc.ByteLen != 0 {
		w.Errorf("READ of 0 bytes: got length %d, want 0", wc.ByteLen)
	}
	// The list contains an element of no bytes.
	a.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.Write, Local: verbs.SGE{Addr: 1, LKey: 12345}, Remote: nowhere})
	a.WaitSuccess(3)
	w.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 4}))
	a.PostSend(verbs.SendWR{ID: 5, Opcode: verbs.WriteWithImm, Imm: 9, Remote: nowhere})
	a.WaitSuccess(5)
	if wc := b.WaitSuccess(4); wc.ByteLen != 0 || wc.Imm != 9 {
		w.Errorf("WRITE of 0 bytes with immediate data: got %+v, want length 0 and the immediate data", wc)
	}
	w.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 6}))
	a.PostSend(verbs.SendWR{ID: 7, Opcode: verbs.Send})
	a.WaitSuccess(7)
	if wc := b.WaitSuccess(6); wc.ByteLen != 0 {
		w.Errorf("SEND of 0 bytes: got length %d, want 0", wc.ByteLen)
	}
	// A peer without the rights refuses even such a request.
	c, d := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	p := w.Config.Path
	p.Access = verbs.RemoteRead
	w.ConnectVia(c, d, p)
	expectStatus(c, verbs.SendWR{ID: 8, Opcode: verbs.Write, Remote: nowhere}, verbs.RemoteInvalid)
}

// testEmptyElements tests that elements of no bytes in a list are ignored.
func testEmptyElements(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{SendSGEs: 4, RecvSGEs: 4})
	want := a.Fill(0, 8, 3)
	none := verbs.SGE{Addr: 7, LKey: 0xdead}
	w.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 1, List: []verbs.SGE{none, sge(b, 0, 3), none, sge(b, 3, 100)}}))
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, List: []verbs.SGE{sge(a, 0, 5), none, sge(a, 5, 3), none}})
	a.WaitSuccess(2)
	if wc := b.WaitSuccess(1); wc.ByteLen != 8 {
		w.Errorf("got %d bytes, want 8", wc.ByteLen)
	}
	w.MustEqual(b.MR.Bytes()[:8], want)
}

// testEmptyDatagram tests that a datagram of no bytes arrives with its header.
func testEmptyDatagram(w *suite.Testbed) {
	a, b := w.NewDatagramEnd(), w.NewDatagramEnd()
	to, ah := newAddressHandle(w, a, b)
	b.PostRecv(1, 0, suite.GRHSize)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, To: verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}})
	a.WaitSuccess(2)
	if wc := b.WaitSuccess(1); wc.ByteLen != suite.GRHSize || wc.Flags&verbs.WithGRH == 0 {
		w.Errorf("receive: got %+v, want %d bytes with a header", wc, suite.GRHSize)
	}
}

// newAddressHandle returns an address handle of one End for another.
func newAddressHandle(w *suite.Testbed, from, to *suite.End) (verbs.Endpoint, *verbs.AH) {
	w.Helper()
	ep, err := to.QP.LocalVia(w.Config.Path)
	w.Must(err)
	g, err := w.Device.DefaultGID(1)
	w.Must(err)
	index := g.Index
	if i := w.Config.Path.SGIDIndex; i != 0 {
		index = max(i, 0)
	}
	ah, err := from.PD.CreateAH(verbs.AHAttr{GID: ep.GID, SGIDIndex: index})
	w.Must(err)
	return ep, ah
}

// testShortDatagramReceive tests that a datagram larger than the receive is dropped. The receive stays posted for the
// next datagram, and the queue pair continues.
func testShortDatagramReceive(w *suite.Testbed) {
	a, b := w.NewDatagramEnd(), w.NewDatagramEnd()
	to, ah := newAddressHandle(w, a, b)
	dest := verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}
	b.PostRecv(1, 0, suite.GRHSize+10)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: sge(a, 0, 11), To: dest})
	a.WaitSuccess(2)
	a.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.Send, Local: sge(a, 0, 10), To: dest})
	a.WaitSuccess(3)
	if wc := b.WaitSuccess(1); wc.ByteLen != suite.GRHSize+10 {
		w.Errorf("receive: got %d bytes, want the second datagram of %d", wc.ByteLen, suite.GRHSize+10)
	}
	q, err := b.QP.Query()
	w.Must(err)
	if q.State != verbs.RTS {
		w.Errorf("state of the queue pair: got %v, want RTS", q.State)
	}
}

// testImmediateWithoutBuffer tests that a WRITE with immediate data consumes a receive but does not access its memory.
func testImmediateWithoutBuffer(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	want := a.Fill(0, 5000, 1)
	w.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 1})) // a receive without elements
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.WriteWithImm, Local: sge(a, 0, 5000), Remote: b.Remote(0)})
	a.WaitSuccess(2)
	b.WaitSuccess(1)
	w.MustEqual(b.MR.Bytes()[:5000], want)
	w.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 3, Local: verbs.SGE{Addr: 8, Length: 4, LKey: 0xbad}})) // with a wrong key
	a.PostSend(verbs.SendWR{ID: 4, Opcode: verbs.WriteWithImm, Local: sge(a, 0, 5000), Remote: b.Remote(0)})
	a.WaitSuccess(4)
	b.WaitSuccess(3)
}

// testImmediateValue tests that the completion contains the written length and all 32 bits of the immediate data.
func testImmediateValue(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	for _, imm := range []uint32{0x89abcdef, 0xffffffff, 0, 0x80000000} {
		b.PostRecv(1, 8192, 64)
		a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.WriteWithImm, Local: sge(a, 0, 4097), Remote: b.Remote(0), Imm: imm})
		a.WaitSuccess(2)
		if wc := b.WaitSuccess(1); wc.Imm != imm || wc.ByteLen != 4097 || wc.Flags&verbs.WithImm == 0 ||
			wc.Opcode != verbs.WCReceiveWriteWith {
			w.Errorf("completion: got %+v, want immediate data %#x and 4097 bytes", wc, imm)
		}
		b.PostRecv(3, 8192, 64)
		a.PostSend(verbs.SendWR{ID: 4, Opcode: verbs.SendWithImm, Imm: imm})
		a.WaitSuccess(4)
		if wc := b.WaitSuccess(3); wc.Imm != imm || wc.ByteLen != 0 || wc.Flags&verbs.WithImm == 0 {
			w.Errorf("completion: got %+v, want immediate data %#x", wc, imm)
		}
	}
}

// testCompletionLengths tests that the completions of READs and atomic operations contain the returned length, and that
// receives have the correct opcodes.
func testCompletionLengths(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{SendSGEs: 2})
	for _, n := range []int{1, 4096, 50000} {
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Read, List: []verbs.SGE{sge(a, 0, n-1), sge(a, 60000, 1)},
			Remote: b.Remote(0)})
		if wc := a.WaitSuccess(1); int(wc.ByteLen) != n || wc.Opcode != verbs.WCRead {
			w.Errorf("READ: got %v of %d bytes, want %d bytes", wc.Opcode, wc.ByteLen, n)
		}
	}
	for op, want := range map[verbs.Opcode]uapi.WCOpcode{verbs.FetchAdd: verbs.WCFetchAdd,
		verbs.CompareSwap: verbs.WCCompareSwap} {
		a.PostSend(verbs.SendWR{ID: 2, Opcode: op, Local: sge(a, 0, 8), Remote: b.Remote(0)})
		if wc := a.WaitSuccess(2); wc.ByteLen != 8 || wc.Opcode != want {
			w.Errorf("%v: got %v of %d bytes, want 8", op, wc.Opcode, wc.ByteLen)
		}
	}
}

// testLengthOverflow tests that lengths with a sum of more than 32 bits are too long, and are not reduced modulo 2^32.
func testLengthOverflow(w *suite.Testbed) {
	for _, op := range []verbs.Opcode{verbs.Send, verbs.Write, verbs.Read} {
		a, b := w.NewPair(verbs.QPInit{SendSGEs: 3})
		half := verbs.SGE{Addr: a.MR.Addr(), Length: 1 << 31, LKey: a.MR.LKey()}
		b.PostRecv(1, 0, 64)
		wr := verbs.SendWR{ID: 2, Opcode: op, Flags: verbs.Signaled, List: []verbs.SGE{half, half, sge(a, 0, 8)},
			Remote: b.Remote(0)}
		if err := a.QP.PostSend(&wr); err == nil {
			if wc := a.WaitCompletion(); wc.Status != verbs.LocalLengthError {
				w.Errorf("%v: got %v, want %v", op, wc.Status, verbs.LocalLengthError)
			}
		} else if !errors.Is(err, syscall.EINVAL) {
			w.Errorf("%v: got %v, want EINVAL", op, err)
		}
		if q, err := b.QP.Query(); err != nil || q.State != verbs.RTS {
			w.Errorf("%v: state of the peer: got %v and error %v, want RTS, because no request is sent", op, q.State, err)
		}
	}
}

// testLongReceive tests that a receive may be longer than the longest message.
func testLongReceive(w *suite.Testbed) {
	const part, parts = 66 << 20, 32 // the total exceeds 2^31 bytes
	a, b := w.NewPair(verbs.QPInit{RecvSGEs: parts})
	big, err := b.PD.Alloc(part, verbs.LocalWrite|verbs.OnDemand)
	w.Must(err)
	var list []verbs.SGE
	for range parts {
		list = append(list, big.SGE(0, part))
	}
	w.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 1, List: list}))
	want := a.Fill(0, 100, 1)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: sge(a, 0, 100)})
	a.WaitSuccess(2)
	if wc := b.WaitSuccess(1); wc.ByteLen != 100 {
		w.Errorf("got %d bytes, want 100", wc.ByteLen)
	}
	w.MustEqual(big.Bytes()[:100], want)
	w.Must(big.Close())
}

// testRangeBeyondEnd tests that an address range that wraps around, or that ends one byte too late, is refused.
func testRangeBeyondEnd(w *suite.Testbed) {
	for _, r := range []func(b *suite.End) verbs.Remote{
		func(b *suite.End) verbs.Remote { return verbs.Remote{Addr: ^uint64(0) - 3, RKey: b.MR.RKey()} },
		func(b *suite.End) verbs.Remote { return b.Remote(b.MR.Len() - 7) },
		func(b *suite.End) verbs.Remote { return verbs.Remote{Addr: b.MR.Addr() - 1, RKey: b.MR.RKey()} },
		func(b *suite.End) verbs.Remote { return verbs.Remote{Addr: b.MR.Addr() + 1<<32, RKey: b.MR.RKey()} },
	} {
		for _, op := range []verbs.Opcode{verbs.Write, verbs.Read} {
			a, b := w.NewPair(verbs.QPInit{})
			expectStatus(a, verbs.SendWR{ID: 1, Opcode: op, Local: sge(a, 0, 8), Remote: r(b)}, verbs.RemoteAccessError)
		}
	}
}

// testUnalignedAtomic tests that an atomic operation on an address that is not a multiple of 8 is an invalid request.
func testUnalignedAtomic(w *suite.Testbed) {
	for _, op := range []verbs.Opcode{verbs.FetchAdd, verbs.CompareSwap} {
		a, b := w.NewPair(verbs.QPInit{})
		expectStatus(a, verbs.SendWR{ID: 1, Opcode: op, Local: sge(a, 0, 8), Remote: b.Remote(4), Swap: 1},
			verbs.RemoteInvalid)
		if !bytes.Equal(b.MR.Bytes()[:16], make([]byte, 16)) {
			w.Errorf("%v: memory: got a change, want none", op)
		}
	}
}

// testCompareSwap tests that all operands have the byte order of their host, and that memory with an unequal value
// stays unchanged.
func testCompareSwap(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	at := func(e *suite.End) []byte { return e.MR.Bytes()[:8] }
	const old, fresh = 0x0102030405060708, 0xf1f2f3f4f5f6f7f8
	binary.NativeEndian.PutUint64(at(b), old)
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.CompareSwap, Local: sge(a, 0, 8), Remote: b.Remote(0), CompareAdd: 5,
		Swap: fresh})
	a.WaitSuccess(1)
	if got, there := binary.NativeEndian.Uint64(at(a)), binary.NativeEndian.Uint64(at(b)); got != old || there != old {
		w.Errorf("compare and swap of an unequal value: got old value %#x and new value %#x, want %#x for both", got, there,
			uint64(old))
	}
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.CompareSwap, Local: sge(a, 0, 8), Remote: b.Remote(0), CompareAdd: old,
		Swap: fresh})
	a.WaitSuccess(2)
	if got, there := binary.NativeEndian.Uint64(at(a)), binary.NativeEndian.Uint64(at(b)); got != old || there != fresh {
		w.Errorf("compare and swap of an equal value: got old value %#x and new value %#x, want %#x and %#x", got, there,
			uint64(old), uint64(fresh))
	}
	// The sum wraps around.
	a.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.FetchAdd, Local: sge(a, 0, 8), Remote: b.Remote(0),
		CompareAdd: ^uint64(0)})
	a.WaitSuccess(3)
	if there := binary.NativeEndian.Uint64(at(b)); there != fresh-1 {
		w.Errorf("sum: got %#x, want %#x", there, uint64(fresh-1))
	}
}

// testFence tests that a fenced WRITE does not overtake the READ before it.
func testFence(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{})
	const n = 20000
	for i := range 20 {
		want := bytes.Clone(b.Fill(0, n, byte(i)))
		a.Fill(n, n, byte(i+100))
		n, err := a.QP.PostSends([]verbs.SendWR{
			{ID: 1, Opcode: verbs.Read, Flags: verbs.Signaled, Local: sge(a, 0, n), Remote: b.Remote(0)},
			{ID: 2, Opcode: verbs.Write, Flags: verbs.Signaled | verbs.Fence, Local: sge(a, n, n), Remote: b.Remote(0)},
		})
		if err != nil || n != 2 {
			w.Fatalf("PostSends: got %d, %v", n, err)
		}
		a.WaitSuccess(1)
		a.WaitSuccess(2)
		w.MustEqual(a.MR.Bytes()[:len(want)], want)
	}
}

// testFullQueueRefusesRest tests a list of requests that does not fit into the queue. The requests before the first
// rejected request are queued and executed, and the other requests are not.
func testFullQueueRefusesRest(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{SendWRs: 4})
	room := a.QP.Init().SendWRs
	wrs := make([]verbs.SendWR, room+3)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.Send, Flags: verbs.Signaled}
	}
	n, err := a.QP.PostSends(wrs) // the peer has no receive, so no request completes
	if n != room || !errors.Is(err, verbs.ErrQueueFull) {
		w.Fatalf("got %d, %v, want %d, %v", n, err, room, verbs.ErrQueueFull)
	}
	for i := range n {
		w.Must(b.QP.PostRecv(&verbs.RecvWR{ID: uint64(i)}))
	}
	for i := range n {
		a.WaitSuccess(uint64(i))
		b.WaitSuccess(uint64(i))
	}
	// The next signalled request frees the slots of unsignalled requests.
	for range 3 {
		for i := range room {
			f := verbs.SendFlags(0)
			if i == room-1 {
				f = verbs.Signaled
			}
			w.Must(a.QP.PostSend(&verbs.SendWR{ID: 9, Opcode: verbs.Write, Flags: f, Local: sge(a, 0, 8), Remote: b.Remote(0)}))
		}
		a.WaitSuccess(9)
	}
}

// testBadRequestEndsList tests a bad request in the middle of a list. Only this request is refused, and the earlier
// requests are executed.
func testBadRequestEndsList(w *suite.Testbed) {
	a, b := w.NewPair(verbs.QPInit{Inline: 16})
	b.PostRecv(1, 0, 64)
	n, err := a.QP.PostSends([]verbs.SendWR{
		{ID: 2, Opcode: verbs.Send, Flags: verbs.Signaled, Local: sge(a, 0, 8)},
		{ID: 3, Opcode: verbs.Send, Flags: verbs.Signaled, Inline: make([]byte, 4096)},
		{ID: 4, Opcode: verbs.Send, Flags: verbs.Signaled, Local: sge(a, 0, 8)},
	})
	if n != 1 || !errors.Is(err, syscall.EINVAL) {
		w.Errorf("got %d, %v, want 1, EINVAL", n, err)
	}
	a.WaitSuccess(2)
	b.WaitSuccess(1)
	// The same result is required if the device detects the error only during execution.
	b.PostRecv(5, 0, 64)
	n, err = a.QP.PostSends([]verbs.SendWR{
		{ID: 6, Opcode: verbs.Send, Flags: verbs.Signaled, Local: sge(a, 0, 8)},
		{ID: 7, Opcode: verbs.Send, Local: verbs.SGE{Addr: a.MR.Addr(), Length: 8, LKey: 0xbad}},
		{ID: 8, Opcode: verbs.Send, Local: sge(a, 0, 8)},
	})
	if n != 3 {
		w.Fatalf("got %d, %v", n, err)
	}
	a.WaitSuccess(6)
	b.WaitSuccess(5)
	for _, want := range []struct {
		id     uint64
		status verbs.Status
	}{{7, verbs.LocalProtection}, {8, verbs.Flushed}} { // failed requests complete, signalled or not
		if wc := a.WaitCompletion(); wc.ID != want.id || wc.Status != want.status {
			w.Errorf("completion: got %v of work request %d, want %v of %d", wc.Status, wc.ID, want.status, want.id)
		}
	}
}

// testInlineCapacity tests that a device either refuses a requested size of inline data or supports the size that it
// reports.
func testInlineCapacity(w *suite.Testbed) {
	e := w.NewEnd(verbs.QPInit{})
	n := 64
	for ; n < 1<<20; n *= 2 {
		qp, err := e.PD.CreateQP(verbs.QPInit{SendCQ: e.CQ, Inline: n})
		if errors.Is(err, syscall.EINVAL) {
			break
		}
		w.Must(err)
		if got := qp.Init().Inline; got < n {
			w.Errorf("CreateQP with %d bytes inline: got %d, want at least as many or an error", n, got)
		}
		w.Must(qp.Close())
	}
	if n == 64 || n == 1<<20 {
		w.Fatalf("CreateQP with %d bytes inline: got success, want a lower limit", n)
	}
	a, b := w.NewPair(verbs.QPInit{Inline: 64})
	most := a.QP.Init().Inline
	want := bytes.Repeat([]byte{7}, most)
	b.PostRecv(1, 0, most)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Inline: want})
	a.WaitSuccess(2)
	b.WaitSuccess(1)
	w.MustEqual(b.MR.Bytes()[:most], want)
	if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, most+1)}); !errors.Is(err,
		syscall.EINVAL) {
		w.Errorf("post of %d bytes inline: got %v, want EINVAL", most+1, err)
	}
	if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send,
		List: make([]verbs.SGE, a.QP.Init().SendSGEs+1)}); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("post of too many elements: got %v, want EINVAL", err)
	}
}

// testPSNWrap tests that sequence numbers wrap around at 24 bits, in requests, acknowledgements and READs.
func testPSNWrap(w *suite.Testbed) {
	for _, psn := range []uint32{0xffffff, 0xfffff0, 0x7fffff, 0x7ffff0} {
		a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
		connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.SendPSN, q.RecvPSN = psn, psn })
		for i := range 4 {
			want := a.Fill(0, 30000, byte(i))
			a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: sge(a, 0, 30000), Remote: b.Remote(0)})
			a.WaitSuccess(1)
			w.MustEqual(b.MR.Bytes()[:30000], want)
			a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Read, Local: sge(a, 32000, 30000), Remote: b.Remote(0)})
			a.WaitSuccess(2)
			w.MustEqual(a.MR.Bytes()[32000:62000], want)
		}
	}
	// The device ignores the upper bits of a sequence number.
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.SendPSN |= 0xab000000 })
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: sge(a, 0, 8), Remote: b.Remote(0)})
	a.WaitSuccess(1)
}

// connectStepwise connects two Ends step by step. change modifies the attributes of both Ends before they are passed to
// the device.
func connectStepwise(w *suite.Testbed, a, b *suite.End, change func(*verbs.QPAttr)) {
	w.Helper()
	for _, x := range [][2]*suite.End{{a, b}, {b, a}} {
		e, peer := x[0], x[1]
		q := rcAttributes(w, e, peer)
		if change != nil {
			change(&q)
		}
		modifyTo(w, e, verbs.Init, q)
		modifyTo(w, e, verbs.RTR, q)
		modifyTo(w, e, verbs.RTS, q)
	}
}

// rcAttributes returns the attributes of a queue pair of a reliable connection for all transitions.
func rcAttributes(w *suite.Testbed, e, peer *suite.End) verbs.QPAttr {
	w.Helper()
	to, err := peer.QP.LocalVia(w.Config.Path)
	w.Must(err)
	g, err := w.Device.DefaultGID(1)
	w.Must(err)
	index := g.Index
	if i := w.Config.Path.SGIDIndex; i != 0 {
		index = max(i, 0)
	}
	return verbs.QPAttr{
		Port: 1, Access: verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic, AH: verbs.AHAttr{GID: to.GID,
			SGIDIndex: index},
		PathMTU: 3, DestQPN: to.QPN, MaxPeerReads: 4, MinRNRTimer: 1, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxReads: 4,
		QKey: verbs.DefaultQKey,
	}
}

// rcAttrMasks holds the attributes of each transition of a reliable connection.
var rcAttrMasks = map[verbs.QPState]verbs.AttrMask{
	verbs.Init: verbs.AttrState | verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess,
	verbs.RTR: verbs.AttrState | verbs.AttrAH | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRecvPSN |
		verbs.AttrMaxPeerReads | verbs.AttrMinRNRTimer,
	verbs.RTS: verbs.AttrState | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrSendPSN |
		verbs.AttrMaxReads,
}

func modifyTo(w *suite.Testbed, e *suite.End, to verbs.QPState, q verbs.QPAttr) {
	w.Helper()
	q.State = to
	w.Must(e.QP.Modify(q, rcAttrMasks[to]))
}

// testInfiniteRNRRetry tests that 7 RNR retries mean an infinite number, and that smaller numbers are counted.
func testInfiniteRNRRetry(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, nil)
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: sge(a, 0, 8)})
	time.Sleep(30 * time.Millisecond) // many times the timer of 0.01 ms
	b.PostRecv(2, 0, 8)
	a.WaitSuccess(1)
	b.WaitSuccess(2)
	a, b = w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.RNRRetry = 6 })
	expectStatus(a, verbs.SendWR{ID: 3, Opcode: verbs.Send, Local: sge(a, 0, 8)}, verbs.RNRRetryExceeded)
}

// testLongestRNRTimer tests that timer code 0 is the longest timer, 655.36 ms.
func testLongestRNRTimer(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.MinRNRTimer = 0 })
	begin := time.Now()
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: sge(a, 0, 8)})
	time.Sleep(10 * time.Millisecond)
	b.PostRecv(2, 0, 8)
	a.WaitSuccess(1)
	b.WaitSuccess(2)
	if d := time.Since(begin); d < 640*time.Millisecond {
		w.Errorf("retransmission: got it after %v, want 655 ms", d)
	}
}

// testRetriesWithoutPeer tests that a queue pair without a peer runs out of retries, and reports no other error.
func testRetriesWithoutPeer(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.Timeout, q.RetryCount = 8, 1 })
	w.Must(b.QP.Close())
	expectStatus(a, verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: sge(a, 0, 8), Remote: b.Remote(0)},
		verbs.RetryExceeded)
	// A timeout of 0 disables the timer. Without a timeout, the request stays outstanding until the queue pair is
	// flushed.
	a, b = w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.Timeout, q.RetryCount = 0, 1 })
	w.Must(b.QP.Close())
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: sge(a, 0, 8), Remote: b.Remote(0)})
	time.Sleep(50 * time.Millisecond)
	if n, err := a.CQ.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		w.Errorf("completions without a timeout: got %d and error %v, want none", n, err)
	}
	w.Must(a.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
	if wc := a.WaitCompletion(); wc.ID != 2 || wc.Status != verbs.Flushed {
		w.Errorf("completion: got %v of work request %d, want it flushed", wc.Status, wc.ID)
	}
}

// testQPRightsLimitRequests tests that a request not permitted by the queue pair is an invalid request, regardless of
// the rights of the memory.
func testQPRightsLimitRequests(w *suite.Testbed) {
	for op, without := range map[verbs.Opcode]verbs.Access{
		verbs.Read: verbs.RemoteWrite, verbs.Write: verbs.RemoteRead, verbs.FetchAdd: verbs.RemoteRead | verbs.RemoteWrite,
	} {
		a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
		connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.Access = without })
		expectStatus(a, verbs.SendWR{ID: 1, Opcode: op, Local: sge(a, 0, 8), Remote: b.Remote(0)}, verbs.RemoteInvalid)
	}
}

// testAllReadsAreAnswered tests that the peer answers the agreed number of outstanding READs, at any rate of posts.
func testAllReadsAreAnswered(w *suite.Testbed) {
	a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.MaxReads, q.MaxPeerReads = 1, 1 })
	for range 20 {
		w.Must(a.QP.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.Read, Flags: verbs.Signaled, Local: sge(a, 0, 9000),
			Remote: b.Remote(0)}))
	}
	for range 20 {
		a.WaitSuccess(1)
	}
	// With a depth of 0, READs are refused at once, because they would wait forever.
	a, b = w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.MaxReads = 0 })
	expectStatus(a, verbs.SendWR{ID: 2, Opcode: verbs.Read, Local: sge(a, 0, 8), Remote: b.Remote(0)}, verbs.LocalQPError)
	a, b = w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
	connectStepwise(w, a, b, func(q *verbs.QPAttr) { q.MaxPeerReads = 0 })
	expectStatus(a, verbs.SendWR{ID: 3, Opcode: verbs.Read, Local: sge(a, 0, 8), Remote: b.Remote(0)}, verbs.RemoteInvalid)
}
