package suite

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/verbs"
)

func (w *Testbed) testCompletionErrors() {
	for _, x := range []struct {
		name string
		wr   func(a, b *End) verbs.SendWR
		want verbs.Status
	}{
		{"no receive", func(a, b *End) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.Send, Local: a.MR.SGE(0, 10)}
		}, verbs.RNRRetryExceeded},
		{"wrong local key", func(a, b *End) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.Write, Local: verbs.SGE{Addr: a.MR.Addr(), Length: 10, LKey: 12345},
				Remote: b.Remote(0)}
		}, verbs.LocalProtection},
		{"wrong remote key", func(a, b *End) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.Write, Local: a.MR.SGE(0, 10),
				Remote: verbs.Remote{Addr: b.MR.Addr(), RKey: 12345}}
		}, verbs.RemoteAccessError},
	} {
		w.Run(x.name, func(t *testing.T) {
			w := &Testbed{T: t, Config: w.Config, Device: w.Device}
			a, b := w.NewEnd(verbs.QPInit{}), w.NewEnd(verbs.QPInit{})
			p := w.Config.Path
			p.RNRRetries = verbs.Never
			w.ConnectVia(a, b, p)
			wr := x.wr(a, b)
			wr.ID = 77
			a.PostSend(wr)
			wc := a.WaitCompletion()
			werr := verbs.CompletionError(&wc)
			want := x.want
			if want == verbs.LocalProtection && w.Config.Without[LocalErrors] {
				want = verbs.LocalQPError
			}
			if !errors.Is(werr, want) {
				w.Fatalf("got %v, want %v", wc.Status, want)
			}
			var e *verbs.WCError
			if !errors.As(werr, &e) || e.ID != 77 || e.QPN != a.QP.Num() {
				w.Errorf("got %+v", e)
			}
			// After the failure all requests are flushed.
			a.PostSend(verbs.SendWR{ID: 78, Opcode: verbs.Send, Local: a.MR.SGE(0, 10)})
			if wc := a.WaitCompletion(); wc.ID != 78 || wc.Status != verbs.Flushed {
				w.Errorf("next completion: got work request %d with %v, want 78 with %v", wc.ID, wc.Status, verbs.Flushed)
			}
			q, err := a.QP.Query()
			w.Must(err)
			if q.State != verbs.Error {
				w.Errorf("state of the QP: got %v, want %v", q.State, verbs.Error)
			}
		})
	}
}

func (w *Testbed) testAsyncEvents() {
	a, b := w.NewPair(verbs.QPInit{})
	// A WRITE without the right also raises an event at the other end.
	mr, err := b.PD.Alloc(4096, verbs.LocalWrite)
	w.Must(err)
	a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: a.MR.SGE(0, 10),
		Remote: verbs.Remote{Addr: mr.Addr(), RKey: mr.RKey()}})
	if wc := a.WaitCompletion(); wc.Status != verbs.RemoteAccessError {
		w.Errorf("got %v, want %v", wc.Status, verbs.RemoteAccessError)
	}
	if w.Config.Without[AccessEvents] {
		return
	}
	e, err := w.Device.NextEvent(w.ShortContext())
	w.Must(err)
	if e.QP != b.QP || e.Type != verbs.EventQPAccessError && e.Type != verbs.EventQPFatal {
		w.Errorf("event: got %+v, want an event of QP %d", e, b.QP.Num())
	}
}

func (w *Testbed) testClosedObjectsFail() {
	a, b := w.NewPair(verbs.QPInit{})
	mem := a.MR.Bytes()
	sge := a.MR.SGE(0, 10)
	a.Close()
	a.Close() // closes a second time
	for _, x := range []struct {
		name string
		err  error
	}{
		{"PostSend", a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: sge})}, {"PostRecv",
			a.QP.PostRecv(&verbs.RecvWR{Local: sge})},
		{"Arm", a.CQ.Arm(false)},
		{"Resize", a.CQ.Resize(10)},
		{"Poll", errorOnly(a.CQ.Poll(make([]verbs.WC, 1)))},
		{"Wait", errorOnly(a.CQ.Wait(w.ShortContext(), make([]verbs.WC, 1)))},
		{"CreateQP", errorOnly(a.PD.CreateQP(verbs.QPInit{SendCQ: b.CQ}))},
		{"Alloc", errorOnly(a.PD.Alloc(10, 0))},
		{"CreateQP on a closed CQ", errorOnly(b.PD.CreateQP(verbs.QPInit{SendCQ: a.CQ}))},
	} {
		if !errors.Is(x.err, verbs.ErrClosed) {
			w.Errorf("%s after Close: got %v, want %v", x.name, x.err, verbs.ErrClosed)
		}
	}
	if a.MR.Bytes() != nil {
		w.Error("Bytes after Close: got memory, want none")
	}
	mem[0]++ // must not crash
}

func errorOnly[T any](_ T, err error) error { return err }

func (w *Testbed) testCloseOfBusyObjects() {
	e := w.NewEnd(verbs.QPInit{})
	if err := e.PD.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a PD in use: got %v, want EBUSY", err)
	}
	if err := e.CQ.Close(); !errors.Is(err, syscall.EBUSY) {
		w.Errorf("Close of a CQ in use: got %v, want EBUSY", err)
	}
	e.Close()
}

func (w *Testbed) testCloseDevice() {
	d, err := w.Config.Open()
	w.Must(err)
	o := &Testbed{T: w.T, Config: w.Config, Device: d}
	a, b := o.NewPair(verbs.QPInit{})
	errs := make(chan error, 3)
	go func() { errs <- errorOnly(a.CQ.Wait(context.Background(), make([]verbs.WC, 1))) }()
	go func() { errs <- errorOnly(d.NextEvent(context.Background())) }()
	go func() {
		for _, err := range b.CQ.Completions(context.Background()) {
			errs <- err
		}
	}()
	time.Sleep(5 * time.Millisecond)
	w.Must(d.Close())
	w.Must(d.Close())
	for range 3 {
		select {
		case err := <-errs:
			if !errors.Is(err, verbs.ErrClosed) {
				w.Errorf("Wait during Close: got %v, want %v", err, verbs.ErrClosed)
			}
		case <-time.After(operationTimeout):
			w.Fatal("Wait during Close: got no return, want one")
		}
	}
	if err := a.QP.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: a.MR.SGE(0, 10)}); !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("PostSend: got %v, want %v", err, verbs.ErrClosed)
	}
	if _, err := d.AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("AllocPD: got %v, want %v", err, verbs.ErrClosed)
	}
	a.Close() // closing the remaining objects returns no error
}

// testCloseDeviceMemory tests that peers cannot access memory through a closed device. The memory may already be in use
// for another purpose.
func (w *Testbed) testCloseDeviceMemory() {
	const size, rounds = 256 << 10, 20
	for range rounds {
		d, err := w.Config.Open()
		w.Must(err)
		o := &Testbed{T: w.T, Config: w.Config, Device: d, Memory: size}
		a, b := o.NewEnd(verbs.QPInit{}), (&Testbed{T: w.T, Config: w.Config, Device: w.Device,
			Memory: size}).NewEnd(verbs.QPInit{})
		w.Connect(a, b)
		there, started := a.MR.Remote(0), make(chan struct{})
		var writing sync.WaitGroup
		writing.Go(func() { // until the peer was removed
			var wcs [1]verbs.WC
			for i := 0; ; i++ {
				if i == 10 {
					close(started)
				}
				wr := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: b.MR.SGE(0, size), Remote: there}
				if b.QP.PostSend(&wr) != nil {
					return
				}
				if n, err := b.CQ.Wait(w.ShortContext(), wcs[:]); n != 1 || err != nil || wcs[0].Status != verbs.Success {
					return
				}
			}
		})
		b.MR.Bytes()[0], b.MR.Bytes()[size-1] = 1, 1
		<-started
		w.Must(d.Close())
		mem := a.MR.Bytes()
		clear(mem)
		time.Sleep(2 * time.Millisecond)
		if mem[0] != 0 || mem[size-1] != 0 {
			w.Error("memory of a closed device: got a write of a peer, want none")
		}
		w.Must(a.MR.Close())
		w.Must(b.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
		writing.Wait()
		b.Close()
	}
}

// testReset tests that a queue pair can be connected again after a reset.
func (w *Testbed) testReset() {
	a, b := w.NewPair(verbs.QPInit{})
	for range 3 {
		b.PostRecv(1, 0, 100)
		a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: a.MR.SGE(0, 10)})
		a.WaitSuccess(2)
		b.WaitSuccess(1)
		for _, e := range []*End{a, b} {
			w.Must(e.QP.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState))
			w.Must(e.QP.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState))
		}
		w.Connect(a, b)
	}
}

// testExecWithOpenDevice tests programs executed while the device is open and memory of both kinds is registered. The
// programs must inherit no descriptors of the device, and the device must still work.
func (w *Testbed) testExecWithOpenDevice() {
	a, b := w.NewPair(verbs.QPInit{})
	mine := make([]byte, 10000)
	from, err := a.PD.RegSlice(mine, 0)
	w.Must(err)
	for i := range 5 {
		out, err := exec.Command("sh", "-c", "ls -l /proc/self/fd").CombinedOutput()
		w.Must(err)
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "verbena") || strings.Contains(line, "uverbs") {
				w.Errorf("inherited descriptor of a program: got %s, want none", line)
			}
		}
		for j := range mine {
			mine[j] = byte(i + j)
		}
		a.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: from.SGE(0, len(mine)), Remote: b.MR.Remote(0)})
		a.WaitSuccess(1)
		w.MustEqual(b.MR.Bytes()[:len(mine)], mine)
	}
	w.Must(from.Close())
}

// testCloseWhileCreating tests that objects that goroutines create while the device closes are also closed.
func (w *Testbed) testCloseWhileCreating() {
	const rounds, goroutines = 20, 2
	for _, c := range []struct {
		name   string
		create func(pd *verbs.PD, cq *verbs.CQ) (use func() error, err error)
	}{
		{"QP", func(pd *verbs.PD, cq *verbs.CQ) (func() error, error) {
			q, err := pd.CreateQP(verbs.QPInit{SendCQ: cq})
			return func() error { return q.PostRecv(&verbs.RecvWR{}) }, err
		}},
		{"SRQ", func(pd *verbs.PD, _ *verbs.CQ) (func() error, error) {
			q, err := pd.CreateSRQ(4, 1)
			return func() error { return q.PostRecv(&verbs.RecvWR{}) }, err
		}},
		{"CQ", func(pd *verbs.PD, _ *verbs.CQ) (func() error, error) {
			q, err := pd.Device().CreateCQ(4, nil)
			return func() error { return errorOnly(q.Poll(make([]verbs.WC, 1))) }, err
		}},
		{"Channel", func(pd *verbs.PD, _ *verbs.CQ) (func() error, error) {
			ch, err := pd.Device().CreateChannel()
			return func() error { return errorOnly(ch.Wait(w.ShortContext())) }, err
		}},
	} {
		for round := range rounds {
			d, err := w.Config.Open()
			w.Must(err)
			pd, err := d.AllocPD()
			w.Must(err)
			cq, err := d.CreateCQ(16, nil)
			w.Must(err)
			made := make([][]func() error, goroutines)
			var creating sync.WaitGroup
			for i := range made {
				creating.Go(func() {
					for {
						use, err := c.create(pd, cq)
						if err != nil {
							return // error of the closed device, or of a limit
						}
						made[i] = append(made[i], use)
					}
				})
			}
			time.Sleep(time.Duration(round) * 50 * time.Microsecond)
			w.Must(d.Close())
			creating.Wait()
			for _, use := range slices.Concat(made...) {
				if err := use(); !errors.Is(err, verbs.ErrClosed) {
					w.Fatalf("create a %s on a device closed meanwhile: got %v, want %v", c.name, err, verbs.ErrClosed)
				}
			}
		}
	}
}
