// Package suite contains the tests of package verbs that must pass on every transport: on devices in this process,
// of a service, and of a kernel. A test for each transport provides the function that opens the device.
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

// Config is the configuration of the tests.
type Config struct {
	// Open opens a new instance of the device.
	Open func() (*verbs.Device, error)
	// Path is the path for connections of queue pairs. The zero Path is correct if the default GID reaches the
	// device itself.
	Path verbs.Path
	// Without lists the abilities that the device lacks. No test is skipped because of a missing ability. Instead,
	// the tests check for the result of a device without the ability.
	Without map[Ability]bool
}

// Ability is a feature that some devices lack.
type Ability string

// The following constants are the abilities. In Linux 6.1, the kernel's rxe has none of these abilities.
const (
	AtomicWrite  Ability = "ATOMIC WRITE"
	Flush        Ability = "FLUSH"
	Multicast    Ability = "multicast"                // multicast between queue pairs of one device
	WindowRange  Ability = "range of a window"        // a WRITE outside of a memory window fails
	LocalErrors  Ability = "local protection error"   // for a wrong local key; without it, the status is LocalQPError
	AccessEvents Ability = "event of an access error" // event at the target of a request that exceeds its rights
)

// Run runs the tests.
func Run(t *testing.T, c Config) {
	for _, x := range []struct {
		name string
		f    func(*Testbed)
	}{
		{"Query", (*Testbed).testQueryDevice}, {"Send", (*Testbed).testSend}, {"Write", (*Testbed).testWrite}, {"Read",
			(*Testbed).testRead},
		{"Immediate", (*Testbed).testImmediate}, {"Inline", (*Testbed).testInline}, {"Atomics",
			(*Testbed).testAtomics}, {"AtomicWrite",
			(*Testbed).testAtomicWrite},
		{"Flush", (*Testbed).testFlush}, {"Lists", (*Testbed).testSGELists}, {"Batch",
			(*Testbed).testPostSends}, {"Unreliable",
			(*Testbed).testUnreliable},
		{"Datagrams", (*Testbed).testDatagrams}, {"Multicast", (*Testbed).testMulticast}, {"SRQ",
			(*Testbed).testSRQ}, {"Windows",
			(*Testbed).testWindows},
		{"Slice", (*Testbed).testRegSlice}, {"Wait", (*Testbed).testWaitForCompletion}, {"Cancel",
			(*Testbed).testCancelWait}, {"Channel",
			(*Testbed).testCompletionChannel},
		{"Iterator", (*Testbed).testCompletionIterator}, {"Full", (*Testbed).testFullCQ}, {"Resize",
			(*Testbed).testResizeCQ}, {"Errors", (*Testbed).testCompletionErrors},
		{"Events", (*Testbed).testAsyncEvents}, {"Closed", (*Testbed).testClosedObjectsFail}, {"Busy",
			(*Testbed).testCloseOfBusyObjects}, {"CloseDevice",
			(*Testbed).testCloseDevice},
		{"CloseDeviceMemory", (*Testbed).testCloseDeviceMemory}, {"CloseWhileCreating", (*Testbed).testCloseWhileCreating},
		{"Concurrent", (*Testbed).testConcurrentPostAndPoll}, {"Reset", (*Testbed).testReset}, {"Exec",
			(*Testbed).testExecWithOpenDevice},
	} {
		t.Run(x.name, func(t *testing.T) { WithDevice(t, c, x.f) })
	}
}

// WithDevice runs one test with the device open.
func WithDevice(t *testing.T, c Config, test func(*Testbed)) {
	w := &Testbed{T: t, Config: c}
	d, err := c.Open()
	w.Must(err)
	w.Device = d
	defer func() { w.Must(d.Close()) }()
	test(w)
}

// Testbed holds the open device of a test, and makes queue pairs on it.
type Testbed struct {
	*testing.T
	Config Config
	Device *verbs.Device
	Memory int // memory of an End in bytes; 0 means 1 MB
}

// Must ends the test if err is not nil.
func (w *Testbed) Must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// expectRefused posts a work request that the device does not support.
func (e *End) expectRefused(wr verbs.SendWR) {
	e.Helper()
	wr.Flags |= verbs.Signaled
	if err := e.QP.PostSend(&wr); err == nil {
		if wc := e.WaitCompletion(); wc.Status == verbs.Success {
			e.Errorf("%v on a device without the operation: got success, want an error", wr.Opcode)
		}
	}
}

// operationTimeout limits operations that normally take microseconds.
const operationTimeout = 20 * time.Second

// ShortContext returns a context with a timeout for operations that normally take microseconds.
func (w *Testbed) ShortContext() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	w.Cleanup(cancel)
	return ctx
}

// End is one side of a connection: a queue pair with memory.
type End struct {
	*Testbed
	PD *verbs.PD
	CQ *verbs.CQ
	QP *verbs.QP
	MR *verbs.MR
}

const endMemorySize = 1 << 20

// NewEnd makes a queue pair in RESET, with a completion queue and with memory that peers may access in every way.
func (w *Testbed) NewEnd(init verbs.QPInit) *End {
	w.Helper()
	e := &End{Testbed: w}
	var err error
	e.PD, err = w.Device.AllocPD()
	w.Must(err)
	e.CQ, err = w.Device.CreateCQ(1000, nil)
	w.Must(err)
	if init.SendCQ == nil {
		init.SendCQ = e.CQ
	}
	e.QP, err = e.PD.CreateQP(init)
	w.Must(err)
	e.MR, err = e.PD.Alloc(cmp.Or(w.Memory, endMemorySize),
		verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic|verbs.BindWindows)
	w.Must(err)
	return e
}

// Close closes the objects in the right order.
func (e *End) Close() {
	e.Helper()
	for _, c := range []io.Closer{e.QP, e.MR, e.CQ, e.PD} {
		e.Must(c.Close())
	}
}

// NewPair makes two connected Ends.
func (w *Testbed) NewPair(init verbs.QPInit) (a, b *End) {
	w.Helper()
	a, b = w.NewEnd(init), w.NewEnd(init)
	w.Connect(a, b)
	return a, b
}

// Connect connects two Ends in RESET or INIT.
func (w *Testbed) Connect(a, b *End) {
	w.Helper()
	w.ConnectVia(a, b, w.Config.Path)
}

// ConnectVia is like Connect, with a path derived from the path of the Config.
func (w *Testbed) ConnectVia(a, b *End, p verbs.Path) {
	w.Helper()
	ea, err := a.QP.LocalVia(p)
	w.Must(err)
	eb, err := b.QP.LocalVia(p)
	w.Must(err)
	w.Must(a.QP.ConnectVia(eb, p))
	w.Must(b.QP.ConnectVia(ea, p))
}

// WaitCompletion waits for a completion.
func (e *End) WaitCompletion() verbs.WC {
	e.Helper()
	var wc [1]verbs.WC
	n, err := e.CQ.Wait(e.ShortContext(), wc[:])
	if err != nil || n != 1 {
		e.Fatalf("wait for a completion: got %d and error %v, want one", n, err)
	}
	return wc[0]
}

// WaitSuccess waits for a completion, which must report success of the given work request.
func (e *End) WaitSuccess(id uint64) verbs.WC {
	e.Helper()
	wc := e.WaitCompletion()
	if err := verbs.CompletionError(&wc); err != nil || wc.ID != id || wc.QPN != e.QP.Num() {
		e.Fatalf("completion: got work request %d of QP %d with %v, want %d of %d", wc.ID, wc.QPN, err, id, e.QP.Num())
	}
	return wc
}

// Fill writes a pattern to n bytes of the memory, and returns them.
func (e *End) Fill(off, n int, seed byte) []byte {
	b := e.MR.Bytes()[off:][:n]
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

// Remote returns the memory from an offset on, in the form that peers need.
func (e *End) Remote(off int) verbs.Remote {
	return verbs.Remote{Addr: e.MR.Addr() + uint64(off), RKey: e.MR.RKey()}
}

// PostSend posts a signalled work request.
func (e *End) PostSend(wr verbs.SendWR) {
	e.Helper()
	wr.Flags |= verbs.Signaled
	e.Must(e.QP.PostSend(&wr))
}

// PostRecv posts a receive of n bytes.
func (e *End) PostRecv(id uint64, off, n int) {
	e.Helper()
	e.Must(e.QP.PostRecv(&verbs.RecvWR{ID: id, Local: e.MR.SGE(off, n)}))
}

// MustEqual ends the test if the bytes differ.
func (w *Testbed) MustEqual(got, want []byte) {
	w.Helper()
	if !bytes.Equal(got, want) {
		w.Fatalf("received data of %d bytes: got a difference, want the sent bytes", len(want))
	}
}

func (w *Testbed) testQueryDevice() {
	attr, err := w.Device.Query()
	w.Must(err)
	if attr.Ports < 1 || attr.MaxQP < 10 || attr.MaxQPWR < 64 || attr.NodeGUID == 0 {
		w.Errorf("Query: got %+v", attr)
	}
	port, err := w.Device.QueryPort(1)
	w.Must(err)
	if port.State != uapi.PortActive || port.ActiveMTU.Bytes() < 256 || port.GIDs < 1 {
		w.Errorf("QueryPort: got %+v", port)
	}
	if _, err := w.Device.QueryPort(77); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("QueryPort of 77: got %v, want EINVAL", err)
	}
	gids, err := w.Device.GIDs()
	w.Must(err)
	best, err := w.Device.DefaultGID(1)
	w.Must(err)
	found := false
	for _, g := range gids {
		found = found || g == best
	}
	if !found {
		w.Errorf("DefaultGID: got %+v, want one of %+v", best, gids)
	}
	e := w.NewEnd(verbs.QPInit{})
	defer e.Close()
	a, err := e.QP.Query()
	w.Must(err)
	if a.State != verbs.Reset {
		w.Errorf("state of a new QP: got %v, want %v", a.State, verbs.Reset)
	}
}
