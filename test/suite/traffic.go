package suite

import (
	"bytes"
	"errors"
	"syscall"

	"verbena/uapi"
	"verbena/verbs"
)

var messageSizes = []int{1, 64, 4096, 4097, 65536, 300000}

func (w *Testbed) testSend() {
	a, b := w.NewPair(verbs.QPInit{})
	for i, n := range messageSizes {
		want := a.Fill(0, n, byte(i))
		b.PostRecv(7, 0, endMemorySize)
		a.PostSend(verbs.SendWR{ID: 8, Opcode: verbs.Send, Local: a.MR.SGE(0, n)})
		if wc := a.WaitSuccess(8); wc.Opcode != verbs.WCSend {
			w.Errorf("opcode: got %v, want %v", wc.Opcode, verbs.WCSend)
		}
		if wc := b.WaitSuccess(7); wc.Opcode != verbs.WCReceive || int(wc.ByteLen) != n {
			w.Errorf("receive: got %v of %d bytes, want %v of %d", wc.Opcode, wc.ByteLen, verbs.WCReceive, n)
		}
		w.MustEqual(b.MR.Bytes()[:n], want)
	}
	a.Close()
	b.Close()
}

func (w *Testbed) testWrite() {
	a, b := w.NewPair(verbs.QPInit{})
	for i, n := range messageSizes {
		want := a.Fill(0, n, byte(i))
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: a.MR.SGE(0, n), Remote: b.Remote(9)})
		a.WaitSuccess(1)
		w.MustEqual(b.MR.Bytes()[9:9+n], want)
	}
}

func (w *Testbed) testRead() {
	a, b := w.NewPair(verbs.QPInit{})
	for i, n := range messageSizes {
		want := b.Fill(3, n, byte(i))
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Read, Local: a.MR.SGE(0, n), Remote: b.Remote(3)})
		if wc := a.WaitSuccess(1); wc.Opcode != verbs.WCRead {
			w.Errorf("opcode: got %v, want %v", wc.Opcode, verbs.WCRead)
		}
		w.MustEqual(a.MR.Bytes()[:n], want)
	}
}

func (w *Testbed) testImmediate() {
	a, b := w.NewPair(verbs.QPInit{})
	want := a.Fill(0, 100, 1)
	b.PostRecv(1, 0, 200)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.SendWithImm, Local: a.MR.SGE(0, 100), Imm: 0x01020304})
	a.WaitSuccess(2)
	if wc := b.WaitSuccess(1); wc.Flags&verbs.WithImm == 0 || wc.Imm != 0x01020304 {
		w.Errorf("completion of a SEND: got immediate data %#x and flags %v", wc.Imm, wc.Flags)
	}
	w.MustEqual(b.MR.Bytes()[:100], want)
	b.PostRecv(3, 0, 200)
	a.PostSend(verbs.SendWR{ID: 4, Opcode: verbs.WriteWithImm, Local: a.MR.SGE(0, 100), Remote: b.Remote(500), Imm: 77})
	a.WaitSuccess(4)
	if wc := b.WaitSuccess(3); wc.Opcode != verbs.WCReceiveWriteWith || wc.Imm != 77 || wc.ByteLen != 100 {
		w.Errorf("WRITE: got %+v", wc)
	}
	w.MustEqual(b.MR.Bytes()[500:600], want)
}

func (w *Testbed) testInline() {
	a, b := w.NewPair(verbs.QPInit{Inline: 100})
	if n := a.QP.Init().Inline; n < 100 {
		w.Fatalf("CreateQP with 100 bytes inline: got %d, want at least 100", n)
	}
	text := []byte("a message that is copied when it is posted")
	b.PostRecv(1, 0, 100)
	kept := bytes.Clone(text)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Inline: text})
	clear(text)
	a.WaitSuccess(2)
	b.WaitSuccess(1)
	w.MustEqual(b.MR.Bytes()[:len(kept)], kept)
	if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, 1<<20)}); !errors.Is(err,
		syscall.EINVAL) {
		w.Errorf("post of 1 MB inline: got %v, want EINVAL", err)
	}
}

func (w *Testbed) testAtomics() {
	a, b := w.NewPair(verbs.QPInit{})
	word := func(m *verbs.MR) *uint64 { return firstWord(m.Bytes()) }
	*word(b.MR) = 40
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.FetchAdd, Local: a.MR.SGE(0, 8), Remote: b.Remote(0), CompareAdd: 2})
	a.WaitSuccess(1)
	if *word(a.MR) != 40 || *word(b.MR) != 42 {
		w.Errorf("fetch and add: got old value %d and new value %d, want 40 and 42", *word(a.MR), *word(b.MR))
	}
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.CompareSwap, Local: a.MR.SGE(0, 8), Remote: b.Remote(0), CompareAdd: 42,
		Swap: 7})
	a.WaitSuccess(2)
	if *word(a.MR) != 42 || *word(b.MR) != 7 {
		w.Errorf("compare and swap: got old value %d and new value %d, want 42 and 7", *word(a.MR), *word(b.MR))
	}
}

func (w *Testbed) testAtomicWrite() {
	a, b := w.NewPair(verbs.QPInit{Inline: 8})
	want := []byte("8 bytes!")
	wr := verbs.SendWR{ID: 1, Opcode: verbs.AtomicWrite, Inline: want, Remote: b.Remote(64)}
	if w.Config.Without[AtomicWrite] {
		a.expectRefused(wr)
		return
	}
	a.PostSend(wr)
	a.WaitSuccess(1)
	w.MustEqual(b.MR.Bytes()[64:72], want)
}

func (w *Testbed) testFlush() {
	a, b := w.NewPair(verbs.QPInit{})
	if w.Config.Without[Flush] {
		a.expectRefused(verbs.SendWR{Opcode: verbs.FlushMemory, Remote: b.Remote(0),
			Flush: verbs.Flush{Length: 64, Placement: uapi.FlushGlobal}})
		return
	}
	mr, err := b.PD.Alloc(4096, verbs.LocalWrite|verbs.RemoteWrite|uapi.AccessFlushGlobal)
	w.Must(err)
	a.Fill(0, 64, 3)
	a.Must(a.QP.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: a.MR.SGE(0, 64),
		Remote: verbs.Remote{Addr: mr.Addr(), RKey: mr.RKey()}}))
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.FlushMemory, Remote: verbs.Remote{Addr: mr.Addr(), RKey: mr.RKey()},
		Flush: verbs.Flush{Length: 64, Placement: uapi.FlushGlobal, Level: uapi.FlushRange}})
	a.WaitSuccess(2)
	w.MustEqual(mr.Bytes()[:64], a.MR.Bytes()[:64])
}

func (w *Testbed) testSGELists() {
	a, b := w.NewPair(verbs.QPInit{SendSGEs: 4, RecvSGEs: 4})
	a.Fill(0, 300, 1)
	b.Must(b.QP.PostRecv(&verbs.RecvWR{ID: 1, Local: b.MR.SGE(0, 10),
		List: []verbs.SGE{b.MR.SGE(1000, 100), b.MR.SGE(2000, 300)}}))
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, List: []verbs.SGE{a.MR.SGE(200, 100), a.MR.SGE(0, 100)}})
	a.WaitSuccess(2)
	if wc := b.WaitSuccess(1); wc.ByteLen != 200 {
		w.Errorf("got %d bytes, want 200", wc.ByteLen)
	}
	want := append(bytes.Clone(a.MR.Bytes()[200:300]), a.MR.Bytes()[:100]...)
	m := b.MR.Bytes()
	w.MustEqual(append(append(bytes.Clone(m[:10]), m[1000:1100]...), m[2000:2090]...), want)
	if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, List: make([]verbs.SGE, 1000)}); !errors.Is(err,
		syscall.EINVAL) {
		w.Errorf("post of 1000 elements: got %v, want EINVAL", err)
	}
}

func (w *Testbed) testPostSends() {
	a, b := w.NewPair(verbs.QPInit{})
	var wrs [20]verbs.SendWR
	for i := range wrs {
		b.PostRecv(uint64(i), 1000*i, 1000)
		a.Fill(1000*i, 1000, byte(i))
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.Send, Flags: verbs.Signaled, Local: a.MR.SGE(1000*i, 1000)}
	}
	n, err := a.QP.PostSends(wrs[:])
	if err != nil || n != len(wrs) {
		w.Fatalf("PostSends: got %d, %v", n, err)
	}
	for i := range wrs {
		a.WaitSuccess(uint64(i))
		b.WaitSuccess(uint64(i))
	}
	w.MustEqual(b.MR.Bytes()[:20000], a.MR.Bytes()[:20000])
}

func (w *Testbed) testUnreliable() {
	a, b := w.NewPair(verbs.QPInit{Type: verbs.UC})
	want := a.Fill(0, 5000, 4)
	b.PostRecv(1, 0, 5000)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.MR.SGE(0, 5000)})
	a.WaitSuccess(2)
	b.WaitSuccess(1)
	w.MustEqual(b.MR.Bytes()[:5000], want)
}

// NewDatagramEnd returns an End with a UD queue pair in RTS.
func (w *Testbed) NewDatagramEnd() *End {
	e := w.NewEnd(verbs.QPInit{Type: verbs.UD})
	w.Must(e.QP.Activate(w.Config.Path))
	return e
}

// GRHSize is the size of the global route header before a datagram.
const GRHSize = 40

func (w *Testbed) testDatagrams() {
	a, b := w.NewDatagramEnd(), w.NewDatagramEnd()
	to, err := b.QP.LocalVia(w.Config.Path)
	w.Must(err)
	g, err := w.Device.DefaultGID(1)
	w.Must(err)
	index := g.Index
	if w.Config.Path.SGIDIndex != 0 {
		index = max(w.Config.Path.SGIDIndex, 0)
	}
	ah, err := a.PD.CreateAH(verbs.AHAttr{GID: to.GID, SGIDIndex: index})
	w.Must(err)
	want := a.Fill(0, 200, 9)
	b.PostRecv(1, 0, GRHSize+200)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.MR.SGE(0, 200),
		To: verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}})
	a.WaitSuccess(2)
	wc := b.WaitSuccess(1)
	if wc.ByteLen != GRHSize+200 || wc.SrcQPN != a.QP.Num() {
		w.Errorf("receive: got %d bytes of QP %d, want %d of %d", wc.ByteLen, wc.SrcQPN, GRHSize+200, a.QP.Num())
	}
	w.MustEqual(b.MR.Bytes()[GRHSize:GRHSize+200], want)
	// The reply goes to the sender named by the datagram.
	back, err := b.PD.AddressOf(&wc, b.MR.Bytes()[:GRHSize], index)
	w.Must(err)
	a.PostRecv(3, 0, GRHSize+200)
	b.PostSend(verbs.SendWR{ID: 4, Opcode: verbs.Send, Local: b.MR.SGE(GRHSize, 200),
		To: verbs.Datagram{AH: back, QPN: wc.SrcQPN, QKey: to.QKey}})
	b.WaitSuccess(4)
	a.WaitSuccess(3)
	w.MustEqual(a.MR.Bytes()[GRHSize:GRHSize+200], b.MR.Bytes()[GRHSize:GRHSize+200])
	w.Must(ah.Close())
	w.Must(back.Close())
	if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: a.MR.SGE(0, 1),
		To: verbs.Datagram{AH: ah}}); !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("post with a closed address handle: got %v, want %v", err, verbs.ErrClosed)
	}
	if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: a.MR.SGE(0, 1)}); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("post without an address handle: got %v, want EINVAL", err)
	}
}

func (w *Testbed) testMulticast() {
	a, b := w.NewDatagramEnd(), w.NewDatagramEnd()
	group := verbs.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}
	w.Must(b.QP.Attach(group))
	if w.Config.Without[Multicast] {
		w.Must(b.QP.Detach(group))
		return
	}
	g, err := w.Device.DefaultGID(1)
	w.Must(err)
	ah, err := a.PD.CreateAH(verbs.AHAttr{GID: group, SGIDIndex: g.Index})
	w.Must(err)
	want := a.Fill(0, 50, 1)
	b.PostRecv(1, 0, GRHSize+50)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.MR.SGE(0, 50),
		To: verbs.Datagram{AH: ah, QPN: 0xffffff, QKey: verbs.DefaultQKey}})
	a.WaitSuccess(2)
	b.WaitSuccess(1)
	w.MustEqual(b.MR.Bytes()[GRHSize:GRHSize+50], want)
	w.Must(b.QP.Detach(group))
}

func (w *Testbed) testSRQ() {
	pd, err := w.Device.AllocPD()
	w.Must(err)
	srq, err := pd.CreateSRQ(10, 1)
	w.Must(err)
	cq, err := w.Device.CreateCQ(100, nil)
	w.Must(err)
	mr, err := pd.Alloc(endMemorySize, verbs.LocalWrite)
	w.Must(err)
	var as, bs [2]*End
	for i := range 2 {
		as[i] = w.NewEnd(verbs.QPInit{})
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, SRQ: srq})
		w.Must(err)
		bs[i] = &End{Testbed: w, PD: pd, CQ: cq, QP: qp, MR: mr}
		w.Connect(as[i], bs[i])
	}
	for i := range 4 {
		w.Must(srq.PostRecv(&verbs.RecvWR{ID: uint64(i), Local: mr.SGE(100*i, 100)}))
	}
	if err := bs[0].QP.PostRecv(&verbs.RecvWR{}); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("PostRecv to a QP with an SRQ: got %v, want EINVAL", err)
	}
	for i := range 4 {
		a, b := as[i%2], bs[i%2]
		want := a.Fill(0, 100, byte(i))
		a.PostSend(verbs.SendWR{ID: 5, Opcode: verbs.Send, Local: a.MR.SGE(0, 100)})
		a.WaitSuccess(5)
		b.WaitSuccess(uint64(i))
		w.MustEqual(mr.Bytes()[100*i:100*i+100], want)
	}
	w.Must(srq.Resize(200))
	got, err := srq.Query()
	w.Must(err)
	if got.MaxWR < 200 {
		w.Errorf("attributes after Resize to 200: got %+v, want at least 200", got)
	}
	for i := range 150 {
		w.Must(srq.PostRecv(&verbs.RecvWR{ID: uint64(i), Local: mr.SGE(0, 100)}))
	}
	w.Must(srq.SetLimit(150))
	as[0].PostSend(verbs.SendWR{ID: 6, Opcode: verbs.Send, Local: as[0].MR.SGE(0, 10)})
	as[0].WaitSuccess(6)
	bs[0].WaitSuccess(0)
	e, err := w.Device.NextEvent(w.ShortContext())
	w.Must(err)
	if e.Type != verbs.EventSRQLimit || e.SRQ != srq {
		w.Errorf("event: got %+v, want %v of the SRQ", e, verbs.EventSRQLimit)
	}
	if err := srq.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of an SRQ in use: got %v, want EBUSY", err)
	}
}

func (w *Testbed) testWindows() {
	a, b := w.NewPair(verbs.QPInit{})
	mw, err := b.PD.AllocMW()
	w.Must(err)
	key := mw.NextKey()
	bind := verbs.Bind{MW: mw, MR: b.MR, Offset: 4096, Length: 4096, Access: verbs.RemoteWrite, NewKey: key}
	b.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.BindWindow, Window: bind})
	if wc := b.WaitSuccess(1); wc.Opcode != verbs.WCBindWindow {
		w.Errorf("opcode: got %v", wc.Opcode)
	}
	mw.Bound(key)
	want := a.Fill(0, 100, 5)
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: a.MR.SGE(0, 100),
		Remote: verbs.Remote{Addr: b.MR.Addr() + 4096, RKey: mw.RKey()}})
	a.WaitSuccess(2)
	w.MustEqual(b.MR.Bytes()[4096:4196], want)
	a.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.Write, Local: a.MR.SGE(0, 100),
		Remote: verbs.Remote{Addr: b.MR.Addr(), RKey: mw.RKey()}})
	if wc := a.WaitCompletion(); !errors.Is(verbs.CompletionError(&wc), verbs.RemoteAccessError) &&
		!w.Config.Without[WindowRange] {
		w.Errorf("WRITE before the window: got %v, want %v", wc.Status, verbs.RemoteAccessError)
	}
}

func (w *Testbed) testRegSlice() {
	a, b := w.NewPair(verbs.QPInit{})
	mine, theirs := make([]byte, 10000), make([]byte, 10000)
	for i := range mine {
		mine[i] = byte(i * 3)
	}
	from, err := a.PD.RegSlice(mine, 0)
	w.Must(err)
	to, err := b.PD.RegSlice(theirs, verbs.LocalWrite|verbs.RemoteWrite)
	w.Must(err)
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: from.SGE(0, 10000),
		Remote: verbs.Remote{Addr: to.Addr(), RKey: to.RKey()}})
	a.WaitSuccess(1)
	w.MustEqual(theirs, mine)
	w.Must(from.Close())
	w.Must(to.Close())
	if _, err := a.PD.RegSlice(nil, 0); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("registration of an empty slice: got %v, want EINVAL", err)
	}
	// After its deregistration, the device does not access the memory any more.
	a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: a.MR.SGE(0, 10),
		Remote: verbs.Remote{Addr: to.Addr(), RKey: to.RKey()}})
	if wc := a.WaitCompletion(); wc.Status != verbs.RemoteAccessError {
		w.Errorf("WRITE after Close: got %v, want %v", wc.Status, verbs.RemoteAccessError)
	}
}
