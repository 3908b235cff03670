package uverbs

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibfake"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/uapi"
)

// runWithin fails the test if f exceeds a generous limit. The limit distinguishes a wait from a hang.
func runWithin(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: got no return within 20 s, want one", what)
	}
}

// stuckCalls are calls that the tests block in the driver. A copy from or to blocked memory would block them in the
// same way.
var stuckCalls = []struct {
	method ibfake.Method
	run    func(p *program, pd, cq, qp uint32) error
}{
	{ibfake.CreateQP, func(p *program, pd, cq, _ uint32) error {
		_, err := sendPlain[uapi.CreateQPResp](p, uapi.CmdCreateQP,
			uapi.CreateQP{PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, QPType: uapi.QPTRC})
		return err
	}},
	{ibfake.Doorbell, func(p *program, _, _, qp uint32) error { return p.ringDoorbell(qp) }},
	{ibfake.DestroyQP, func(p *program, _, _, qp uint32) error {
		_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
		return err
	}},
}

// TestStuckCallDelaysNoRemoval checks a blocked call. The call must prevent neither the removal of the device nor
// the progress of other contexts. The context of the blocked call must become a zombie at once and be named in the log.
// The context must end when the call returns.
func TestStuckCallDelaysNoRemoval(t *testing.T) {
	for _, test := range stuckCalls {
		t.Run(string(test.method), func(t *testing.T) {
			var log testutil.Buffer
			w := newFixtureWith(t, ServerOptions{CompVectors: 2, Log: slog.New(slog.NewTextHandler(&log, nil)),
				Grace: 100 * time.Millisecond})
			var violations []check.Violation
			check.On(w.core, check.Config{Report: func(v check.Violation) { violations = append(violations, v) },
				Timeout: time.Minute})
			p, other := w.startProgram(byWrite), w.startProgram(byWrite)
			pd, cq := p.allocPD(), p.createCQ(-1, 0)
			qp := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
			p.fakeQP(qp).MoveToReady()
			other.allocPD()
			entered, release := w.drv.HoldMethod(test.method)
			var once sync.Once
			defer once.Do(release)
			returned := make(chan error, 1)
			go func() { returned <- test.run(p, pd, cq, qp) }()
			<-entered
			runWithin(t, "Info", func() { p.f.info() })
			runWithin(t, "Unregister", func() {
				if err := w.core.Unregister(w.handle); err != nil {
					t.Errorf("Unregister: got %v, want nil because the remaining objects do not belong to the device", err)
				}
			})
			if i := other.f.info(); !i.Zombie || i.Busy || len(i.PDs) != 1 {
				t.Errorf("the other context: got %+v, want a zombie with a handle", i)
			}
			if i := p.f.info(); !i.Zombie || !i.Busy {
				t.Errorf("the context of the call: got %+v, want a busy zombie", i)
			}
			runWithin(t, "a command", func() {
				_, err := sendPlain[uapi.AllocPDResp](p, uapi.CmdAllocPD, uapi.AllocPD{})
				wantErrno(t, "alloc pd after the removal", err, syscall.EIO)
			})
			runWithin(t, "a doorbell", func() { wantErrno(t, "doorbell after the removal", p.ringDoorbell(qp), syscall.EIO) })
			if !strings.Contains(log.String(), "left behind") ||
				!strings.Contains(log.String(), fmt.Sprintf("uid=%d pid=%d name=test", p.UID(), p.PID())) {
				t.Errorf("log: got %q, want it to name the process", log.String())
			}
			runWithin(t, "Resources", func() { w.srv.Resources() })
			runWithin(t, "Close", p.f.Close)
			if n := p.mem.closed.Load(); n != 0 {
				t.Errorf("calls of Close of the memory during a call: got %d, want 0", n)
			}
			once.Do(release)
			<-returned
			runWithin(t, "the end of the context", func() { <-p.f.end.Load().done })
			if got := w.dev.Objects(); got != (ib.ObjectCounts{}) {
				t.Errorf("left: %v", got)
			}
			if len(violations) > 0 {
				t.Errorf("violations: got %v, want none", violations)
			}
		})
	}
}

// TestStuckCallDelaysNoClose checks that the close of a file does not wait for a blocked call. A later removal of
// the device must include the file.
func TestStuckCallDelaysNoClose(t *testing.T) {
	for _, goes := range []bool{false, true} {
		t.Run(fmt.Sprint(goes), func(t *testing.T) {
			var log testutil.Buffer
			w := newFixtureWith(t, ServerOptions{CompVectors: 2, Log: slog.New(slog.NewTextHandler(&log, nil)),
				Grace: 100 * time.Millisecond})
			p, other := w.startProgram(byWrite), w.startProgram(byWrite)
			pd, cq := p.allocPD(), p.createCQ(-1, 0)
			for range 3 {
				p.createQP(pd, cq, 0, uapi.QPTRC)
			}
			w.drv.TakeDestroyedKinds()
			entered, release := w.drv.HoldMethod(ibfake.DestroyQP)
			var once sync.Once
			defer once.Do(release)
			quit := make(chan struct{})
			defer close(quit)
			go func() {
				for { // receives the reports of all calls, which then block
					select {
					case <-entered:
					case <-quit:
						return
					}
				}
			}()
			runWithin(t, "Close", p.f.Close)
			// The driver is slow. The memory of the process responds.
			if got := log.String(); !strings.Contains(got, "closed, but") || strings.Contains(got, "memory") {
				t.Errorf("log: got %q, want \"closed, but\" without a word about memory", got)
			}
			other.allocPD()
			if goes {
				runWithin(t, "Unregister", func() { must(t, w.core.Unregister(w.handle)) })
			}
			once.Do(release)
			runWithin(t, "the end of the context", func() { <-p.f.end.Load().done })
			if n := len(w.drv.TakeDestroyedKinds()); n < 5 {
				t.Errorf("destroyed objects: got %d, want at least 5: 3 QPs, a CQ and a PD", n)
			}
		})
	}
}

// TestSlowDestructionDelaysNoOther checks that the slow destruction of an object does not delay the destruction of the
// next objects.
func TestSlowDestructionDelaysNoOther(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byWrite)
	gate := make(chan struct{})
	var mu sync.Mutex
	var order []uint32
	var objects []*object
	for i := range uint32(20) {
		o := &object{handle: i}
		o.res = destroyFunc(func() error {
			if i == 3 {
				<-gate
			}
			mu.Lock()
			defer mu.Unlock()
			if order = append(order, i); len(order) == 19 {
				close(gate)
			}
			return errors.New("it stays")
		})
		objects = append(objects, o)
	}
	must(t, p.f.user.Charge(quota.PDs, 20))
	runWithin(t, "destroyInOrder", func() { p.f.destroyInOrder(objects) })
	if len(order) != 20 || order[19] != 3 {
		t.Errorf("order of destruction: got %v, want 20 objects with 3 as the last one", order)
	}
}

type destroyFunc func() error

func (destroyFunc) kind() objectKind { return kindPD }
func (f destroyFunc) destroy() error { return f() }
func (destroyFunc) Abandon()         {}

// TestNoLockAcrossStore checks that no lock is held while the offset of a resized queue is stored in the program's
// memory. Blocked memory must not delay other threads. The device may be removed, or the file closed, during the store.
func TestNoLockAcrossStore(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(w *fixture, p *program)
		want syscall.Errno
	}{
		{"nothing", func(*fixture, *program) {}, 0},
		{"removal", func(w *fixture, p *program) { must(t, w.core.Unregister(w.handle)) }, syscall.EIO},
		{"close", func(w *fixture, p *program) { p.f.Close() }, syscall.EBADF},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newRXEFixture(t)
			p := w.startProgram(byWrite)
			srq, _ := p.createSRQ(p.allocPD(), uapi.CreateXSRQ{SRQType: uapi.SRQTBasic})
			stored := 0
			c := &observedCaller{program: p, before: func(what string) {
				if what != "stores the response" {
					return
				}
				stored++
				if !p.f.life.TryLock() {
					t.Error("File.life during the store: locked, want it unlocked")
				} else {
					p.f.life.Unlock()
				}
				runWithin(t, test.name, func() { test.do(w, p) })
			}}
			place := p.allocMem(uapi.SizeOf[uapi.MMInfo]())
			req := uapi.ModifySRQ{SRQHandle: srq.SRQHandle, AttrMask: uapi.SRQAttrMaxWR, MaxWR: 100}
			body := append(encode(req), encode(uapi.RXEModifySRQCmd{MMapInfoAddr: addressOf(place)})...)
			hdr := uapi.CmdHdr{Command: uint32(uapi.CmdModifySRQ), InWords: uint16(2 + len(body)/4)}
			cmd := p.storeBytes(append(uapi.AppendTo(nil, &hdr), body...))
			_, err := p.f.Write(c, addressOf(cmd), len(cmd))
			wantErrno(t, "resize", err, test.want)
			if stored != 1 {
				t.Errorf("stores: got %d, want 1", stored)
			}
			if test.want == 0 {
				resp, err := sendPlain[uapi.QuerySRQResp](p, uapi.CmdQuerySRQ, uapi.QuerySRQ{SRQHandle: srq.SRQHandle})
				if err != nil || resp.MaxWR < 100 {
					t.Errorf("query srq: got %+v and error %v, want a capacity of at least 100", resp, err)
				}
			}
		})
	}
}
