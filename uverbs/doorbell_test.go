package uverbs

import (
	"errors"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/uapi"
	"verbena/umem"
)

// slowCaller is the program seen through a caller that a test watches.
type slowCaller struct {
	*program
	before  func(what string)
	install error // what InstallFD fails with
}

func (c *slowCaller) Space() umem.Space { return watchedSpace{c} }

func (c *slowCaller) InstallFD(fd int, cloexec bool) (int, error) {
	c.before("installs a descriptor")
	if c.install != nil {
		return 0, c.install
	}
	return c.program.InstallFD(fd, cloexec)
}

type watchedSpace struct{ c *slowCaller }

func (s watchedSpace) Check(addr, length uint64, write bool) error {
	return s.c.space.Check(addr, length, write)
}

func (s watchedSpace) ReadV(dst [][]byte, addr uint64) error {
	s.c.before("reads")
	return s.c.space.ReadV(dst, addr)
}

func (s watchedSpace) WriteV(src [][]byte, addr uint64) error {
	s.c.before("stores the response")
	return s.c.space.WriteV(src, addr)
}

// doorbell is the command that the rxe provider writes.
func doorbell(qp uint32) []byte {
	hdr := uapi.CmdHdr{Command: uint32(uapi.CmdPostSend), InWords: 8, OutWords: 1}
	req := uapi.PostSend{QPHandle: qp, WQESize: 128}
	return uapi.AppendTo(uapi.AppendTo(nil, &hdr), &req)
}

func (p *program) ring(qp uint32) error { return p.write(doorbell(qp)) }

// The program learns that what it posts too early is not sent. (test_post_send_qp_state_bad_flow of pyverbs)
func TestDoorbellTooEarly(t *testing.T) {
	for _, form := range []form{byIoctl, byWrite} {
		p := newWorld(t).start(form)
		handle := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
		if err := p.ring(handle); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("ringing for a queue pair in RESET: %v, want EINVAL", err)
		}
		if n := p.fakeQP(handle).Rung(); n != 0 {
			t.Errorf("rung %d times", n)
		}
	}
}

// With commands by ioctl a doorbell is answered without a look at it, as long as that is cheap and safe.
func TestDoorbell(t *testing.T) {
	for _, test := range []struct {
		name  string
		form  form
		qps   int
		post  bool // something has been posted
		plain bool // another command came by write
		reads int
	}{
		{"by ioctl", byIoctl, 1, true, false, 0},
		{"by ioctl, several queue pairs", byIoctl, maxScan, true, false, 0},
		{"by ioctl, nothing posted", byIoctl, 1, false, false, 1},
		{"by ioctl, many queue pairs", byIoctl, maxScan + 1, true, false, 1},
		{"by ioctl, but others by write", byIoctl, 1, true, true, 1},
		{"by write", byWrite, 1, true, false, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newWorld(t).start(test.form)
			pd, cq := p.allocPD(), p.createCQ(-1, 0)
			var qps []*ibfake.QP
			var handle uint32
			for range test.qps {
				handle = p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
				qps = append(qps, p.fakeQP(handle).Ready())
			}
			last := qps[len(qps)-1]
			if test.plain {
				p.form = byWrite
				p.allocPD()
			}
			if test.post {
				last.SetPosted()
			}
			reads := 0
			c := &slowCaller{program: p, before: func(what string) {
				if what == "reads" {
					reads++
				} else {
					t.Errorf("the service %s", what)
				}
			}}
			cmd := p.store(doorbell(handle))
			n, err := p.f.Write(c, addressOf(cmd), len(cmd))
			if n != len(cmd) || err != nil {
				t.Errorf("Write = %d, %v", n, err)
			}
			if reads != test.reads {
				t.Errorf("%d reads, want %d", reads, test.reads)
			}
			for _, qp := range qps {
				if qp != last && qp.Rung() != 0 {
					t.Errorf("qp %d rung %d times", qp.QP().Num(), qp.Rung())
				}
			}
			if last.Rung() != 1 {
				t.Errorf("rung %d times", last.Rung())
			}
		})
	}
}

// A command that is as long as a doorbell is not taken for one.
func TestCommandOfDoorbellSize(t *testing.T) {
	p := newWorld(t).start(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	qp := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
	wantErrno(t, "doorbell of no queue pair", p.ring(qp+1), syscall.ENOENT)
	if p.f.byWrite.Load() {
		t.Error("a wrong doorbell is taken for another command")
	}
	wantErrno(t, "garbage", p.write(make([]byte, doorbellSize)), syscall.EINVAL)
	_, err := do[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
	must(t, err)
	wantErrno(t, "doorbell of one that is gone", p.ring(qp), syscall.ENOENT)
	if p.fakeCQ(cq) == nil {
		t.Error("no queue")
	}
}

func TestDoorbellDoesNotAllocate(t *testing.T) {
	for _, test := range []struct {
		name string
		form form
	}{{"not read", byIoctl}, {"read", byWrite}} {
		t.Run(test.name, func(t *testing.T) {
			p := newWorld(t).start(test.form)
			handle := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
			qp, cmd := p.fakeQP(handle).Ready(), p.store(doorbell(handle))
			addr := addressOf(cmd)
			if n := testing.AllocsPerRun(200, func() {
				qp.SetPosted()
				if _, err := p.f.Write(p, addr, doorbellSize); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
			if qp.Rung() != 201 {
				t.Errorf("rung %d times", qp.Rung())
			}
		})
	}
}

// Callbacks of another device that a doorbell makes due run on the thread that rings, when the driver's method has returned.
func TestDoorbellRunsCallbacksOfOtherDevices(t *testing.T) {
	for _, form := range []form{byIoctl, byWrite} {
		t.Run(form.String(), func(t *testing.T) {
			w := newWorld(t)
			other := ib.NewDevice("rxe1", ibfake.New(), nil)
			must(t, w.core.Register(other))
			var stacks []string
			stop := other.Device().OnEvent(func(ib.Event) { stacks = append(stacks, string(debug.Stack())) })
			p := w.start(form)
			handle := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
			qp := p.fakeQP(handle).Ready()
			qp.OnDoorbell(func(h *ib.Hold) {
				h.Add(other)
				other.DispatchEvent(ib.EventPortActive, 1)
			})
			for range 2 {
				qp.SetPosted()
				must(t, p.ring(handle))
			}
			if len(stacks) != 2 {
				t.Fatalf("callbacks: got %d, want 2", len(stacks))
			}
			for _, s := range stacks {
				if !strings.Contains(s, "uverbs.(*File).Write(") || strings.Contains(s, ".Doorbell(") {
					t.Errorf("callback: got\n%s, want it on the thread that rings, outside of Doorbell", s)
				}
			}
			stop()
			must(t, w.core.Unregister(other))
		})
	}
}

// One thread rings while another makes and destroys queue pairs: none is rung when it has gone, and ringing one never
// keeps another from being destroyed.
func TestDoorbellWhileDestroying(t *testing.T) {
	w := newWorld(t)
	p := w.start(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	steady := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
	steadyQP := p.fakeQP(steady).Ready()
	cmd := addressOf(p.store(doorbell(steady)))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				steadyQP.SetPosted()
				if _, err := p.f.Write(p, cmd, doorbellSize); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 300 {
		qp := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
		fake := p.fakeQP(qp).Ready()
		fake.SetPosted()
		if _, err := do[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp}); err != nil {
			t.Fatal(err)
		}
		rung := fake.Rung()
		fake.SetPosted()
		p.ring(steady)
		if fake.Rung() != rung {
			t.Fatal("rung after it was destroyed")
		}
	}
	close(stop)
	wg.Wait()
}
