package uverbs

import (
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/uapi"
	"verbena/umem"
)

// observedCaller is a caller that lets a test observe its calls.
type observedCaller struct {
	*program
	before  func(what string)
	install error // error of InstallFD
}

func (c *observedCaller) Space() umem.Space { return observedSpace{c} }

func (c *observedCaller) InstallFD(fd int, cloexec bool) (int, error) {
	c.before("installs a descriptor")
	if c.install != nil {
		return 0, c.install
	}
	return c.program.InstallFD(fd, cloexec)
}

type observedSpace struct{ c *observedCaller }

func (s observedSpace) Check(addr, length uint64, write bool) error {
	return s.c.space.Check(addr, length, write)
}

func (s observedSpace) ReadV(dst [][]byte, addr uint64) error {
	s.c.before("reads")
	return s.c.space.ReadV(dst, addr)
}

func (s observedSpace) WriteV(src [][]byte, addr uint64) error {
	s.c.before("stores the response")
	return s.c.space.WriteV(src, addr)
}

// doorbellCommand returns the command that the rxe provider writes.
func doorbellCommand(qp uint32) []byte {
	hdr := uapi.CmdHdr{Command: uint32(uapi.CmdPostSend), InWords: 8, OutWords: 1}
	req := uapi.PostSend{QPHandle: qp, WQESize: 128}
	return uapi.AppendTo(uapi.AppendTo(nil, &hdr), &req)
}

func (p *program) ringDoorbell(qp uint32) error { return p.writeCommand(doorbellCommand(qp)) }

// TestEarlyDoorbellFails checks that the program receives an error if it posts requests before the queue pair can send.
// (test_post_send_qp_state_bad_flow of pyverbs)
func TestEarlyDoorbellFails(t *testing.T) {
	for _, form := range []commandForm{byIoctl, byWrite} {
		p := newFixture(t).startProgram(form)
		handle := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
		if err := p.ringDoorbell(handle); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("doorbell of a queue pair in RESET: got %v, want EINVAL", err)
		}
		if n := p.fakeQP(handle).DoorbellCount(); n != 0 {
			t.Errorf("doorbells: got %d, want 0", n)
		}
	}
}

// TestIoctlProgramDoorbellIsNotRead checks programs that send other commands by ioctl. The service must not read their
// doorbells while checking the queue pairs is cheaper and safe.
func TestIoctlProgramDoorbellIsNotRead(t *testing.T) {
	for _, test := range []struct {
		name  string
		form  commandForm
		qps   int
		post  bool // requests are posted
		plain bool // another command was sent by write
		reads int
	}{
		{"by ioctl", byIoctl, 1, true, false, 0},
		{"by ioctl, several queue pairs", byIoctl, maxScannedQPs, true, false, 0},
		{"by ioctl, nothing posted", byIoctl, 1, false, false, 1},
		{"by ioctl, many queue pairs", byIoctl, maxScannedQPs + 1, true, false, 1},
		{"by ioctl, but others by write", byIoctl, 1, true, true, 1},
		{"by write", byWrite, 1, true, false, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newFixture(t).startProgram(test.form)
			pd, cq := p.allocPD(), p.createCQ(-1, 0)
			var qps []*ibfake.QP
			var handle uint32
			for range test.qps {
				handle = p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
				qps = append(qps, p.fakeQP(handle).MoveToReady())
			}
			last := qps[len(qps)-1]
			if test.plain {
				p.form = byWrite
				p.allocPD()
			}
			if test.post {
				last.SetRequestsPosted()
			}
			reads := 0
			c := &observedCaller{program: p, before: func(what string) {
				if what == "reads" {
					reads++
				} else {
					t.Errorf("the service %s", what)
				}
			}}
			cmd := p.storeBytes(doorbellCommand(handle))
			n, err := p.f.Write(c, addressOf(cmd), len(cmd))
			if n != len(cmd) || err != nil {
				t.Errorf("Write: got %d and error %v, want the whole command", n, err)
			}
			if reads != test.reads {
				t.Errorf("%d reads, want %d", reads, test.reads)
			}
			for _, qp := range qps {
				if qp != last && qp.DoorbellCount() != 0 {
					t.Errorf("doorbells of QP %d: got %d, want 0", qp.QP().Num(), qp.DoorbellCount())
				}
			}
			if last.DoorbellCount() != 1 {
				t.Errorf("doorbells: got %d, want 1", last.DoorbellCount())
			}
		})
	}
}

// peekingCaller is a caller whose memory can also be read by a fast but unreliable method.
type peekingCaller struct {
	*program
	seen         []byte // nil if the fast method is not available
	peeks, reads int
}

func (c *peekingCaller) Peek(dst [][]byte, _ uint64) bool {
	c.peeks++
	copy(dst[0], c.seen)
	return c.seen != nil
}

func (c *peekingCaller) Space() umem.Space {
	c.reads++
	return c.program.Space()
}

// TestPeekFindsDoorbellQP checks that peeking finds the queue pair of a doorbell if there are many queue pairs. The
// test also checks that peeked data are not used for other commands.
func TestPeekFindsDoorbellQP(t *testing.T) {
	other := uapi.AppendTo(nil, &uapi.CmdHdr{Command: uint32(uapi.CmdDestroyQP), InWords: doorbellSize / 4})
	for _, test := range []struct {
		name  string
		form  commandForm
		qps   int
		seen  func(qp, early uint32) []byte
		peeks int
		reads int
	}{
		{"the doorbell", byIoctl, maxScannedQPs + 1, func(qp, _ uint32) []byte { return doorbellCommand(qp) }, 1, 0},
		{"nothing", byIoctl, maxScannedQPs + 1, func(_, _ uint32) []byte { return nil }, 1, 1},
		{"zeros", byIoctl, maxScannedQPs + 1, func(_, _ uint32) []byte { return make([]byte, doorbellSize) }, 1, 1},
		{"another command", byIoctl, maxScannedQPs + 1, func(qp, _ uint32) []byte { return append(other, byte(qp)) }, 1, 1},
		{"a queue pair of another file", byIoctl, maxScannedQPs + 1,
			func(qp, _ uint32) []byte { return doorbellCommand(qp + 1000) }, 1,
			1},
		{"a queue pair that cannot send", byIoctl, maxScannedQPs + 1,
			func(_, early uint32) []byte { return doorbellCommand(early) }, 1,
			1},
		{"not peeked: few queue pairs", byIoctl, 2, func(qp, _ uint32) []byte { return doorbellCommand(qp) }, 0, 0},
		{"not peeked: other commands by write", byWrite, maxScannedQPs + 1,
			func(qp, _ uint32) []byte { return doorbellCommand(qp) }, 0, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newFixture(t).startProgram(test.form)
			pd, cq := p.allocPD(), p.createCQ(-1, 0)
			early := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
			var handle uint32
			for range test.qps - 1 {
				handle = p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
				p.fakeQP(handle).MoveToReady()
			}
			p.fakeQP(handle).SetRequestsPosted()
			c := &peekingCaller{program: p, seen: test.seen(handle, early)}
			cmd := p.storeBytes(doorbellCommand(handle))
			if n, err := p.f.Write(c, addressOf(cmd), len(cmd)); n != len(cmd) || err != nil {
				t.Errorf("Write: got %d and error %v, want the whole command", n, err)
			}
			if c.peeks != test.peeks || c.reads != test.reads {
				t.Errorf("accesses: got %d peeks and %d reads, want %d and %d", c.peeks, c.reads, test.peeks, test.reads)
			}
			if n := p.fakeQP(handle).DoorbellCount(); n != 1 {
				t.Errorf("doorbells: got %d, want 1", n)
			}
			if n := p.fakeQP(early).DoorbellCount(); n != 0 {
				t.Errorf("doorbells of a queue pair that cannot send: got %d, want 0", n)
			}
		})
	}
}

// TestEqualSizeCommandIsNoDoorbell checks that another command of the same length is not mistaken for a doorbell.
func TestEqualSizeCommandIsNoDoorbell(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	qp := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
	wantErrno(t, "doorbell of no queue pair", p.ringDoorbell(qp+1), syscall.ENOENT)
	if p.f.byWrite.Load() {
		t.Error("doorbell with a wrong handle: got it counted as another command, want a doorbell")
	}
	wantErrno(t, "garbage", p.writeCommand(make([]byte, doorbellSize)), syscall.EINVAL)
	_, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp})
	must(t, err)
	wantErrno(t, "doorbell of one that is gone", p.ringDoorbell(qp), syscall.ENOENT)
	if p.fakeCQ(cq) == nil {
		t.Error("no queue")
	}
}

func TestDoorbellDoesNotAllocate(t *testing.T) {
	for _, test := range []struct {
		name string
		form commandForm
	}{{"not read", byIoctl}, {"read", byWrite}} {
		t.Run(test.name, func(t *testing.T) {
			p := newFixture(t).startProgram(test.form)
			p.f.objects.last = 1 << 16 // the runtime boxes smaller numbers without an allocation
			handle := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
			qp, cmd := p.fakeQP(handle).MoveToReady(), p.storeBytes(doorbellCommand(handle))
			addr := addressOf(cmd)
			if n := testing.AllocsPerRun(200, func() {
				qp.SetRequestsPosted()
				if _, err := p.f.Write(p, addr, doorbellSize); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("allocations: got %v, want 0", n)
			}
			if qp.DoorbellCount() != 201 {
				t.Errorf("doorbells: got %d, want 201", qp.DoorbellCount())
			}
		})
	}
}

// TestDoorbellRunsCallbacksOfOtherDevices checks callbacks of another device that become due in a doorbell. The
// callbacks must run on the calling thread, after the driver's method has returned.
func TestDoorbellRunsCallbacksOfOtherDevices(t *testing.T) {
	for _, form := range []commandForm{byIoctl, byWrite} {
		t.Run(form.String(), func(t *testing.T) {
			w := newFixture(t)
			other := ib.NewDevice("rxe1", ibfake.New(), nil)
			must(t, w.core.Register(other))
			var stacks []string
			stop := other.Device().OnEvent(func(ib.Event) { stacks = append(stacks, string(debug.Stack())) })
			p := w.startProgram(form)
			handle := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
			qp := p.fakeQP(handle).MoveToReady()
			qp.OnDoorbell(func(h *ib.Hold) {
				h.Add(other)
				other.DispatchEvent(ib.EventPortActive, 1)
			})
			for range 2 {
				qp.SetRequestsPosted()
				must(t, p.ringDoorbell(handle))
			}
			if len(stacks) != 2 {
				t.Fatalf("callbacks: got %d, want 2", len(stacks))
			}
			for _, s := range stacks {
				if !strings.Contains(s, "uverbs.(*File).Write(") || strings.Contains(s, ".Doorbell(") {
					t.Errorf("callback: got stack\n%s, want it on the thread of the doorbell, outside Doorbell", s)
				}
			}
			stop()
			must(t, w.core.Unregister(other))
		})
	}
}

// TestDoorbellDuringDestruction rings on one thread while another thread creates and destroys queue pairs. The doorbell
// of a destroyed queue pair must not be rung, and a ring must not delay the destruction of another queue pair.
func TestDoorbellDuringDestruction(t *testing.T) {
	w := newFixture(t)
	p := w.startProgram(byIoctl)
	pd, cq := p.allocPD(), p.createCQ(-1, 0)
	steady := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
	steadyQP := p.fakeQP(steady).MoveToReady()
	cmd := addressOf(p.storeBytes(doorbellCommand(steady)))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				steadyQP.SetRequestsPosted()
				if _, err := p.f.Write(p, cmd, doorbellSize); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 300 {
		qp := p.createQP(pd, cq, 0, uapi.QPTRC).QPHandle
		fake := p.fakeQP(qp).MoveToReady()
		fake.SetRequestsPosted()
		if _, err := sendPlain[uapi.DestroyQPResp](p, uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: qp}); err != nil {
			t.Fatal(err)
		}
		rung := fake.DoorbellCount()
		fake.SetRequestsPosted()
		p.ringDoorbell(steady)
		if fake.DoorbellCount() != rung {
			t.Fatal("destroyed queue pair: got a doorbell, want none")
		}
	}
	close(stop)
	wg.Wait()
}

// doorbellQueue is a shared send queue that records its doorbells, and reports forbidden doorbells.
type doorbellQueue struct {
	ib.UserQP
	t       testing.TB
	removed atomic.Bool
	inside  atomic.Int32
	rung    atomic.Int32
	wait    chan struct{} // if not nil, the doorbell waits for this channel
}

func (q *doorbellQueue) Posted() (uint32, bool) { return 0, true }
func (q *doorbellQueue) TakeBack()              {}

func (q *doorbellQueue) Doorbell(*ib.Hold) {
	q.inside.Add(1)
	if q.removed.Load() {
		q.t.Error("removed queue pair: got a doorbell, want none")
	}
	if q.wait != nil {
		<-q.wait
	} else {
		runtime.Gosched()
	}
	q.rung.Add(1)
	q.inside.Add(-1)
}

// addDoorbellQueues returns queue pairs that exist only in the table of doorbells. The handles start at 1<<16.
func (p *program) addDoorbellQueues(t testing.TB, n int) ([]*qpObject, []*doorbellQueue) {
	handle := p.createQP(p.allocPD(), p.createCQ(-1, 0), 0, uapi.QPTRC).QPHandle
	p.fakeQP(handle).MoveToReady()
	obj := p.f.objects.find(handle).res.(*qpObject)
	p.f.doorbells.remove(obj)
	qps, queues := make([]*qpObject, n), make([]*doorbellQueue, n)
	for i := range n {
		queues[i] = &doorbellQueue{t: t}
		qps[i] = &qpObject{QP: obj.QP, f: p.f, handle: 1<<16 + uint32(i), user: queues[i]}
	}
	return qps, queues
}

// TestRingPostedChecksAll checks that RingPosted with all checks every queue pair, independently of earlier calls.
func TestRingPostedChecksAll(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	qps, queues := p.addDoorbellQueues(t, 5*maxScannedQPs)
	for _, qp := range qps {
		p.f.doorbells.add(qp)
	}
	defer p.f.doorbells.removeAll()
	var scan RingScan
	for rounds := range 7 {
		for range rounds {
			if _, err := p.f.RingPosted(nil, &scan, false); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range queues {
			q.rung.Store(0)
		}
		if _, err := p.f.RingPosted(nil, &scan, true); err != nil {
			t.Fatal(err)
		}
		for i, q := range queues {
			if q.rung.Load() == 0 {
				t.Fatalf("after %d rounds: got no doorbell of queue pair %d, want at least one", rounds, i)
			}
		}
	}
}

// TestDoorbellsAreSilentWhenRemoved rings on several threads while another thread removes and adds queue pairs, and
// finally calls silence. After remove or silence has returned, no doorbell of a removed queue pair may be rung.
func TestDoorbellsAreSilentWhenRemoved(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	// more than maxScannedQPs, so that the slice few is set and reset
	qps, queues := p.addDoorbellQueues(t, maxScannedQPs+2)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				p.f.ringAllPosted(p)
			}
		})
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				p.f.executeDoorbell(p, doorbellCommand(qps[i%len(qps)].handle))
			}
		})
	}
	silent := func(what string, i int) {
		queues[i].removed.Store(true)
		if n := queues[i].inside.Load(); n != 0 {
			t.Errorf("threads in a doorbell when %s had returned: got %d, want 0", what, n)
		}
	}
	for round := range 40 {
		for i, qp := range qps {
			queues[i].removed.Store(false)
			p.f.doorbells.add(qp)
		}
		for queues[round%len(qps)].rung.Load() == 0 {
			runtime.Gosched()
		}
		for k := range qps {
			i := (round + 3*k) % len(qps) // each queue pair once, in a different order than they were added
			p.f.doorbells.remove(qps[i])
			silent("remove", i)
		}
	}
	for i, qp := range qps {
		queues[i].removed.Store(false)
		p.f.doorbells.add(qp)
	}
	p.f.doorbells.removeAll()
	for i, qp := range qps {
		silent("silence", i)
		p.f.doorbells.add(qp) // add is rejected
		if p.f.ringAllPosted(p) || p.f.executeDoorbell(p, doorbellCommand(qp.handle)) {
			t.Errorf("queue pair %d after silence: got a doorbell, want none", i)
		}
	}
	stop.Store(true)
	wg.Wait()
	for i, q := range queues {
		if q.rung.Load() == 0 {
			t.Errorf("queue pair %d: got no doorbell, want at least one", i)
		}
	}
}

// TestBlockedDoorbellDelaysNoOther checks a queue pair with a blocked doorbell while the queue pair is removed. Neither
// other queue pairs nor other threads may wait.
func TestBlockedDoorbellDelaysNoOther(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	qps, queues := p.addDoorbellQueues(t, 3)
	stuck, other, late := qps[0], qps[1], qps[2]
	queues[0].wait = make(chan struct{})
	p.f.doorbells.add(stuck)
	p.f.doorbells.add(other)
	var wg sync.WaitGroup
	wg.Go(func() { p.f.executeDoorbell(p, doorbellCommand(stuck.handle)) })
	for queues[0].inside.Load() == 0 {
		runtime.Gosched()
	}
	var removed atomic.Bool
	wg.Go(func() {
		p.f.doorbells.remove(stuck)
		removed.Store(true)
	})
	for !removed.Load() && stuck.doorbell.ringing.TryRLock() { // waits until remove waits for the lock
		stuck.doorbell.ringing.RUnlock()
		runtime.Gosched()
	}
	if p.f.executeDoorbell(p, doorbellCommand(stuck.handle)) {
		t.Error("queue pair that is being removed: got a doorbell, want none")
	}
	if !p.f.ringAllPosted(p) || !p.f.executeDoorbell(p, doorbellCommand(other.handle)) || queues[1].rung.Load() != 2 {
		t.Errorf("other queue pair: got %d doorbells, want 2", queues[1].rung.Load())
	}
	p.f.doorbells.add(late)
	p.f.doorbells.remove(other)
	if !p.f.ringAllPosted(p) || queues[2].rung.Load() != 1 {
		t.Errorf("queue pair that was added last: got %d doorbells, want 1", queues[2].rung.Load())
	}
	if removed.Load() {
		t.Error("remove during a doorbell of the queue pair: returned, want it to wait")
	}
	close(queues[0].wait)
	wg.Wait()
	p.f.doorbells.remove(late)
}

// TestRemoveWaitsForDoorbell checks that remove and silence wait for the end of a doorbell, even if one is called
// after the other.
func TestRemoveWaitsForDoorbell(t *testing.T) {
	remove := func(d *doorbellTable, qp *qpObject) { d.remove(qp) }
	silence := func(d *doorbellTable, _ *qpObject) { d.removeAll() }
	for _, test := range []struct {
		name  string
		calls []func(d *doorbellTable, qp *qpObject)
	}{
		{"remove", []func(*doorbellTable, *qpObject){remove}},
		{"silence", []func(*doorbellTable, *qpObject){silence}},
		{"remove, silence", []func(*doorbellTable, *qpObject){remove, silence}},
		{"silence, remove", []func(*doorbellTable, *qpObject){silence, remove}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newFixture(t).startProgram(byIoctl)
			qps, queues := p.addDoorbellQueues(t, 1)
			queues[0].wait = make(chan struct{})
			p.f.doorbells.add(qps[0])
			var wg sync.WaitGroup
			wg.Go(func() { p.f.executeDoorbell(p, doorbellCommand(qps[0].handle)) })
			for queues[0].inside.Load() == 0 {
				runtime.Gosched()
			}
			returned := make(chan int, len(test.calls))
			for i, call := range test.calls {
				wg.Go(func() {
					call(&p.f.doorbells, qps[0])
					returned <- i
				})
				select {
				case i := <-returned:
					t.Errorf("call %d: returned during the doorbell, want it to wait", i)
				case <-time.After(10 * time.Millisecond):
				}
			}
			close(queues[0].wait)
			wg.Wait()
			p.f.doorbells.remove(qps[0])
		})
	}
}

// BenchmarkDoorbells adds many queue pairs and removes them again. One operation covers all queue pairs.
func BenchmarkDoorbells(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			qps := make([]*qpObject, n)
			for i := range qps {
				qps[i] = &qpObject{handle: uint32(i), user: &doorbellQueue{t: b}}
			}
			for b.Loop() {
				var d doorbellTable
				for _, qp := range qps {
					d.add(qp)
				}
				for _, qp := range qps {
					d.remove(qp)
				}
			}
		})
	}
}

// idleCaller is a caller of RingPosted that reports n times that it is idle.
type idleCaller struct {
	n    int
	idle func()
}

func (p *idleCaller) Stalled() {}

func (p *idleCaller) Idle() bool {
	p.idle()
	p.n--
	return p.n >= 0
}

// longWorkQueue is a shared send queue. The doorbell of a longWorkQueue defers long work.
type longWorkQueue struct {
	ib.UserQP
	left int // remaining runs
	h    *ib.Hold
	kept []bool
}

func (q *longWorkQueue) Posted() (uint32, bool) { return 0, q.left > 0 }
func (q *longWorkQueue) TakeBack()              {}

func (q *longWorkQueue) Doorbell(h *ib.Hold) {
	q.h = h
	h.Defer(q)
}

func (q *longWorkQueue) Run() {
	if q.left--; q.left > 0 {
		q.kept = append(q.kept, q.h.Resume(q))
	}
}

// TestRingPostedContinuesWork checks that an idle caller continues long work and also polls the other queue pairs. If
// the caller must return, another thread executes the rest of the work.
func TestRingPostedContinuesWork(t *testing.T) {
	for _, c := range []struct {
		name       string
		runs, idle int
		kept       []bool
		asked      int // number of calls of Idle
	}{
		{"done at once", 1, 9, nil, 0},
		{"done while the caller is idle", 3, 9, []bool{true, true}, 2},
		{"the caller must return", 4, 1, []bool{true, true, false}, 2},
		{"the caller is never idle", 3, 0, []bool{true, false}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newFixture(t).startProgram(byIoctl)
			qps, queues := p.addDoorbellQueues(t, 2)
			long := &longWorkQueue{left: c.runs}
			qps[0].user = long
			p.f.doorbells.add(qps[0])
			defer p.f.doorbells.removeAll()
			asked := 0
			on := &idleCaller{n: c.idle, idle: func() {
				if asked++; asked == 1 { // from now on another queue pair has requests
					p.f.doorbells.add(qps[1])
				}
			}}
			found, err := p.f.RingPosted(on, new(RingScan), false)
			if !found || err != nil {
				t.Fatalf("RingPosted: got %t, %v, want true, nil", found, err)
			}
			if !slices.Equal(long.kept, c.kept) || asked != c.asked {
				t.Errorf("RingPosted: got kept work %v and %d calls of Idle, want %v and %d", long.kept, asked, c.kept, c.asked)
			}
			if rung := queues[1].rung.Load() > 0; rung != (c.asked > 0 && c.idle > 0) {
				t.Errorf("doorbell of the other queue pair: got %t, want %t", rung, c.asked > 0 && c.idle > 0)
			}
		})
	}
}

// TestHasNewRequests checks that HasNewRequests predicts the result of RingPosted.
func TestHasNewRequests(t *testing.T) {
	p := newFixture(t).startProgram(byIoctl)
	if p.f.HasNewRequests() {
		t.Error("HasNewRequests without queue pairs: got true, want false")
	}
	qps, _ := p.addDoorbellQueues(t, maxScannedQPs+1)
	p.f.doorbells.add(qps[0])
	defer p.f.doorbells.removeAll()
	for _, want := range []bool{true, false} {
		if got := p.f.HasNewRequests(); got != want {
			t.Errorf("HasNewRequests: got %t, want %t", got, want)
		}
		if found, err := p.f.RingPosted(nil, new(RingScan), false); found != want || err != nil {
			t.Errorf("RingPosted: got %t, %v, want %t", found, err, want)
		}
	}
	for _, qp := range qps[1:] {
		p.f.doorbells.add(qp)
	}
	if !p.f.HasNewRequests() {
		t.Error("HasNewRequests with many queue pairs: got false, want true")
	}
}
