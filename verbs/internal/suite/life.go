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

// closeWhileCreating tests that what goroutines create on a device while it is closed is closed, too.
func (w *world) closeWhileCreating() {
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
			return func() error { return second(q.Poll(make([]verbs.WC, 1))) }, err
		}},
		{"Channel", func(pd *verbs.PD, _ *verbs.CQ) (func() error, error) {
			ch, err := pd.Device().CreateChannel()
			return func() error { return second(ch.Wait(w.ctx())) }, err
		}},
	} {
		for round := range rounds {
			d, err := w.c.Open()
			w.must(err)
			pd, err := d.AllocPD()
			w.must(err)
			cq, err := d.CreateCQ(16, nil)
			w.must(err)
			made := make([][]func() error, goroutines)
			var creating sync.WaitGroup
			for i := range made {
				creating.Go(func() {
					for {
						use, err := c.create(pd, cq)
						if err != nil {
							return // of the device, or of a limit
						}
						made[i] = append(made[i], use)
					}
				})
			}
			time.Sleep(time.Duration(round) * 50 * time.Microsecond)
			w.must(d.Close())
			creating.Wait()
			for _, use := range slices.Concat(made...) {
				if err := use(); !errors.Is(err, verbs.ErrClosed) {
					w.Fatalf("a %s of a device that was closed meanwhile: got %v, want %v", c.name, err, verbs.ErrClosed)
				}
			}
		}
	}
}
