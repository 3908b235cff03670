// Package suite is the tests of package verbs that must pass on every transport: on devices in this process, of a service, and of a
// kernel. A test of each hands it a way to open the device.
package suite

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
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
		{"CloseDeviceMemory", (*world).closeDeviceMemory}, {"CloseWhileCreating", (*world).closeWhileCreating},
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
