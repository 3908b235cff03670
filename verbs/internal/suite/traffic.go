package suite

import (
	"bytes"
	"errors"
	"syscall"

	"verbena/uapi"
	"verbena/verbs"
)

var sizes = []int{1, 64, 4096, 4097, 65536, 300000}

func (w *world) send() {
	a, b := w.pair(verbs.QPInit{})
	for i, n := range sizes {
		want := a.fill(0, n, byte(i))
		b.recv(7, 0, memory)
		a.post(verbs.SendWR{ID: 8, Opcode: verbs.Send, Local: a.mr.SGE(0, n)})
		if wc := a.ok(8); wc.Opcode != verbs.WCSend {
			w.Errorf("opcode: got %v, want %v", wc.Opcode, verbs.WCSend)
		}
		if wc := b.ok(7); wc.Opcode != verbs.WCReceive || int(wc.ByteLen) != n {
			w.Errorf("receive: got %v of %d bytes, want %v of %d", wc.Opcode, wc.ByteLen, verbs.WCReceive, n)
		}
		w.same(b.mr.Bytes()[:n], want)
	}
	a.close()
	b.close()
}

func (w *world) write() {
	a, b := w.pair(verbs.QPInit{})
	for i, n := range sizes {
		want := a.fill(0, n, byte(i))
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: a.mr.SGE(0, n), Remote: b.remote(9)})
		a.ok(1)
		w.same(b.mr.Bytes()[9:9+n], want)
	}
}

func (w *world) read() {
	a, b := w.pair(verbs.QPInit{})
	for i, n := range sizes {
		want := b.fill(3, n, byte(i))
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.Read, Local: a.mr.SGE(0, n), Remote: b.remote(3)})
		if wc := a.ok(1); wc.Opcode != verbs.WCRead {
			w.Errorf("opcode: got %v, want %v", wc.Opcode, verbs.WCRead)
		}
		w.same(a.mr.Bytes()[:n], want)
	}
}

func (w *world) immediate() {
	a, b := w.pair(verbs.QPInit{})
	want := a.fill(0, 100, 1)
	b.recv(1, 0, 200)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.SendWithImm, Local: a.mr.SGE(0, 100), Imm: 0x01020304})
	a.ok(2)
	if wc := b.ok(1); wc.Flags&verbs.WithImm == 0 || wc.Imm != 0x01020304 {
		w.Errorf("SEND: got immediate data %#x, flags %v", wc.Imm, wc.Flags)
	}
	w.same(b.mr.Bytes()[:100], want)
	b.recv(3, 0, 200)
	a.post(verbs.SendWR{ID: 4, Opcode: verbs.WriteWithImm, Local: a.mr.SGE(0, 100), Remote: b.remote(500), Imm: 77})
	a.ok(4)
	if wc := b.ok(3); wc.Opcode != verbs.WCReceiveWriteWith || wc.Imm != 77 || wc.ByteLen != 100 {
		w.Errorf("WRITE: got %+v", wc)
	}
	w.same(b.mr.Bytes()[500:600], want)
}

func (w *world) inline() {
	a, b := w.pair(verbs.QPInit{Inline: 100})
	if n := a.qp.Init().Inline; n < 100 {
		w.Fatalf("asked for 100 bytes inline, got %d", n)
	}
	text := []byte("a message that is copied when it is posted")
	b.recv(1, 0, 100)
	kept := bytes.Clone(text)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Inline: text})
	clear(text)
	a.ok(2)
	b.ok(1)
	w.same(b.mr.Bytes()[:len(kept)], kept)
	if err := a.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, 1<<20)}); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("1 MB inline: got %v, want EINVAL", err)
	}
}

func (w *world) atomics() {
	a, b := w.pair(verbs.QPInit{})
	word := func(m *verbs.MR) *uint64 { return words(m.Bytes()) }
	*word(b.mr) = 40
	a.post(verbs.SendWR{ID: 1, Opcode: verbs.FetchAdd, Local: a.mr.SGE(0, 8), Remote: b.remote(0), CompareAdd: 2})
	a.ok(1)
	if *word(a.mr) != 40 || *word(b.mr) != 42 {
		w.Errorf("fetch and add: got %d, and %d there, want 40 and 42", *word(a.mr), *word(b.mr))
	}
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.CompareSwap, Local: a.mr.SGE(0, 8), Remote: b.remote(0), CompareAdd: 42, Swap: 7})
	a.ok(2)
	if *word(a.mr) != 42 || *word(b.mr) != 7 {
		w.Errorf("compare and swap: got %d, and %d there, want 42 and 7", *word(a.mr), *word(b.mr))
	}
}

func (w *world) atomicWrite() {
	a, b := w.pair(verbs.QPInit{Inline: 8})
	want := []byte("8 bytes!")
	wr := verbs.SendWR{ID: 1, Opcode: verbs.AtomicWrite, Inline: want, Remote: b.remote(64)}
	if w.c.Without[AtomicWrite] {
		a.refused(wr)
		return
	}
	a.post(wr)
	a.ok(1)
	w.same(b.mr.Bytes()[64:72], want)
}

func (w *world) flush() {
	a, b := w.pair(verbs.QPInit{})
	if w.c.Without[Flush] {
		a.refused(verbs.SendWR{Opcode: verbs.FlushMemory, Remote: b.remote(0), Flush: verbs.Flush{Length: 64, Placement: uapi.FlushGlobal}})
		return
	}
	mr, err := b.pd.Alloc(4096, verbs.LocalWrite|verbs.RemoteWrite|uapi.AccessFlushGlobal)
	w.must(err)
	a.fill(0, 64, 3)
	a.must(a.qp.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: a.mr.SGE(0, 64), Remote: verbs.Remote{Addr: mr.Addr(), RKey: mr.RKey()}}))
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.FlushMemory, Remote: verbs.Remote{Addr: mr.Addr(), RKey: mr.RKey()},
		Flush: verbs.Flush{Length: 64, Placement: uapi.FlushGlobal, Level: uapi.FlushRange}})
	a.ok(2)
	w.same(mr.Bytes()[:64], a.mr.Bytes()[:64])
}

func (w *world) lists() {
	a, b := w.pair(verbs.QPInit{SendSGEs: 4, RecvSGEs: 4})
	a.fill(0, 300, 1)
	b.must(b.qp.PostRecv(&verbs.RecvWR{ID: 1, Local: b.mr.SGE(0, 10), List: []verbs.SGE{b.mr.SGE(1000, 100), b.mr.SGE(2000, 300)}}))
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, List: []verbs.SGE{a.mr.SGE(200, 100), a.mr.SGE(0, 100)}})
	a.ok(2)
	if wc := b.ok(1); wc.ByteLen != 200 {
		w.Errorf("got %d bytes, want 200", wc.ByteLen)
	}
	want := append(bytes.Clone(a.mr.Bytes()[200:300]), a.mr.Bytes()[:100]...)
	m := b.mr.Bytes()
	w.same(append(append(bytes.Clone(m[:10]), m[1000:1100]...), m[2000:2090]...), want)
	if err := a.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, List: make([]verbs.SGE, 1000)}); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("1000 elements: got %v, want EINVAL", err)
	}
}

func (w *world) batch() {
	a, b := w.pair(verbs.QPInit{})
	var wrs [20]verbs.SendWR
	for i := range wrs {
		b.recv(uint64(i), 1000*i, 1000)
		a.fill(1000*i, 1000, byte(i))
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.Send, Flags: verbs.Signaled, Local: a.mr.SGE(1000*i, 1000)}
	}
	n, err := a.qp.PostSends(wrs[:])
	if err != nil || n != len(wrs) {
		w.Fatalf("PostSends: got %d, %v", n, err)
	}
	for i := range wrs {
		a.ok(uint64(i))
		b.ok(uint64(i))
	}
	w.same(b.mr.Bytes()[:20000], a.mr.Bytes()[:20000])
}

func (w *world) unreliable() {
	a, b := w.pair(verbs.QPInit{Type: verbs.UC})
	want := a.fill(0, 5000, 4)
	b.recv(1, 0, 5000)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.mr.SGE(0, 5000)})
	a.ok(2)
	b.ok(1)
	w.same(b.mr.Bytes()[:5000], want)
}

// datagramsOf is an end with a UD queue pair that is ready.
func (w *world) datagramsOf() *end {
	e := w.end(verbs.QPInit{Type: verbs.UD})
	w.must(e.qp.Activate(w.c.Path))
	return e
}

// grh is the room for the global route header before a datagram.
const grh = 40

func (w *world) datagrams() {
	a, b := w.datagramsOf(), w.datagramsOf()
	to, err := b.qp.LocalVia(w.c.Path)
	w.must(err)
	g, err := w.d.DefaultGID(1)
	w.must(err)
	index := g.Index
	if w.c.Path.SGIDIndex != 0 {
		index = max(w.c.Path.SGIDIndex, 0)
	}
	ah, err := a.pd.CreateAH(verbs.AHAttr{GID: to.GID, SGIDIndex: index})
	w.must(err)
	want := a.fill(0, 200, 9)
	b.recv(1, 0, grh+200)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.mr.SGE(0, 200), To: verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}})
	a.ok(2)
	wc := b.ok(1)
	if wc.ByteLen != grh+200 || wc.SrcQPN != a.qp.Num() {
		w.Errorf("got %d bytes of QP %d, want %d of %d", wc.ByteLen, wc.SrcQPN, grh+200, a.qp.Num())
	}
	w.same(b.mr.Bytes()[grh:grh+200], want)
	// And back, by what the datagram says of its sender.
	back, err := b.pd.AddressOf(&wc, b.mr.Bytes()[:grh], index)
	w.must(err)
	a.recv(3, 0, grh+200)
	b.post(verbs.SendWR{ID: 4, Opcode: verbs.Send, Local: b.mr.SGE(grh, 200), To: verbs.Datagram{AH: back, QPN: wc.SrcQPN, QKey: to.QKey}})
	b.ok(4)
	a.ok(3)
	w.same(a.mr.Bytes()[grh:grh+200], b.mr.Bytes()[grh:grh+200])
	w.must(ah.Close())
	w.must(back.Close())
	if err := a.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: a.mr.SGE(0, 1), To: verbs.Datagram{AH: ah}}); !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("a closed address handle: got %v, want %v", err, verbs.ErrClosed)
	}
	if err := a.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: a.mr.SGE(0, 1)}); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("no address handle: got %v, want EINVAL", err)
	}
}

func (w *world) multicast() {
	a, b := w.datagramsOf(), w.datagramsOf()
	group := verbs.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}
	w.must(b.qp.Attach(group))
	if w.c.Without[Multicast] {
		w.must(b.qp.Detach(group))
		return
	}
	g, err := w.d.DefaultGID(1)
	w.must(err)
	ah, err := a.pd.CreateAH(verbs.AHAttr{GID: group, SGIDIndex: g.Index})
	w.must(err)
	want := a.fill(0, 50, 1)
	b.recv(1, 0, grh+50)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.mr.SGE(0, 50), To: verbs.Datagram{AH: ah, QPN: 0xffffff, QKey: verbs.DefaultQKey}})
	a.ok(2)
	b.ok(1)
	w.same(b.mr.Bytes()[grh:grh+50], want)
	w.must(b.qp.Detach(group))
}

func (w *world) srq() {
	pd, err := w.d.AllocPD()
	w.must(err)
	srq, err := pd.CreateSRQ(10, 1)
	w.must(err)
	cq, err := w.d.CreateCQ(100, nil)
	w.must(err)
	mr, err := pd.Alloc(memory, verbs.LocalWrite)
	w.must(err)
	var as, bs [2]*end
	for i := range 2 {
		as[i] = w.end(verbs.QPInit{})
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, SRQ: srq})
		w.must(err)
		bs[i] = &end{world: w, pd: pd, cq: cq, qp: qp, mr: mr}
		w.connect(as[i], bs[i])
	}
	for i := range 4 {
		w.must(srq.PostRecv(&verbs.RecvWR{ID: uint64(i), Local: mr.SGE(100*i, 100)}))
	}
	if err := bs[0].qp.PostRecv(&verbs.RecvWR{}); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("PostRecv beside an SRQ: got %v, want EINVAL", err)
	}
	for i := range 4 {
		a, b := as[i%2], bs[i%2]
		want := a.fill(0, 100, byte(i))
		a.post(verbs.SendWR{ID: 5, Opcode: verbs.Send, Local: a.mr.SGE(0, 100)})
		a.ok(5)
		b.ok(uint64(i))
		w.same(mr.Bytes()[100*i:100*i+100], want)
	}
	w.must(srq.Resize(200))
	got, err := srq.Query()
	w.must(err)
	if got.MaxWR < 200 {
		w.Errorf("after Resize to 200: got %+v", got)
	}
	for i := range 150 {
		w.must(srq.PostRecv(&verbs.RecvWR{ID: uint64(i), Local: mr.SGE(0, 100)}))
	}
	w.must(srq.SetLimit(150))
	as[0].post(verbs.SendWR{ID: 6, Opcode: verbs.Send, Local: as[0].mr.SGE(0, 10)})
	as[0].ok(6)
	bs[0].ok(0)
	e, err := w.d.NextEvent(w.ctx())
	w.must(err)
	if e.Type != verbs.EventSRQLimit || e.SRQ != srq {
		w.Errorf("event: got %+v, want %v of the SRQ", e, verbs.EventSRQLimit)
	}
	if err := srq.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of an SRQ in use: got %v, want EBUSY", err)
	}
}

func (w *world) windows() {
	a, b := w.pair(verbs.QPInit{})
	mw, err := b.pd.AllocMW()
	w.must(err)
	key := mw.NextKey()
	bind := verbs.Bind{MW: mw, MR: b.mr, Offset: 4096, Length: 4096, Access: verbs.RemoteWrite, NewKey: key}
	b.post(verbs.SendWR{ID: 1, Opcode: verbs.BindWindow, Window: bind})
	if wc := b.ok(1); wc.Opcode != verbs.WCBindWindow {
		w.Errorf("opcode: got %v", wc.Opcode)
	}
	mw.Bound(key)
	want := a.fill(0, 100, 5)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: a.mr.SGE(0, 100), Remote: verbs.Remote{Addr: b.mr.Addr() + 4096, RKey: mw.RKey()}})
	a.ok(2)
	w.same(b.mr.Bytes()[4096:4196], want)
	a.post(verbs.SendWR{ID: 3, Opcode: verbs.Write, Local: a.mr.SGE(0, 100), Remote: verbs.Remote{Addr: b.mr.Addr(), RKey: mw.RKey()}})
	if wc := a.one(); !errors.Is(verbs.CompletionError(&wc), verbs.RemoteAccessError) && !w.c.Without[WindowRange] {
		w.Errorf("a WRITE before the window: got %v, want %v", wc.Status, verbs.RemoteAccessError)
	}
}

func (w *world) slice() {
	a, b := w.pair(verbs.QPInit{})
	mine, theirs := make([]byte, 10000), make([]byte, 10000)
	for i := range mine {
		mine[i] = byte(i * 3)
	}
	from, err := a.pd.RegSlice(mine, 0)
	w.must(err)
	to, err := b.pd.RegSlice(theirs, verbs.LocalWrite|verbs.RemoteWrite)
	w.must(err)
	a.post(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: from.SGE(0, 10000), Remote: verbs.Remote{Addr: to.Addr(), RKey: to.RKey()}})
	a.ok(1)
	w.same(theirs, mine)
	w.must(from.Close())
	w.must(to.Close())
	if _, err := a.pd.RegSlice(nil, 0); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("an empty slice: got %v, want EINVAL", err)
	}
	// The device no longer reaches memory whose registration has ended.
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: a.mr.SGE(0, 10), Remote: verbs.Remote{Addr: to.Addr(), RKey: to.RKey()}})
	if wc := a.one(); wc.Status != verbs.RemoteAccessError {
		w.Errorf("a WRITE after Close: got %v, want %v", wc.Status, verbs.RemoteAccessError)
	}
}
