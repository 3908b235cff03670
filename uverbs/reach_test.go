package uverbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/states"
	"verbena/internal/testutil"
	"verbena/uapi"
)

// programWithPID is a program with another process number.
type programWithPID struct {
	*program
	pid int
}

func (n programWithPID) PID() int { return n.pid }

// TestWithCQSelectsProgram checks which completion queue a handle and a process number select for an operator.
func TestWithCQSelectsProgram(t *testing.T) {
	w := newFixture(t)
	a, b, closed := w.startProgram(byWrite), w.startProgram(byWrite), w.startProgram(byWrite)
	a.f.proc, b.f.proc, closed.f.proc = programWithPID{a, 7}, programWithPID{b, 8}, programWithPID{closed, 9}
	shared, other := a.createCQ(-1, 0), b.createCQ(-1, 0)
	if shared != other {
		t.Fatalf("first handles: got %d and %d, want equal ones", shared, other)
	}
	own := b.createCQ(-1, 0)
	pd := b.allocPD()
	busy := b.createCQ(-1, 0)
	_, err := b.f.objects.takeForDestroy(busy, kindCQ)
	must(t, err)
	defer b.f.objects.find(busy).publish()
	closed.createCQ(-1, 0)
	closed.f.Close()
	another := ib.NewDevice("rxe1", ibfake.New(), nil)
	cqOf := func(p *program, handle uint32) *ib.CQ { return p.f.objects.find(handle).res.(*cqObject).CQ }

	const several, nothing = "2 programs have this handle, name the process too", "no program has this handle"
	for _, test := range []struct {
		name   string
		dev    *ib.Device
		handle uint32
		pid    int
		cq     *ib.CQ
		want   syscall.Errno
		text   string
	}{
		{"of several programs", w.dev, shared, 0, nil, syscall.EINVAL, several},
		{"of the first", w.dev, shared, 7, cqOf(a, shared), 0, ""},
		{"of the second", w.dev, shared, 8, cqOf(b, shared), 0, ""},
		{"of a program that has closed its file", w.dev, shared, 9, nil, syscall.ENOENT, nothing},
		{"of a program that is not there", w.dev, shared, 10, nil, syscall.ENOENT, nothing},
		{"of one program", w.dev, own, 0, cqOf(b, own), 0, ""},
		{"of one program, another is named", w.dev, own, 7, nil, syscall.ENOENT, nothing},
		{"another kind of object", w.dev, pd, 0, nil, syscall.ENOENT, nothing},
		{"being destroyed", w.dev, busy, 0, nil, syscall.ENOENT, nothing},
		{"no object", w.dev, 12345, 0, nil, syscall.ENOENT, nothing},
		{"another device", another.Device(), own, 0, nil, syscall.ENOENT, nothing},
	} {
		var got *ib.CQ
		err := w.srv.WithCQ(test.dev, test.handle, test.pid, func(cq *ib.CQ) { got = cq })
		wantErrno(t, test.name, err, test.want)
		if got != test.cq {
			t.Errorf("%s: got queue %p, want %p", test.name, got, test.cq)
		}
		if err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: got %q, want it to contain %q", test.name, err, test.text)
		}
	}
	err = w.srv.WithSRQ(w.dev, own, 0, func(*ib.SRQ) {
		t.Error("WithSRQ with the handle of a completion queue: called " +
			"f, want an error")
	})
	wantErrno(t, "another kind", err, syscall.ENOENT)
}

// TestRingInEachState checks the doorbell of a caller that does not issue system calls, in each state of the context
// and of the queue pair.
func TestRingInEachState(t *testing.T) {
	w := newFixture(t)
	p, other := w.open(byWrite), w.startProgram(byWrite)
	if err := p.f.Ring(p, 1); !errors.Is(err, errNoContext) {
		t.Errorf("fresh: got %v, want %v", err, errNoContext)
	}
	_, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
	must(t, err)
	newQP := func(p *program, pd, cq uint32) uint32 { return p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle }
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	early, ready, gone := newQP(p, pd, cq), newQP(p, pd, cq), newQP(p, pd, cq)
	p.fakeQP(ready).MoveToReady()
	p.fakeQP(gone).MoveToReady()
	_, err = sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: gone})
	must(t, err)
	var others uint32
	for pd, cq := other.allocPD(), other.createCQ(-1, 0); others <= gone; {
		others = newQP(other, pd, cq)
	}
	other.fakeQP(others).MoveToReady()
	for _, test := range []struct {
		name   string
		handle uint32
		text   string // part of the error; empty if the doorbell must ring
	}{
		{"ready", ready, ""},
		{"in RESET", early, "cannot send in state RESET"},
		{"destroyed", gone, "no queue pair has the handle"},
		{"a protection domain", pd, "no queue pair has the handle"},
		{"of another program", others, "no queue pair has the handle"},
	} {
		err := p.f.Ring(p, test.handle)
		if test.text == "" {
			must(t, err)
			continue
		}
		wantErrno(t, test.name, err, syscall.EINVAL)
		if err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: got %q, want it to contain %q", test.name, err, test.text)
		}
	}
	r, e, o := p.fakeQP(ready).DoorbellCount(), p.fakeQP(early).DoorbellCount(), other.fakeQP(others).DoorbellCount()
	if r != 1 || e != 0 || o != 0 {
		t.Errorf("doorbells: got %d, %d and %d, want 1, 0 and 0", r, e, o)
	}
	other.f.Close()
	if err := other.f.Ring(other, others); !errors.Is(err, errFileClosed) {
		t.Errorf("closed: got %v, want %v", err, errFileClosed)
	}
	must(t, w.core.Unregister(w.handle))
	if err := p.f.Ring(p, ready); !errors.Is(err, errGone) {
		t.Errorf("zombie: got %v, want %v", err, errGone)
	}
}

// TestDoorbellByInvokeWrite checks the doorbell by INVOKE_WRITE, for which there is no fast path.
func TestDoorbellByInvokeWrite(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	qp := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
	fake := p.fakeQP(qp)
	_, err := postWRs(p, uapi.CmdPostSend, qp, []uapi.SendWR(nil), nil)
	wantErrno(t, "in RESET", err, syscall.EINVAL)
	fake.MoveToReady()
	_, err = postWRs(p, uapi.CmdPostSend, qp, []uapi.SendWR(nil), nil)
	must(t, err)
	if n := fake.DoorbellCount(); n != 1 {
		t.Errorf("doorbells: got %d, want 1", n)
	}
}

// TestRemovalDuringGetContext removes the device after GET_CONTEXT has checked it. The context must not be created.
func TestRemovalDuringGetContext(t *testing.T) {
	w := newFixture(t)
	p := w.open(byWrite)
	entered, release := w.drv.HoldMethod(ibfake.AllocUserContext)
	done, removed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := sendPlain[uapi.GetContextResp](p, uapi.CmdGetContext, uapi.GetContext{})
		done <- err
	}()
	<-entered
	go func() { removed <- w.core.Unregister(w.handle) }()
	testutil.Eventually(t, "the file to be a zombie", func() bool { return p.f.contextState() == states.ContextZombie })
	release()
	if err := <-done; !errors.Is(err, errGone) {
		t.Errorf("GET_CONTEXT: got %v, want %v", err, errGone)
	}
	must(t, <-removed)
	if n := w.drv.UserContextCount(); n != 0 {
		t.Errorf("contexts in the driver: got %d, want 0", n)
	}
}
