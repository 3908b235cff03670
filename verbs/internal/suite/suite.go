// Package suite is the tests of package verbs that must pass on every transport: on devices in this process, of a service, and of a
// kernel. A test of each hands it a way to open the device.
package suite

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/uapi"
	"verbena/verbs"
)

// Config says what is tested.
type Config struct {
	// Open opens the device anew.
	Open func() (*verbs.Device, error)
	// Path is how queue pairs are connected; the zero Path is good where the default GID reaches the device itself.
	Path verbs.Path
	// Without is what the device lacks. Nothing is skipped for it: the tests look for what such a device does instead.
	Without map[Ability]bool
}

// Ability is something that not every device does.
type Ability string

// The abilities. The kernel's rxe has none of them in Linux 6.1.
const (
	AtomicWrite  Ability = "ATOMIC WRITE"
	Flush        Ability = "FLUSH"
	Multicast    Ability = "multicast"                // between queue pairs of one device
	WindowRange  Ability = "range of a window"        // a WRITE outside of a memory window fails
	LocalErrors  Ability = "local protection error"   // of a wrong local key; else the status is LocalQPError
	AccessEvents Ability = "event of an access error" // at the target of a request that breaks its rights
)

// Run runs the tests.
func Run(t *testing.T, c Config) {
	for _, x := range []struct {
		name string
		f    func(*world)
	}{
		{"Query", (*world).query}, {"Send", (*world).send}, {"Write", (*world).write}, {"Read", (*world).read},
		{"Immediate", (*world).immediate}, {"Inline", (*world).inline}, {"Atomics", (*world).atomics}, {"AtomicWrite", (*world).atomicWrite},
		{"Flush", (*world).flush}, {"Lists", (*world).lists}, {"Batch", (*world).batch}, {"Unreliable", (*world).unreliable},
		{"Datagrams", (*world).datagrams}, {"Multicast", (*world).multicast}, {"SRQ", (*world).srq}, {"Windows", (*world).windows},
		{"Slice", (*world).slice}, {"Wait", (*world).wait}, {"Cancel", (*world).cancel}, {"Channel", (*world).channel},
		{"Iterator", (*world).iterator}, {"Full", (*world).full}, {"Resize", (*world).resize}, {"Errors", (*world).errors},
		{"Events", (*world).events}, {"Closed", (*world).closed}, {"Busy", (*world).busy}, {"CloseDevice", (*world).closeDevice},
		{"CloseDeviceMemory", (*world).closeDeviceMemory},
		{"Concurrent", (*world).concurrent}, {"Reset", (*world).reset}, {"Exec", (*world).exec},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := &world{T: t, c: c}
			d, err := c.Open()
			w.must(err)
			w.d = d
			defer func() { w.must(d.Close()) }()
			x.f(w)
		})
	}
}

type world struct {
	*testing.T
	c      Config
	d      *verbs.Device
	memory int // of an end, in bytes; 0: 1 MB
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// refused posts a work request that the device cannot do.
func (e *end) refused(wr verbs.SendWR) {
	e.Helper()
	wr.Flags |= verbs.Signaled
	if err := e.qp.PostSend(&wr); err == nil {
		if wc := e.one(); wc.Status == verbs.Success {
			e.Errorf("%v succeeded on a device without it", wr.Opcode)
		}
	}
}

// patience bounds what should take microseconds.
const patience = 20 * time.Second

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.Cleanup(cancel)
	return ctx
}

// end is one side of a connection.
type end struct {
	*world
	pd *verbs.PD
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
}

const memory = 1 << 20

func (w *world) end(init verbs.QPInit) *end {
	w.Helper()
	e := &end{world: w}
	var err error
	e.pd, err = w.d.AllocPD()
	w.must(err)
	e.cq, err = w.d.CreateCQ(1000, nil)
	w.must(err)
	if init.SendCQ == nil {
		init.SendCQ = e.cq
	}
	e.qp, err = e.pd.CreateQP(init)
	w.must(err)
	e.mr, err = e.pd.Alloc(cmp.Or(w.memory, memory), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic|verbs.BindWindows)
	w.must(err)
	return e
}

// close ends an end's objects, in order.
func (e *end) close() {
	e.Helper()
	for _, c := range []io.Closer{e.qp, e.mr, e.cq, e.pd} {
		e.must(c.Close())
	}
}

// pair is two connected ends.
func (w *world) pair(init verbs.QPInit) (a, b *end) {
	w.Helper()
	a, b = w.end(init), w.end(init)
	w.connect(a, b)
	return a, b
}

func (w *world) connect(a, b *end) {
	w.Helper()
	ea, err := a.qp.LocalVia(w.c.Path)
	w.must(err)
	eb, err := b.qp.LocalVia(w.c.Path)
	w.must(err)
	w.must(a.qp.ConnectVia(eb, w.c.Path))
	w.must(b.qp.ConnectVia(ea, w.c.Path))
}

// one waits for a completion.
func (e *end) one() verbs.WC {
	e.Helper()
	var wc [1]verbs.WC
	n, err := e.cq.Wait(e.ctx(), wc[:])
	if err != nil || n != 1 {
		e.Fatalf("wait for a completion: got %d, %v", n, err)
	}
	return wc[0]
}

// ok waits for a completion, which must be a success of that work request.
func (e *end) ok(id uint64) verbs.WC {
	e.Helper()
	wc := e.one()
	if err := verbs.CompletionError(&wc); err != nil || wc.ID != id || wc.QPN != e.qp.Num() {
		e.Fatalf("completion: got work request %d of QP %d: %v, want %d of %d", wc.ID, wc.QPN, err, id, e.qp.Num())
	}
	return wc
}

func (e *end) fill(off, n int, seed byte) []byte {
	b := e.mr.Bytes()[off:][:n]
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

func (e *end) remote(off int) verbs.Remote {
	return verbs.Remote{Addr: e.mr.Addr() + uint64(off), RKey: e.mr.RKey()}
}

func (e *end) post(wr verbs.SendWR) {
	e.Helper()
	wr.Flags |= verbs.Signaled
	e.must(e.qp.PostSend(&wr))
}

func (e *end) recv(id uint64, off, n int) {
	e.Helper()
	e.must(e.qp.PostRecv(&verbs.RecvWR{ID: id, Local: e.mr.SGE(off, n)}))
}

func (w *world) same(got, want []byte) {
	w.Helper()
	if !bytes.Equal(got, want) {
		w.Fatalf("%d bytes differ from what was sent", len(want))
	}
}

var sizes = []int{1, 64, 4096, 4097, 65536, 300000}

func (w *world) query() {
	attr, err := w.d.Query()
	w.must(err)
	if attr.Ports < 1 || attr.MaxQP < 10 || attr.MaxQPWR < 64 || attr.NodeGUID == 0 {
		w.Errorf("Query: got %+v", attr)
	}
	port, err := w.d.QueryPort(1)
	w.must(err)
	if port.State != uapi.PortActive || port.ActiveMTU.Bytes() < 256 || port.GIDs < 1 {
		w.Errorf("QueryPort: got %+v", port)
	}
	if _, err := w.d.QueryPort(77); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("QueryPort of 77: got %v, want EINVAL", err)
	}
	gids, err := w.d.GIDs()
	w.must(err)
	best, err := w.d.DefaultGID(1)
	w.must(err)
	found := false
	for _, g := range gids {
		found = found || g == best
	}
	if !found {
		w.Errorf("DefaultGID: got %+v, which is not in %+v", best, gids)
	}
	e := w.end(verbs.QPInit{})
	defer e.close()
	a, err := e.qp.Query()
	w.must(err)
	if a.State != verbs.Reset {
		w.Errorf("a new QP is in %v, want %v", a.State, verbs.Reset)
	}
}

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
	// What is not registered any more is not reached.
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: a.mr.SGE(0, 10), Remote: verbs.Remote{Addr: to.Addr(), RKey: to.RKey()}})
	if wc := a.one(); wc.Status != verbs.RemoteAccessError {
		w.Errorf("a WRITE after Close: got %v, want %v", wc.Status, verbs.RemoteAccessError)
	}
}

func (w *world) wait() {
	a, b := w.pair(verbs.QPInit{})
	for i := range 50 {
		b.recv(uint64(i), 0, 100)
		done := make(chan verbs.WC)
		go func() {
			var wc [4]verbs.WC
			if n, err := b.cq.Wait(b.ctx(), wc[:]); n != 1 || err != nil {
				b.Errorf("Wait: got %d, %v", n, err)
			}
			done <- wc[0]
		}()
		if i%3 == 0 {
			time.Sleep(2 * time.Millisecond) // so that it sleeps
		}
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
		if wc := <-done; wc.ID != uint64(i) {
			w.Fatalf("got work request %d, want %d", wc.ID, i)
		}
		a.ok(1)
	}
}

func (w *world) cancel() {
	a, b := w.pair(verbs.QPInit{})
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	time.AfterFunc(5*time.Millisecond, func() { cancel(why) })
	var wc [1]verbs.WC
	if n, err := b.cq.Wait(ctx, wc[:]); n != 0 || !errors.Is(err, why) {
		w.Fatalf("Wait: got %d, %v, want 0, %v", n, err, why)
	}
	if _, err := b.cq.Wait(ctx, wc[:]); !errors.Is(err, why) {
		w.Fatalf("Wait again: got %v, want %v", err, why)
	}
	if _, err := w.d.NextEvent(ctx); !errors.Is(err, why) {
		w.Fatalf("NextEvent: got %v, want %v", err, why)
	}
	// What comes afterwards is not lost.
	b.recv(1, 0, 100)
	a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
	b.ok(1)
	a.ok(2)
}

func (w *world) channel() {
	ch, err := w.d.CreateChannel()
	w.must(err)
	pd, err := w.d.AllocPD()
	w.must(err)
	var cqs [2]*verbs.CQ
	for i := range cqs {
		cqs[i], err = w.d.CreateCQ(10, ch)
		w.must(err)
		w.must(cqs[i].Arm(false))
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cqs[0], RecvCQ: cqs[1]})
	w.must(err)
	me := &end{world: w, pd: pd, cq: cqs[0], qp: qp}
	here, err := qp.LocalVia(w.c.Path)
	w.must(err)
	w.must(qp.ConnectVia(here, w.c.Path)) // to itself
	me.mr, err = pd.Alloc(4096, verbs.LocalWrite)
	w.must(err)
	me.recv(1, 0, 100)
	me.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: me.mr.SGE(200, 100)})
	seen := map[*verbs.CQ]bool{}
	for range 2 {
		cq, err := ch.Wait(w.ctx())
		w.must(err)
		seen[cq] = true
	}
	if !seen[cqs[0]] || !seen[cqs[1]] {
		w.Errorf("got events of %v, want both", seen)
	}
	if _, err := cqs[0].Wait(w.ctx(), make([]verbs.WC, 1)); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Wait on a shared channel: got %v, want EINVAL", err)
	}
	if err := ch.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a channel in use: got %v, want EBUSY", err)
	}
	for _, c := range []io.Closer{qp, cqs[0], cqs[1], ch} {
		w.must(c.Close())
	}
}

func (w *world) iterator() {
	a, b := w.pair(verbs.QPInit{})
	const n = 40
	var sender sync.WaitGroup
	defer sender.Wait()
	sender.Go(func() {
		for i := range n {
			b.recv(uint64(i), 0, 100)
			a.post(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
			a.ok(1)
		}
	})
	next := uint64(0)
	for wc, err := range b.cq.Completions(w.ctx()) {
		w.must(err)
		if wc.ID != next {
			w.Fatalf("got work request %d, want %d", wc.ID, next)
		}
		if next++; next == n {
			break
		}
	}
	if next != n {
		w.Errorf("got %d completions, want %d", next, n)
	}
}

func (w *world) full() {
	a, _ := w.pair(verbs.QPInit{SendWRs: 4, RecvWRs: 4})
	n := 0
	for ; n < 1000; n++ {
		if err := a.qp.PostRecv(&verbs.RecvWR{Local: a.mr.SGE(0, 10)}); err != nil {
			if !errors.Is(err, verbs.ErrQueueFull) {
				w.Fatalf("PostRecv: got %v, want %v", err, verbs.ErrQueueFull)
			}
			break
		}
	}
	if n < 4 || n == 1000 {
		w.Errorf("%d receives fit, asked for 4", n)
	}
}

func (w *world) resize() {
	a, b := w.pair(verbs.QPInit{})
	for i := range 20 {
		b.recv(uint64(i), 0, 100)
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
		a.ok(1)
	}
	w.must(b.cq.Resize(3000))
	if n := b.cq.Entries(); n < 3000 {
		w.Errorf("asked for 3000 entries, got %d", n)
	}
	for i := range 20 {
		b.ok(uint64(i))
	}
}

func (w *world) errors() {
	for _, x := range []struct {
		name string
		wr   func(a, b *end) verbs.SendWR
		want verbs.Status
	}{
		{"no receive", func(a, b *end) verbs.SendWR { return verbs.SendWR{Opcode: verbs.Send, Local: a.mr.SGE(0, 10)} }, verbs.RNRRetryExceeded},
		{"wrong local key", func(a, b *end) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.Write, Local: verbs.SGE{Addr: a.mr.Addr(), Length: 10, LKey: 12345}, Remote: b.remote(0)}
		}, verbs.LocalProtection},
		{"wrong remote key", func(a, b *end) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.Write, Local: a.mr.SGE(0, 10), Remote: verbs.Remote{Addr: b.mr.Addr(), RKey: 12345}}
		}, verbs.RemoteAccessError},
	} {
		w.Run(x.name, func(t *testing.T) {
			w := &world{T: t, c: w.c, d: w.d}
			a, b := w.end(verbs.QPInit{}), w.end(verbs.QPInit{})
			p := w.c.Path
			p.RNRRetries = verbs.Never
			ea, err := a.qp.LocalVia(p)
			w.must(err)
			eb, err := b.qp.LocalVia(p)
			w.must(err)
			w.must(a.qp.ConnectVia(eb, p))
			w.must(b.qp.ConnectVia(ea, p))
			wr := x.wr(a, b)
			wr.ID = 77
			a.post(wr)
			wc := a.one()
			werr := verbs.CompletionError(&wc)
			want := x.want
			if want == verbs.LocalProtection && w.c.Without[LocalErrors] {
				want = verbs.LocalQPError
			}
			if !errors.Is(werr, want) {
				w.Fatalf("got %v, want %v", wc.Status, want)
			}
			var e *verbs.WCError
			if !errors.As(werr, &e) || e.ID != 77 || e.QPN != a.qp.Num() {
				w.Errorf("got %+v", e)
			}
			// From then on everything is flushed.
			a.post(verbs.SendWR{ID: 78, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
			if wc := a.one(); wc.ID != 78 || wc.Status != verbs.Flushed {
				w.Errorf("afterwards: got work request %d, %v, want 78, %v", wc.ID, wc.Status, verbs.Flushed)
			}
			q, err := a.qp.Query()
			w.must(err)
			if q.State != verbs.Error {
				w.Errorf("the QP is in %v, want %v", q.State, verbs.Error)
			}
		})
	}
}

func (w *world) events() {
	a, b := w.pair(verbs.QPInit{})
	// A WRITE beyond its rights is an event at the other end, too.
	mr, err := b.pd.Alloc(4096, verbs.LocalWrite)
	w.must(err)
	a.post(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: a.mr.SGE(0, 10), Remote: verbs.Remote{Addr: mr.Addr(), RKey: mr.RKey()}})
	if wc := a.one(); wc.Status != verbs.RemoteAccessError {
		w.Errorf("got %v, want %v", wc.Status, verbs.RemoteAccessError)
	}
	if w.c.Without[AccessEvents] {
		return
	}
	e, err := w.d.NextEvent(w.ctx())
	w.must(err)
	if e.QP != b.qp || e.Type != verbs.EventQPAccessError && e.Type != verbs.EventQPFatal {
		w.Errorf("event: got %+v, want one of QP %d", e, b.qp.Num())
	}
}

func (w *world) closed() {
	a, b := w.pair(verbs.QPInit{})
	mem := a.mr.Bytes()
	sge := a.mr.SGE(0, 10)
	a.close()
	a.close() // again
	for _, x := range []struct {
		name string
		err  error
	}{
		{"PostSend", a.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: sge})}, {"PostRecv", a.qp.PostRecv(&verbs.RecvWR{Local: sge})},
		{"Arm", a.cq.Arm(false)},
		{"Resize", a.cq.Resize(10)},
		{"Poll", second(a.cq.Poll(make([]verbs.WC, 1)))},
		{"Wait", second(a.cq.Wait(w.ctx(), make([]verbs.WC, 1)))},
		{"CreateQP", second(a.pd.CreateQP(verbs.QPInit{SendCQ: b.cq}))},
		{"Alloc", second(a.pd.Alloc(10, 0))},
		{"CreateQP on a closed CQ", second(b.pd.CreateQP(verbs.QPInit{SendCQ: a.cq}))},
	} {
		if !errors.Is(x.err, verbs.ErrClosed) {
			w.Errorf("%s after Close: got %v, want %v", x.name, x.err, verbs.ErrClosed)
		}
	}
	if a.mr.Bytes() != nil {
		w.Error("Bytes after Close: got memory, want none")
	}
	mem[0]++ // harmless
}

func second[T any](_ T, err error) error { return err }

func (w *world) busy() {
	e := w.end(verbs.QPInit{})
	if err := e.pd.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a PD in use: got %v, want EBUSY", err)
	}
	if err := e.cq.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a CQ in use: got %v, want EBUSY", err)
	}
	e.close()
}

func (w *world) closeDevice() {
	d, err := w.c.Open()
	w.must(err)
	o := &world{T: w.T, c: w.c, d: d}
	a, b := o.pair(verbs.QPInit{})
	errs := make(chan error, 3)
	go func() { errs <- second(a.cq.Wait(context.Background(), make([]verbs.WC, 1))) }()
	go func() { errs <- second(d.NextEvent(context.Background())) }()
	go func() {
		for _, err := range b.cq.Completions(context.Background()) {
			errs <- err
		}
	}()
	time.Sleep(5 * time.Millisecond)
	w.must(d.Close())
	w.must(d.Close())
	for range 3 {
		select {
		case err := <-errs:
			if !errors.Is(err, verbs.ErrClosed) {
				w.Errorf("a goroutine that waited: got %v, want %v", err, verbs.ErrClosed)
			}
		case <-time.After(patience):
			w.Fatal("a goroutine still waits")
		}
	}
	if err := a.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: a.mr.SGE(0, 10)}); !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("PostSend: got %v, want %v", err, verbs.ErrClosed)
	}
	if _, err := d.AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("AllocPD: got %v, want %v", err, verbs.ErrClosed)
	}
	a.close() // what is left ends without an error
}

// closeDeviceMemory: when a device has been closed, peers reach nothing by it any more. Its memory may be another's then.
func (w *world) closeDeviceMemory() {
	const size, rounds = 256 << 10, 20
	for range rounds {
		d, err := w.c.Open()
		w.must(err)
		o := &world{T: w.T, c: w.c, d: d, memory: size}
		a, b := o.end(verbs.QPInit{}), (&world{T: w.T, c: w.c, d: w.d, memory: size}).end(verbs.QPInit{})
		w.connect(a, b)
		there, started := a.mr.Remote(0), make(chan struct{})
		var writing sync.WaitGroup
		writing.Go(func() { // until the peer has gone
			var wcs [1]verbs.WC
			for i := 0; ; i++ {
				if i == 10 {
					close(started)
				}
				wr := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: b.mr.SGE(0, size), Remote: there}
				if b.qp.PostSend(&wr) != nil {
					return
				}
				if n, err := b.cq.Wait(w.ctx(), wcs[:]); n != 1 || err != nil || wcs[0].Status != verbs.Success {
					return
				}
			}
		})
		b.mr.Bytes()[0], b.mr.Bytes()[size-1] = 1, 1
		<-started
		w.must(d.Close())
		mem := a.mr.Bytes()
		clear(mem)
		time.Sleep(2 * time.Millisecond)
		if mem[0] != 0 || mem[size-1] != 0 {
			w.Error("a peer has written to the memory of a device that has been closed")
		}
		w.must(a.mr.Close())
		w.must(b.qp.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
		writing.Wait()
		b.close()
	}
}

// concurrent: several goroutines post and poll at a time; nothing is lost or seen twice.
func (w *world) concurrent() {
	const threads, each = 4, 200
	a, b := w.pair(verbs.QPInit{SendWRs: 128, RecvWRs: 128})
	credits := make(chan struct{}, 100)
	var mu sync.Mutex
	seen := map[uint64]int{}
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for j := range each {
				credits <- struct{}{}
				if err := b.qp.PostRecv(&verbs.RecvWR{Local: b.mr.SGE(0, 100)}); err != nil {
					w.Error(err)
					return
				}
				if err := a.qp.PostSend(&verbs.SendWR{ID: uint64(i*each + j), Opcode: verbs.Send, Flags: verbs.Signaled, Local: a.mr.SGE(0, 10)}); err != nil {
					w.Error(err)
					return
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, e := range []*end{a, b} {
		for range 2 {
			wg.Go(func() {
				for wc, err := range e.cq.Completions(ctx) {
					if errors.Is(err, context.Canceled) {
						break
					}
					if err != nil {
						w.Errorf("completion: %v", err)
						break
					}
					mu.Lock()
					if e == a {
						seen[wc.ID]++
						<-credits
					} else {
						seen[1<<32]++
					}
					all := len(seen) == threads*each+1 && seen[1<<32] == threads*each
					mu.Unlock()
					if all {
						cancel()
					}
				}
			})
		}
	}
	wg.Wait()
	for id, n := range seen {
		if id != 1<<32 && n != 1 {
			w.Errorf("work request %d completed %d times", id, n)
		}
	}
	if len(seen) != threads*each+1 || seen[1<<32] != threads*each {
		w.Errorf("got %d sends and %d receives, want %d of each", len(seen)-1, seen[1<<32], threads*each)
	}
}

// reset: a queue pair can be connected again.
func (w *world) reset() {
	a, b := w.pair(verbs.QPInit{})
	for range 3 {
		b.recv(1, 0, 100)
		a.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.mr.SGE(0, 10)})
		a.ok(2)
		b.ok(1)
		for _, e := range []*end{a, b} {
			w.must(e.qp.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
			w.must(e.qp.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
		}
		w.connect(a, b)
	}
}

// exec runs programs while the device is open, with registered memory of both kinds: they get nothing of it, and it goes on as before.
func (w *world) exec() {
	a, b := w.pair(verbs.QPInit{})
	mine := make([]byte, 10000)
	from, err := a.pd.RegSlice(mine, 0)
	w.must(err)
	for i := range 5 {
		out, err := exec.Command("sh", "-c", "ls -l /proc/self/fd").CombinedOutput()
		w.must(err)
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "verbena") || strings.Contains(line, "uverbs") {
				w.Errorf("a program has inherited %s", line)
			}
		}
		for j := range mine {
			mine[j] = byte(i + j)
		}
		a.post(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: from.SGE(0, len(mine)), Remote: b.mr.Remote(0)})
		a.ok(1)
		w.same(b.mr.Bytes()[:len(mine)], mine)
	}
	w.must(from.Close())
}
