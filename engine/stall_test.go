package engine

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/uapi"
	"verbena/umem"
)

// silentSpace is memory that does not answer between hush and answer.
type silentSpace struct {
	*umem.Local
	silent  atomic.Pointer[chan struct{}]
	waiting atomic.Int32
}

func (s *silentSpace) wait() {
	if c := s.silent.Load(); c != nil {
		s.waiting.Add(1)
		<-*c
		s.waiting.Add(-1)
	}
}

func (s *silentSpace) ReadV(dst [][]byte, addr uint64) error {
	s.wait()
	return s.Local.ReadV(dst, addr)
}

func (s *silentSpace) WriteV(src [][]byte, addr uint64) error {
	s.wait()
	return s.Local.WriteV(src, addr)
}

func (s *silentSpace) hush() {
	c := make(chan struct{})
	s.silent.Store(&c)
}

func (s *silentSpace) answer() {
	if c := s.silent.Swap(nil); c != nil {
		close(*c)
	}
}

// silentProgram is a program on device b of a bench. Its memory can stop answering. Its queue pairs are connected
// with queue pairs of device a's consumer, the peers.
type silentProgram struct {
	*program
	b     *bench
	space silentSpace
	buf   []byte
	addr  uint64
	pd    *ib.PD
	cq    *ib.CQ // used by the peers
	own   *ib.CQ // used by the program
	mr    *ib.MR
	qps   [2]*ib.QP
	peers [2]*ib.QP
}

func newSilentProgram(b *bench, typ ib.QPType) *silentProgram {
	t := b.t
	t.Helper()
	x := &silentProgram{program: newProgram(t), b: b, buf: make([]byte, 1<<16)}
	x.space.Local = umem.NewLocal()
	dev := b.b.dev
	data := func() *ib.Udata { return &ib.Udata{Context: x.program, Out: make([]byte, 64)} }
	check(t, contexter(dev).AllocUserContext(data()))
	var err error
	x.pd, err = ibuser.AllocPD(dev.IB(), data())
	check(t, err)
	x.own, err = ibuser.CreateCQ(dev.IB(), ib.CQInit{Entries: 50}, data())
	check(t, err)
	x.cq, err = b.a.dev.IB().CreateCQ(ib.CQInit{Entries: 50})
	check(t, err)
	x.addr, err = x.space.Add(x.buf)
	check(t, err)
	x.mr, err = ibuser.RegMR(x.pd, ib.MRInit{Space: &x.space, Addr: x.addr, Length: uint64(len(x.buf)), IOVA: x.addr,
		Access: allAccess}, data())
	check(t, err)
	for i := range x.qps {
		x.qps[i], err = ibuser.CreateQP(x.pd, ib.QPInitAttr{SendCQ: x.own, RecvCQ: x.own, Cap: userCap, Type: typ}, data())
		check(t, err)
		x.peers[i], err = b.a.pd.CreateQP(ib.QPInitAttr{SendCQ: x.cq, RecvCQ: x.cq, Cap: userCap, Type: typ})
		check(t, err)
		connectQPs(t, b.a.dev, x.peers[i], dev, x.qps[i], conn{timeout: 18})
	}
	t.Cleanup(func() {
		x.space.answer()
		for i := range x.qps {
			check(t, x.peers[i].Destroy())
			check(t, x.qps[i].Destroy())
		}
		check(t, x.mr.Dereg())
		check(t, x.own.Destroy())
		check(t, x.cq.Destroy())
		check(t, x.pd.Dealloc())
		contexter(dev).DeallocUserContext(x.program)
	})
	return x
}

// recv posts a receive to a queue pair of the program.
func (x *silentProgram) recv(i, length int) {
	x.b.t.Helper()
	_, err := x.qps[i].PostRecv(ib.RecvWR{ID: 7, SGList: []ib.SGE{{Addr: x.addr + uint64(i)<<12, Length: uint32(length),
		LKey: x.mr.LKey()}}})
	check(x.b.t, err)
}

// awaitSlow waits until the device has found that a thread is blocked.
func (x *silentProgram) awaitSlow() {
	x.b.t.Helper()
	testutil.Eventually(x.b.t, "the program is slow", qpOf(x.qps[0]).lane.slow.Load)
}

// within fails the test if f takes too long. The bound is no measurement: it distinguishes a wait from a hang.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(testutil.Timeout):
		t.Fatalf("%s has not returned after %v", what, testutil.Timeout)
	}
}

// neighbours exchanges messages between the bench's own queue pairs, and then executes an atomic operation.
func (b *bench) neighbours(n int) {
	b.t.Helper()
	for range n {
		b.b.recv(1, 0, 64)
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 64)})
		for _, wc := range append(b.a.poll(1), b.b.poll(1)...) {
			if wc.Status != ib.WCSuccess {
				b.t.Fatalf("neighbour's work request %d: %v", wc.ID, wc.Status)
			}
		}
	}
	b.a.send(ib.SendWR{ID: 3, Opcode: ib.WRAtomicFetchAdd, Flags: ib.SendSignaled, SGList: b.a.sge(128, 8),
		RemoteAddr: b.b.addr + 1<<12, RKey: b.b.mr.RKey()})
	if wc := b.a.poll(1)[0]; wc.Status != ib.WCSuccess {
		b.t.Fatalf("neighbour's atomic operation: %v", wc.Status)
	}
}

// TestSilentMemory tests memory that does not answer. It blocks the thread that accesses it, and the queue pairs of
// its program. It must not block the traffic of other queue pairs, over the wire or the shortcut, or the device's
// change to the error state.
func TestSilentMemory(t *testing.T) {
	for _, net := range []struct {
		name string
		s    func() setup
	}{{"shortcut", func() setup { return setup{shortcut: true} }}, {"wire", loopback}} {
		for name, wr := range map[string]ib.SendWR{
			"write":  {Opcode: ib.WRRDMAWrite},
			"read":   {Opcode: ib.WRRDMARead},
			"send":   {Opcode: ib.WRSend},
			"atomic": {Opcode: ib.WRAtomicFetchAdd, CompareAdd: 1},
		} {
			t.Run(net.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, net.s())
				b.connect(conn{})
				x := newSilentProgram(b, ib.QPTypeRC)
				b.neighbours(1)
				x.recv(0, 64)
				x.recv(1, 64)
				x.space.hush()
				wr.ID, wr.Flags, wr.SGList = 3, ib.SendSignaled, b.a.sge(8256, 8) // memory that the neighbours do not use
				wr.RemoteAddr, wr.RKey = x.addr, x.mr.RKey()
				var returned atomic.Bool
				go func() {
					_, _ = x.peers[0].PostSend(wr)
					returned.Store(true)
				}()
				testutil.Eventually(t, "a copy waits", func() bool { return x.space.waiting.Load() > 0 })
				within(t, "the neighbours' traffic", func() { b.neighbours(200) })
				x.awaitSlow()
				wr := wr
				wr.RemoteAddr += 1 << 12
				wr.SGList = b.a.sge(8192, 8) // memory that the neighbours do not use
				// Send to the other queue pair of the program. Every sender must continue.
				within(t, "PostSend to the program", func() {
					for range 3 {
						_, err := x.peers[1].PostSend(wr)
						check(t, err)
					}
				})
				within(t, "the neighbours' traffic", func() { b.neighbours(200) })
				within(t, "Peek", func() {
					if got := x.qps[0].Peek(); got.State != ib.QPRTS || got.DestQPN != x.peers[0].Num() {
						t.Errorf("Peek: got %v, peer %d, want %v, peer %d", got.State, got.DestQPN, ib.QPRTS, x.peers[0].Num())
					}
				})
				if net.name == "wire" && !returned.Load() {
					t.Error("PostSend of the peer waits for the memory on the other side of the wire")
				}
				if n := b.b.dev.Stats()["drop_stalled"]; n > 0 {
					t.Errorf("got %d packets dropped, want 0: there is room for so few", n)
				}
				b.b.recv(9, 0, 64)
				within(t, "SetError", b.b.dev.Handle().SetError)
				if wc := b.b.poll(1)[0]; wc.ID != 9 || wc.Status != ib.WCWRFlushErr {
					t.Errorf("after SetError: got %+v, want work request 9 flushed", wc)
				}
				within(t, "Disassociate", func() { ops{b.b.dev}.Disassociate(x.program) })
				x.space.answer()
				testutil.Eventually(t, "the program's queue pair is in error", func() bool { return x.qps[0].State() == ib.QPErr })
			})
		}
	}
}

// TestSilentMemoryAnswers tests that all sent messages arrive, in order and once, when the memory answers again.
func TestSilentMemoryAnswers(t *testing.T) {
	for _, net := range []struct {
		name string
		s    func() setup
	}{{"shortcut", func() setup { return setup{shortcut: true} }}, {"wire", loopback}} {
		t.Run(net.name, func(t *testing.T) {
			b := newBench(t, net.s())
			b.connect(conn{})
			x := newSilentProgram(b, ib.QPTypeRC)
			for range 9 {
				x.recv(0, 64)
			}
			x.space.hush()
			send := func(id int) {
				_, err := x.peers[0].PostSend(ib.SendWR{ID: uint64(id), Opcode: ib.WRSend, Flags: ib.SendSignaled,
					SGList: b.a.sge(64, 8+id)})
				check(t, err)
			}
			posted := make(chan struct{})
			go func() {
				defer close(posted)
				send(0)
			}()
			x.awaitSlow()
			for id := 1; id < 9; id++ {
				send(id)
			}
			x.space.answer()
			<-posted
			for id := range 9 {
				n := node{t: t, dev: b.a.dev, cq: x.cq}
				if wc := n.poll(1)[0]; wc.ID != uint64(id) || wc.Status != ib.WCSuccess {
					t.Fatalf("completion: got work request %d, %v, want %d, success", wc.ID, wc.Status, id)
				}
				n = node{t: t, dev: b.b.dev, cq: x.own}
				if wc := n.poll(1)[0]; wc.Status != ib.WCSuccess || wc.ByteLen != uint32(8+id) {
					t.Fatalf("receive: got %d bytes, %v, want %d, success", wc.ByteLen, wc.Status, 8+id)
				}
			}
			if !qpOf(x.qps[0]).lane.slow.Load() {
				t.Error("the program is not slow at once after its memory has answered, want a penalty")
			}
		})
	}
}

// TestWatchdogRests tests that the watchdog stops when no copy is in progress, and starts again with the next copy.
func TestWatchdogRests(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	w := &b.a.dev.watchdog
	for range 2 {
		p := b.a.dev.begin(false)
		p.enter(qpOf(b.a.qp))
		if !w.on.Load() || !w.entered() {
			t.Errorf("watchdog during a copy: got on %v, a new copy %v, want true, true", w.on.Load(), w.entered())
		}
		p.leave()
		p.end()
		testutil.Eventually(t, "the watchdog rests", func() bool { return !w.on.Load() })
	}
}

// TestSendersOfAStoppedPass tests that the senders of a queue pair that is blocked in its memory do not wait for it:
// the trains that it has not received count as those of its slow program.
func TestSendersOfAStoppedPass(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	x := newSilentProgram(b, ib.QPTypeRC)
	b.unwatched()
	x.space.hush()
	wr := ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("12345678"), RemoteAddr: x.addr,
		RKey: x.mr.RKey()}
	done := make(chan error, 1)
	go func() {
		_, err := x.peers[0].PostSend(wr)
		done <- err
	}()
	testutil.Eventually(t, "the copy is blocked", func() bool { return x.space.waiting.Load() > 0 })
	from, to := qpOf(x.peers[0]), qpOf(x.qps[0])
	for range maxHanded {
		_, err := x.peers[0].PostSend(wr)
		check(t, err)
	}
	if n := from.egress.handed.Load(); n != maxHanded {
		t.Errorf("trains that the blocked queue pair has not received: got %d, want %d", n, maxHanded)
	}
	b.a.dev.watchdog.look(b.a.dev)
	b.a.dev.watchdog.look(b.a.dev)
	testutil.Eventually(t, "the trains count as those of the slow program", func() bool { // perhaps by the timer's thread
		return from.egress.handed.Load() == 0 && to.lane.bytes.Load() > 0
	})
	x.space.answer()
	within(t, "PostSend", func() { check(t, <-done) })
	b.watched()
}

// TestWorkOfAStoppedPass blocks a pass in the memory of a program. The work of the pass for other queue pairs must be
// done.
func TestWorkOfAStoppedPass(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	x := newSilentProgram(b, ib.QPTypeRC)
	x.space.hush()
	b.b.recv(1, 0, 64)
	// The thread has work for the neighbour's queue pair, but runs the silent program first.
	q, silent := qpOf(b.a.qp), qpOf(x.qps[0])
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p := q.dev.begin(false)
		_, err := q.req.postSend(&p.posted,
			[]ib.SendWR{{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 64)}})
		p.post(silent, func(p *pass) {
			p.enter(silent)
			x.space.wait()
			p.leave()
		})
		p.wake(q)
		p.end()
		if err != nil {
			t.Error(err)
		}
	}()
	b.b.poll(1)
	b.a.poll(1)
	select {
	case <-stopped:
		t.Error("the pass was not stopped")
	default:
	}
	b.neighbours(10)
	x.space.answer()
	<-stopped
}

// TestDestroyBehindAStoppedDoorbell blocks a doorbell in the memory of the peer's program. The queue pair of the
// doorbell can still be modified and destroyed.
func TestDestroyBehindAStoppedDoorbell(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	x := newSilentProgram(b, ib.QPTypeRC)
	x.space.hush()
	obj := x.peers[0]
	qp := qpOf(obj)
	p := qp.dev.begin(false)
	_, err := qp.req.postSend(&p.posted,
		[]ib.SendWR{{ID: 2, Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 64), RemoteAddr: x.addr,
			RKey: x.mr.RKey()}})
	check(t, err)
	p.end()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		var h ib.Hold
		qp.Doorbell(&h)
		h.Run()
	}()
	x.awaitSlow()
	within(t, "Modify and Destroy", func() {
		check(t, obj.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		check(t, obj.Destroy())
	})
	select {
	case <-stopped:
		t.Error("the doorbell was not stopped")
	default:
	}
	x.space.answer()
	<-stopped
	// for the cleanup
	x.peers[0], err = b.a.pd.CreateQP(ib.QPInitAttr{SendCQ: x.cq, RecvCQ: x.cq, Cap: userCap, Type: ib.QPTypeRC})
	check(t, err)
}

// TestDoorbellHoldsCallbacksOfPeers tests that the handler of a receiver on another device runs on the thread of the
// sender's doorbell, after the doorbell has returned.
func TestDoorbellHoldsCallbacksOfPeers(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	ran := make(chan bool, 1)
	inRun := false
	cq, err := b.b.dev.IB().CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) { ran <- inRun }})
	check(t, err)
	recv, err := b.b.pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: userCap, Type: ib.QPTypeRC})
	check(t, err)
	send, err := b.a.pd.CreateQP(ib.QPInitAttr{SendCQ: b.a.cq, RecvCQ: b.a.cq, Cap: userCap, Type: ib.QPTypeRC})
	check(t, err)
	defer func() { check(t, send.Destroy()); check(t, recv.Destroy()); check(t, cq.Destroy()) }()
	connectQPs(t, b.a.dev, send, b.b.dev, recv, conn{})
	_, err = recv.PostRecv(ib.RecvWR{ID: 1})
	check(t, err)
	_, err = cq.ReqNotify(ib.NotifyNextComp)
	check(t, err)
	qp := qpOf(send)
	p := qp.dev.begin(false)
	_, err = qp.req.postSend(&p.posted,
		[]ib.SendWR{{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled}})
	check(t, err)
	p.end()
	var h ib.Hold
	qp.Doorbell(&h)
	inRun = true // the handler reads it; on another thread, the race detector reports that
	h.Run()
	inRun = false
	if !<-ran {
		t.Error("the handler did not run in Hold.Run")
	}
	b.a.expect(ib.WC{ID: 2, Opcode: ib.WCSend})
}

// TestLaneIsBounded sends to a program that does not answer. The waiting packets are bounded, and the rest is
// counted.
func TestLaneIsBounded(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{})
	x := newSilentProgram(b, ib.QPTypeUC)
	x.space.hush()
	wr := ib.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 1<<15), RemoteAddr: x.addr, RKey: x.mr.RKey()}
	first := make(chan struct{})
	go func(wr ib.SendWR) {
		defer close(first)
		wr.RemoteAddr += 1 << 15
		_, _ = x.peers[0].PostSend(wr)
	}(wr)
	x.awaitSlow()
	within(t, "PostSend to the program", func() {
		for range 200 {
			var err error
			testutil.PollUntil(func() bool {
				_, err = x.peers[1].PostSend(wr)
				return !errors.Is(err, syscall.ENOMEM) // a goroutine that runs the queue pair waits for a processor
			})
			check(t, err)
		}
	})
	l := qpOf(x.qps[1]).lane
	if bytes := l.bytes.Load(); bytes > maxLaneBytes || bytes == 0 {
		t.Errorf("%d bytes wait, want at most %d, and some", bytes, maxLaneBytes)
	}
	if n := b.b.dev.Stats()["drop_stalled"]; n == 0 {
		t.Error("drop_stalled: got 0, want some")
	}
	x.space.answer()
	<-first
}

// TestLaneRecovers tests that a program leaves the slow state after the penalty, when its memory answers again.
func TestLaneRecovers(t *testing.T) {
	var l lane
	l.stall()
	l.stall()
	if !l.slow.Load() || l.recovered() {
		t.Fatal("a program with a stopped pass is not slow")
	}
	l.resume()
	l.resume()
	if l.penalty != 2*minPenalty {
		t.Errorf("penalty after two stalls: got %v, want %v", l.penalty, 2*minPenalty)
	}
	if l.recovered() {
		t.Error("a program recovers before its penalty is over")
	}
	l.until = time.Now()
	if !l.recovered() || l.slow.Load() {
		t.Error("a program does not recover when its penalty is over")
	}
	for range 20 {
		l.stall()
		l.resume()
	}
	if l.penalty != maxPenalty {
		t.Errorf("penalty after many stalls: got %v, want %v", l.penalty, maxPenalty)
	}
}

// TestXRCTargetOfProgram: PostSend of a consumer in this process does not wait for the memory of a program behind an
// XRC target that no user context owns.
func TestXRCTargetOfProgram(t *testing.T) {
	for name, s := range map[string]setup{"shortcut": {shortcut: true}, "wire": loopback()} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, s)
			b.connect(conn{timeout: 20})
			x := newSilentProgram(b, ib.QPTypeRC)
			dom, err := b.b.dev.IB().AllocXRCD()
			check(t, err)
			srq, err := ibuser.CreateSRQ(x.pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: dom, CQ: x.own,
				Attr: ib.SRQAttr{MaxWR: 20, MaxSGE: 1}}, &ib.Udata{Context: x.program, Out: make([]byte, 64)})
			check(t, err)
			ini, err := b.a.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeXRCInit, SendCQ: b.a.cq, Cap: ib.QPCap{MaxSendWR: 20,
				MaxSendSGE: 1, MaxInlineData: 16}})
			check(t, err)
			tgt, err := b.b.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeXRCTgt, XRCD: dom})
			check(t, err)
			connectQPs(t, b.a.dev, ini, b.b.dev, tgt, conn{timeout: 20})
			defer func() {
				x.space.answer()
				check(t, ini.Destroy())
				check(t, tgt.Destroy())
				check(t, srq.Destroy())
				check(t, dom.Dealloc())
			}()
			x.space.hush()
			within(t, "PostSend", func() {
				_, err := ini.PostSend(ib.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("12345678"),
					RemoteAddr: x.addr, RKey: x.mr.RKey(), RemoteSRQN: srq.Num()})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestKeysOfOthers posts a work request with the key of another program's region or window. It must not wait for the
// lock of that object, because the holder may wait for the other program's memory.
func TestKeysOfOthers(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	b.connect(conn{timeout: 20})
	x := newSilentProgram(b, ib.QPTypeRC)
	mw, err := ibuser.AllocMW(x.pd, ib.MWType1, &ib.Udata{Context: x.program, Out: make([]byte, 64)})
	check(t, err)
	defer func() { check(t, mw.Dealloc()) }()
	victim := qpOf(b.b.qp)
	m, w := b.b.dev.mrs.get(x.mr.RKey()>>8), b.b.dev.mws.get(mw.RKey()>>8)
	m.mu.Lock()
	w.mu.Lock()
	defer m.mu.Unlock()
	defer w.mu.Unlock()
	within(t, "an invalidation of another's region", func() {
		if victim.invalidate(x.mr.RKey()) {
			t.Error("the region of another program was invalidated")
		}
	})
	within(t, "an invalidation of another's window", func() {
		if victim.invalidate(mw.RKey()) {
			t.Error("the window of another program was invalidated")
		}
	})
	within(t, "a bind of another's window", func() {
		if w.bind(victim, &queue.Bind{MWRKey: mw.RKey(), MRLKey: b.b.mr.LKey(), RKey: mw.RKey() + 1, Length: 8,
			Addr: b.b.addr}) {
			t.Error("the window of another program was bound")
		}
	})
	within(t, "a registration of another's region", func() {
		if s := victim.req.fastReg(&queue.Bind{MRLKey: x.mr.LKey(), RKey: x.mr.LKey()}); s == uapi.WCSuccess {
			t.Error("the region of another program was registered")
		}
	})
}
