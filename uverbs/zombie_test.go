package uverbs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/testutil"
	"verbena/uapi"
	"verbena/uapi/verb"
)

// TestDeviceRemoval removes the device while a program has it open.
func TestDeviceRemoval(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		pd := p.allocPD()
		ch := p.createChannel()
		cq, silent := p.createCQ(ch, 1), p.createCQ(-1, 2)
		mr := p.regMR(pd)
		qp := p.createQP(pd, cq, 3, uapi.QPTRC).QPHandle
		qp2 := p.createQP(pd, silent, 4, uapi.QPTUD).QPHandle
		ah := p.createAH(pd)
		p.armAndComplete(cq)
		if got, _ := p.readCompletions(ch); len(got) != 1 {
			t.Fatalf("events %v", got)
		}
		p.armAndComplete(cq) // stays unread
		w.runWithCallbacks(func() {
			p.fakeQP(qp).Raise(ib.EventQPFatal)
			w.handle.DispatchEvent(ib.EventPortErr, 1)
		})

		must(t, w.core.Unregister(w.handle))
		if got := w.drv.TakeDestroyedKinds(); !slices.Equal(got, []string{"QP", "QP", "AH", "MR", "CQ", "CQ", "PD"}) {
			t.Errorf("order of destruction: got %v, want QPs, AH, MR, CQs and PD", got)
		}
		if w.drv.UserContextCount() != 0 || p.acct.Pages() != 0 {
			t.Errorf("zombie: got %d contexts in the driver and %d pages, want 0 and 0", w.drv.UserContextCount(),
				p.acct.Pages())
		}
		if len(w.srv.Devices()) != 0 || p.mem.closed.Load() != 0 {
			t.Error("device after the removal: got it listed or its memory closed, want neither")
		}
		if got, end := p.readCompletions(ch); !end || len(got) != 0 {
			t.Errorf("completion channel: %v, end %v", got, end)
		}
		want := []string{fmt.Sprintf("%v:1", uapi.EventPortErr), fmt.Sprintf("%v:0", uapi.EventDeviceFatal)}
		if got, end := p.readAsyncEvents(p.async); !end || !slices.Equal(got, want) {
			t.Errorf("asynchronous events: got %v with end of file %v, want %v and the end", got, end, want)
		}

		for n, cmd := range commands {
			if cmd.spec.Effect == verb.Destroys || n&uapi.CmdFlagExtended != 0 {
				continue
			}
			_, _, err := p.sendCommand(minimalCommand(cmd))
			wantErrno(t, cmd.String(), err, syscall.EIO)
		}
		_, err := sendPlain[uapi.QueryQPResp](p, uapi.CmdQueryQP, uapi.QueryQP{QPHandle: qp})
		wantErrno(t, "query a queue pair of old", err, syscall.EIO)
		wantErrno(t, "ring the doorbell", p.ringDoorbell(qp), syscall.EIO)
		_, err = p.callMethod(uapi.ObjectDevice, uapi.MethodQueryContext)
		wantErrno(t, "query context", err, syscall.EIO)
		_, err = p.callMethod(uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc, uapi.Attr{})
		wantErrno(t, "another asynchronous event file", err, syscall.EIO)

		// Each handle can be destroyed once, in any order.
		must(t, sendWithoutResponse(p, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: pd}))
		if r := p.destroyCQ(cq); r.CompEventsReported != 1 {
			t.Errorf("destroy CQ: got %+v, want 1 completion event reported", r)
		}
		r, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
		must(t, err)
		if r.EventsReported != 0 {
			t.Errorf("destroy QP: got %+v, want 0 events reported", r)
		}
		must(t, sendWithoutResponse(p, uapi.CmdDeregMR, uapi.DeregMR{MRHandle: mr.MRHandle}))
		must(t, sendWithoutResponse(p, uapi.CmdDestroyAH, uapi.DestroyAH{AHHandle: ah}))
		wantErrno(t, "destroy twice", sendWithoutResponse(p, uapi.CmdDestroyAH, uapi.DestroyAH{AHHandle: ah}), syscall.ENOENT)
		wantErrno(t, "destroy as another kind", sendWithoutResponse(p, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: qp2}),
			syscall.EINVAL)
		if got := w.drv.TakeDestroyedKinds(); len(got) != 0 {
			t.Errorf("objects that the driver destroyed again: got %v, want none", got)
		}
	})
}

// TestRemovalBeforeContext opens a file, and creates a context, while the device is being removed.
func TestRemovalBeforeContext(t *testing.T) {
	w := newFixture(t)
	p := w.open(byWrite)
	d := w.srv.Devices()[0]
	must(t, w.core.Unregister(w.handle))
	if d.attachFile(&File{}) {
		t.Error("attach to a removed device: got success, want a failure")
	}
	_, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
	wantErrno(t, "GET_CONTEXT", err, syscall.EIO)
	_, err = w.srv.Open("uverbs0", p, &unmappedMemory{})
	wantErrno(t, "open", err, syscall.ENODEV)
	if n := len(p.f.events.async); n != 0 {
		t.Errorf("event files: got %d, want 0", n)
	}
}

// TestRemovalWakesReaders checks that blocked readers of events wake up.
func TestRemovalWakesReaders(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	ch := p.createChannel()
	p.createCQ(ch, 1)
	type result struct {
		n   int
		err error
	}
	results := make(chan result)
	go func() {
		n, err := unix.Read(ch, make([]byte, compRecordSize))
		results <- result{n, err}
	}()
	must(t, w.core.Unregister(w.handle))
	if r := <-results; r.n != 0 || r.err != nil {
		t.Errorf("read: got %d bytes and error %v, want the end of the file", r.n, r.err)
	}
}

// TestFatalEventIsReadLast removes the device while the pipe is full. The program must read the fatal event last,
// and then the end of the file.
func TestFatalEventIsReadLast(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	e := p.f.events.fallback
	for i := 0; !waitUntilWritten(e); i++ {
		w.runWithCallbacks(func() { w.handle.DispatchEvent(ib.EventPortActive, i) })
	}
	must(t, w.core.Unregister(w.handle))
	var last uapi.AsyncEventDesc
	buf := make([]byte, asyncRecordSize)
	n := 0
	for ; ; n++ {
		got, err := unix.Read(p.async, buf)
		must(t, err)
		if got == 0 {
			break
		}
		last, _ = uapi.Decode[uapi.AsyncEventDesc](buf)
	}
	if n < os.Getpagesize()/asyncRecordSize || last.EventType != uapi.EventDeviceFatal {
		t.Errorf("events: got %d with %v as the last one, want a full pipe with device fatal as the last one",
			n, last.EventType)
	}
}

// TestRemovalDuringCommandDestroysObjects checks that the driver's objects are destroyed even while a program executes
// a command.
func TestRemovalDuringCommandDestroysObjects(t *testing.T) {
	for _, test := range []struct {
		method ibfake.Method
		run    func(p *program, pd, cq uint32) error
	}{
		{ibfake.AllocPD, func(p *program, pd, cq uint32) error {
			_, err := sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{})
			return err
		}},
		{ibfake.CreateQP, func(p *program, pd, cq uint32) error {
			_, err := sendPlain[uapi.CreateQPResp](p, uapi.CmdCreateQP,
				uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRC})
			return err
		}},
		{ibfake.DeallocPD, func(p *program, pd, cq uint32) error {
			return sendWithoutResponse(p, uapi.CmdDeallocPD, uapi.DeallocPD{PDHandle: pd})
		}},
	} {
		for _, end := range []string{"removal", "close"} {
			t.Run(string(test.method)+"/"+end, func(t *testing.T) {
				w := newFixture(t)
				p := w.startProgram(byWrite)
				pd, cq := p.allocPD(), p.createCQ(-1, 0)
				entered, release := w.drv.HoldMethod(test.method)
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := test.run(p, pd, cq); err != nil {
						t.Error(err)
					}
				})
				<-entered
				var ended atomic.Bool
				wg.Go(func() {
					if end == "removal" {
						if err := w.core.Unregister(w.handle); err != nil {
							t.Error(err)
						}
					} else {
						p.f.Close()
					}
					ended.Store(true)
				})
				for p.f.life.TryRLock() { // until the removal waits for the command
					p.f.life.RUnlock()
				}
				if ended.Load() {
					t.Error("removal during a command: returned, want it to wait")
				}
				release()
				wg.Wait()
				if left := w.dev.Objects().String(); left != "" {
					t.Errorf("remaining objects: got %s, want none", left)
				}
			})
		}
	}
}

// TestRemovalDuringAnswer checks a program that blocks the service on the program's memory, or on the installation of a
// descriptor. The program must not prevent the removal of the device. The object that is being created must be
// destroyed as well.
func TestRemovalDuringAnswer(t *testing.T) {
	for _, test := range []struct {
		what    string
		cmd     uapi.Command
		install error
	}{
		{"installs a descriptor", uapi.CmdCreateCompChannel, nil},
		{"installs a descriptor", uapi.CmdCreateCompChannel, syscall.EMFILE},
		{"stores the response", uapi.CmdAllocPD, nil},
		{"installs a descriptor", uapi.CmdGetContext, nil},
		{"installs a descriptor", uapi.CmdGetContext, syscall.EMFILE},
		{"stores the response", uapi.CmdGetContext, nil},
	} {
		t.Run(fmt.Sprint(test.cmd, test.what, test.install), func(t *testing.T) {
			w := newFixture(t)
			p := w.open(byWrite)
			if test.cmd != uapi.CmdGetContext {
				_, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
				must(t, err)
			}
			waiting, release := make(chan struct{}), make(chan struct{})
			c := &observedCaller{program: p, install: test.install, before: func(now string) {
				if now == test.what {
					close(waiting)
					<-release
				}
			}}
			hdr := uapi.CmdHdr{Command: uint32(test.cmd), InWords: 4, OutWords: 2}
			cmd := append(uapi.AppendTo(nil, &hdr), make([]byte, 8)...)
			putUint64(cmd[8:], addressOf(p.allocMem(8)))
			cmd = p.storeBytes(cmd)
			done := make(chan error)
			go func() {
				_, err := p.f.Write(c, addressOf(cmd), len(cmd))
				done <- err
			}()
			<-waiting
			must(t, w.core.Unregister(w.handle))
			if left := w.dev.Objects().String(); left != "" {
				t.Errorf("remaining objects: got %s, want none", left)
			}
			close(release)
			if err := <-done; !errors.Is(err, test.install) {
				t.Errorf("%v, want %v", err, test.install)
			}
			if !p.f.info().Zombie {
				t.Error("context after the removal: got a live context, want a zombie")
			}
		})
	}
}

// TestCloseDestroysOnce checks that a close in any state destroys each object once, in dependency order.
func TestCloseDestroysOnce(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	for range 2 {
		pd := p.allocPD()
		cq := p.createCQ(p.createChannel(), 0)
		p.createAH(pd)
		p.regMR(pd)
		p.createQP(pd, cq, 0, uapi.QPTRC)
	}
	p.f.Close()
	p.f.Close()
	if got := w.drv.TakeDestroyedKinds(); !slices.Equal(got, []string{"QP", "QP", "AH", "AH", "MR", "MR", "CQ", "CQ",
		"PD", "PD"}) {
		t.Errorf("destroyed %v", got)
	}
	if w.drv.UserContextCount() != 0 {
		t.Errorf("contexts in the driver: got %d, want 0", w.drv.UserContextCount())
	}
	if _, end := p.readAsyncEvents(p.async); !end {
		t.Error("asynchronous event file after the close: got no end of the file, want one")
	}
	if got := w.srv.Resources(); len(got) != 0 {
		t.Errorf("resources: %+v", got)
	}
}

// TestFailedDestroyDoesNotStopClose checks a driver that fails to destroy one object. The failure must be logged and
// must not prevent the destruction of the other objects.
func TestFailedDestroyDoesNotStopClose(t *testing.T) {
	core, drv := &ib.Core{}, ibfake.New()
	must(t, core.Register(ib.NewDevice("rxe0", drv, nil)))
	var log testutil.Buffer
	srv, err := NewServer(core, ServerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	p := (&fixture{t: t, core: core, drv: drv, srv: srv}).startProgram(byWrite)
	p.createAH(p.allocPD())
	p.createCQ(-1, 0)
	drv.FailMethod(ibfake.DestroyAH, syscall.EIO)
	p.f.Close()
	if got := drv.TakeDestroyedKinds(); !slices.Equal(got, []string{"CQ"}) {
		t.Errorf("destroyed %v", got)
	}
	said := slices.Collect(strings.Lines(log.String()))
	if len(said) != 2 || !strings.Contains(said[0], "cannot destroy AH") ||
		!strings.Contains(said[1], "cannot destroy PD") {
		t.Errorf("log: got %q, want \"cannot destroy PD\" in the second line", said)
	}
	if drv.UserContextCount() != 0 {
		t.Errorf("contexts in the driver: got %d, want 0", drv.UserContextCount())
	}
}
