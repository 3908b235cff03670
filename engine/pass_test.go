package engine

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link/simnet"
)

// TestActivity wakes a queue pair from several threads. One thread runs it at a time, and a run that begins after an
// event sees the event.
func TestActivity(t *testing.T) {
	const threads, events = 4, 20000
	var (
		a               activity
		posted, handled atomic.Int64
		inside          atomic.Int32
		wg              sync.WaitGroup
	)
	for range threads {
		wg.Go(func() {
			for range events {
				posted.Add(1)
				if !a.wake() {
					continue
				}
				for {
					if inside.Add(1) != 1 {
						t.Error("two threads run it")
					}
					a.begin()
					handled.Store(posted.Load())
					inside.Add(-1)
					if a.rest() {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	if handled.Load() != threads*events {
		t.Errorf("handled %d of %d events", handled.Load(), threads*events)
	}
	if s := a.state.Load(); s != resting {
		t.Errorf("afterwards the state is %d, want resting", s)
	}
}

// TestEventsOfARunningQueuePair sends to a queue pair that another thread runs. The packets wait for any time, but
// the sender pauses when two of its trains wait. The sender continues when the trains are taken, or when the
// receiver's program becomes slow. In that case the trains count in QP.lane of the receiver.
func TestEventsOfARunningQueuePair(t *testing.T) {
	const messages = 4 * maxHanded
	for _, slow := range []bool{false, true} {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		from, to := qpOf(b.a.qp), qpOf(b.b.qp)
		for i := range messages {
			b.b.recv(uint64(i), 0, 8)
		}
		takeRun(to) // this thread runs the receiver
		for i := range messages {
			b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, Inline: []byte("12345678")})
		}
		waiting := func(want int) {
			t.Helper()
			if n := len(to.events.list); n != want {
				t.Errorf("%d events wait, want %d", n, want)
			}
		}
		waiting(maxHanded)
		b.b.none()
		p := b.a.dev.begin(false)
		if slow {
			to.lane.stall()
			p.forgive(to)
			p.end()
			// The rest makes one train, or two if another thread has run the sender meanwhile.
			if n := len(to.events.list); n <= maxHanded || n == messages {
				t.Errorf("%d events wait, want few more than %d", n, maxHanded)
			}
			if n := to.lane.bytes.Load(); n == 0 || from.egress.handed.Load() != 0 {
				t.Errorf("%d bytes wait, %d trains are handed over, want some and none", n, from.egress.handed.Load())
			}
			to.lane.resume()
			to.lane.until = time.Time{}
			p = b.a.dev.begin(false)
		}
		p.todo = append(p.todo, to)
		p.end()
		b.a.poll(messages)
		for i, wc := range b.b.poll(messages) {
			if wc.ID != uint64(i) || wc.Status != ib.WCSuccess {
				t.Errorf("receive %d is %d, %v", i, wc.ID, wc.Status)
			}
		}
		if n, h := to.lane.bytes.Load(), from.egress.handed.Load(); n != 0 || h != 0 {
			t.Errorf("afterwards %d bytes wait, and %d trains are handed over, want none", n, h)
		}
	}
}

// TestUsersShareAPass runs queue pairs of three users in one pass. Two users have much work. A queue pair of the third
// waits for one run of each other user.
func TestUsersShareAPass(t *testing.T) {
	n := newBench(t, setup{shortcut: true}).a
	p, ran := n.dev.begin(false), ""
	for _, user := range []string{"a", "a", "a", "a", "b", "b", "b", "b", "c", "c"} {
		obj, err := n.pd.CreateQP(ib.QPInitAttr{SendCQ: n.cq, RecvCQ: n.cq, Cap: userCap, Type: ib.QPTypeUD})
		check(t, err)
		defer func() { check(t, obj.Destroy()) }()
		qp := qpOf(obj)
		qp.owner = user
		p.post(qp, func(p *pass) {
			ran += user
			if user != "c" {
				p.spent += 2 * userQuantum
			}
		})
	}
	if !p.drain(passBudget) {
		t.Error("drain: got false, want the end of the run queue")
	}
	p.release()
	if want := "abcabcabab"; ran != want {
		t.Errorf("order of the users: got %s, want %s", ran, want)
	}
}

// TestPacketsOfARunningQueuePair tests the limit of packets from the network for a queue pair that another thread
// runs.
func TestPacketsOfARunningQueuePair(t *testing.T) {
	b := newBench(t, setup{})
	b.connect(conn{})
	to := qpOf(b.b.qp)
	takeRun(to)
	b.b.recv(1, 0, 100)
	b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, Inline: []byte("12345678")})
	testutil.Eventually(t, "the packet", to.events.any.Load)
	b.b.none()
	to.lane.charge(maxLaneBytes - int(to.lane.bytes.Load()))
	p := b.b.dev.begin(false)
	p.arrive(to, arrival(addrA, addrB), [][]byte{make([]byte, 20)})
	if n := b.b.dev.Stats()["drop_stalled"]; n != 1 {
		t.Errorf("drop_stalled: got %d, want 1", n)
	}
	to.lane.bytes.Store(28) // size of the first packet
	p.todo = append(p.todo, to)
	p.end()
	b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 8})
	b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
}

// TestWayChangesUnderTrain builds a message for a device of the Fabric, and then sends it to the network. The message
// must arrive whole, even if the socket is full in between.
func TestWayChangesUnderTrain(t *testing.T) {
	for _, full := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			s := setup{shortcut: true}
			if full {
				s.net = simnet.Config{SendBuffer: 3000, Bandwidth: 1 << 24}
			}
			b := newBench(t, s)
			b.connect(conn{})
			const size = 20_000
			fill(b.a.buf[:size], 1)
			qp := qpOf(b.a.qp)
			qp.exclusively(func(p *pass) {
				_, err := qp.req.postSend(&p.posted, []ib.SendWR{{
					ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, size), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey(),
				}})
				check(t, err)
				qp.advance(p)
				if q := qp.egress.queue; len(q) == 0 || !q[0].mixed {
					t.Error("the train is not mixed")
				}
				b.a.dev.SetShortcut(false)
				b.b.dev.SetShortcut(false)
			})
			b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
			if i := firstDifference(b.a.buf[:size], b.b.buf[:size]); i >= 0 {
				t.Errorf("byte %d differs", i)
			}
			if n := b.a.dev.Stats()["completer_retry_err"]; n != 0 && !full {
				t.Errorf("%d retries", n)
			}
		})
	}
}

// TestPassIsKept tests that a long pass continues on the thread of a doorbell without other work, and not on a
// goroutine.
func TestPassIsKept(t *testing.T) {
	if runs, _ := keepPass(t, false); runs != 1 {
		t.Errorf("not kept: %d runs, want 1", runs)
	}
	for range 10 { // a timer may fire just when the queue pair rests; then the timer's thread continues
		if runs, rests := keepPass(t, true); runs > 1 && rests {
			return
		}
	}
	t.Error("kept: never more than one run, after which the queue pair rests")
}

// keepPass sends much on this thread. It returns the number of runs of a Hold, and whether the queue pair rests at
// the end.
func keepPass(t *testing.T, keep bool) (runs int, rests bool) {
	const size, messages = 1 << 20, 16
	b := newBench(t, setup{shortcut: true, bufLen: size})
	b.unwatched()
	b.connect(conn{})
	qp := qpOf(b.a.qp)
	takeRun(qp) // this thread runs the queue pair
	for i := range messages {
		b.a.send(ib.SendWR{
			ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: b.a.sge(0, size),
			RemoteAddr: b.b.addr, RKey: b.b.mr.RKey(),
		})
	}
	p := b.a.dev.begin(false)
	var h ib.Hold
	p.held = &h
	p.todo = append(p.todo, qp)
	h.Defer(p)
	for rest := ib.Work(p); rest != nil; runs++ {
		if keep {
			h.Keep()
		}
		h.Run()
		if rest = h.Rest(); rest != nil {
			h.Defer(rest)
		}
	}
	rests = qp.activity.state.Load() == resting
	for i := range messages {
		b.a.expect(ib.WC{ID: uint64(i), Opcode: ib.WCRDMAWrite})
	}
	return runs, rests
}

// TestAnswerBeforeDestroy tests that the acknowledgement of a request is sent if the same run also destroys the queue
// pair.
func TestAnswerBeforeDestroy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{shortcut: true})
		b.connect(conn{timeout: 14, retry: 1})
		destroyed := make(chan error, 1)
		qpOf(b.b.qp).exclusively(func(*pass) { // both wait until it returns
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled})
			go func() { destroyed <- b.b.qp.Destroy() }()
			synctest.Wait()
		})
		check(t, <-destroyed)
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCRDMAWrite})
		b.b.qp = b.b.newQP(setup{typ: ib.QPTypeRC, cap: userCap})
		b.close()
	})
}
