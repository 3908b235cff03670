package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/umem"
)

// TestLookBeforeTheDoorbell tests a program that has posted without a doorbell, from memory that does not answer. It
// must not block a thread that has a task for its queue pair.
func TestLookBeforeTheDoorbell(t *testing.T) {
	for _, look := range []struct {
		name string
		typ  ib.QPType
		f    func(d *Device, num uint32)
	}{
		{"QPStatuses", ib.QPTypeRC, func(d *Device, _ uint32) { d.QPStatuses() }},
		{"TraceQP", ib.QPTypeUC, func(d *Device, num uint32) { _ = d.TraceQP(num, true) }},
		{"QPTrace", ib.QPTypeRC, func(d *Device, num uint32) { _, _ = d.QPTrace(num) }},
		{"SetInterface", ib.QPTypeUD, func(d *Device, _ uint32) {
			at := d.at.Load()
			ifi := at.netdev
			ifi.MTU = 1500
			d.SetInterface(ifi, at.addrs())
		}},
		{"SetError", ib.QPTypeRC, func(d *Device, _ uint32) { d.Handle().SetError() }},
	} {
		t.Run(look.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true})
			x := newSilentProgram(b, look.typ)
			x.space.hush()
			wr := ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: x.addr, Length: 64, LKey: x.mr.LKey()}}}
			if look.typ == ib.QPTypeUD {
				gid, err := b.a.dev.IB().QueryGID(1, 1)
				check(t, err)
				wr.AH, err = x.pd.CreateAH(&ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}})
				check(t, err)
				t.Cleanup(func() { check(t, wr.AH.Destroy()) })
			}
			qp := qpOf(x.qps[0])
			p := qp.dev.begin(false)
			_, err := qp.req.postSend(&p.posted, []ib.SendWR{wr})
			check(t, err)
			p.end()
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				look.f(qp.dev, qp.num)
			}()
			select {
			case <-returned:
			case <-time.After(2 * time.Second):
				t.Errorf("%s has not returned after 2 s", look.name)
				x.space.answer()
				<-returned
			}
		})
	}
}

// sendingTo is a network with endpoints that call a function to send.
type sendingTo func(t *link.Train) error

type sendingToEndpoint struct {
	addr netip.Addr
	send sendingTo
}

func (n sendingTo) Listen(addr netip.Addr, _ link.Receiver) (link.Endpoint, error) {
	return &sendingToEndpoint{addr, n}, nil
}
func (e *sendingToEndpoint) Addr() netip.Addr         { return e.addr }
func (e *sendingToEndpoint) Send(t *link.Train) error { return e.send(t) }
func (e *sendingToEndpoint) Close() error             { return nil }

// TestQueryOfABusySender tests that Query returns while other threads of the consumer continue to post.
func TestQueryOfABusySender(t *testing.T) {
	const most = 4 * passBudget / trainCost
	var sent atomic.Int64
	var b *bench
	returned := make(chan struct{})
	wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: []byte("1")}
	n := sendingTo(func(*link.Train) error {
		switch n := sent.Add(1); {
		case n == most:
			select {
			case <-returned:
			case <-time.After(2 * time.Second):
				t.Errorf("Query sends for others, and has not returned after %d trains", n)
			}
		case n < most:
			b.a.send(wr)
		}
		return nil
	})
	b = newBench(t, setup{network: n, addrs: [2]netip.Addr{addrA, addrB}, typ: ib.QPTypeUC})
	b.connect(conn{})
	qp := qpOf(b.a.qp)
	p := qp.dev.begin(false)
	_, err := qp.req.postSend(&p.posted, []ib.SendWR{wr})
	check(t, err)
	p.end()
	_, err = qp.Query(0)
	check(t, err)
	close(returned)
}

// TestDestroyBehindAStoppedPass destroys a queue pair that waits behind its program's memory. The trains for it must
// not count with their sender forever.
func TestDestroyBehindAStoppedPass(t *testing.T) {
	for _, fails := range []bool{false, true} {
		b := newBench(t, setup{shortcut: true})
		x := newSilentProgram(b, ib.QPTypeUC)
		x.space.hush()
		front, obj := qpOf(x.qps[0]), x.qps[1]
		qp, from := qpOf(obj), qpOf(x.peers[1])
		data := &ib.Udata{Context: x.program, Out: make([]byte, 64)}
		middle, err := ibuser.CreateQP(x.pd, ib.QPInitAttr{SendCQ: x.own, RecvCQ: x.own, Cap: userCap, Type: ib.QPTypeUC},
			data)
		check(t, err)
		p := front.dev.begin(false)
		for _, stops := range []*QP{front, qpOf(middle)} { // the pass, and the goroutine of the program
			p.post(stops, func(p *pass) {
				p.enter(stops)
				x.space.wait()
				p.leave()
			})
		}
		p.wake(qp)
		for range 2 * maxHanded {
			_, err := x.peers[1].PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("1"),
				RemoteAddr: x.addr, RKey: x.mr.RKey()})
			check(t, err)
		}
		if n := from.egress.handed.Load(); n != maxHanded {
			t.Fatalf("%d trains are handed over, want %d", n, maxHanded)
		}
		destroyed, stopped := make(chan error), make(chan struct{})
		go func() { destroyed <- obj.Destroy() }()
		testutil.Eventually(t, "Destroy has begun", func() bool {
			qp.events.mu.Lock()
			defer qp.events.mu.Unlock()
			return len(qp.events.list) == maxHanded+1
		})
		if fails {
			b.b.dev.fail(errors.New("test"))
		}
		go func() {
			defer close(stopped)
			p.end()
		}()
		if !testutil.PollUntil(func() bool { return from.egress.handed.Load() == 0 }) {
			t.Errorf("device fails %t: %d trains count with their sender", fails, from.egress.handed.Load())
		}
		x.space.answer()
		<-stopped
		check(t, <-destroyed)
		x.qps[1] = middle // for the cleanup
	}
}

// TestSmallTrainsOfALane tests that the memory for short trains that wait for an unresponsive program is bounded.
func TestSmallTrainsOfALane(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	x := newSilentProgram(b, ib.QPTypeUC)
	qp := qpOf(x.qps[0])
	qp.lane.stall()
	takeRun(qp)
	for range 500 {
		_, err := x.peers[0].PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("1"),
			RemoteAddr: x.addr, RKey: x.mr.RKey()})
		check(t, err)
	}
	held := 0
	for _, e := range qp.events.list {
		if e.train != nil {
			held += cap(e.train.Buf)
		}
		if e.waiting != nil {
			held += cap(e.waiting.buf)
		}
	}
	if held > 2*maxLaneBytes {
		t.Errorf("%d events hold %d bytes, want at most %d", len(qp.events.list), held, 2*maxLaneBytes)
	}
	qp.lane.resume()
	qp.lane.until = time.Time{}
	p := qp.dev.begin(false)
	p.todo = append(p.todo, qp)
	p.end()
	if n := qp.lane.bytes.Load(); n != 0 {
		t.Errorf("afterwards %d bytes wait, want 0", n)
	}
}

// TestWayReturnsUnderTrain allows the shortcut again after some messages have left by the network. All must arrive
// once.
func TestWayReturnsUnderTrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true, typ: ib.QPTypeUC, net: simnet.Config{SendBuffer: 3000, Bandwidth: 1 << 24}})
		b.connect(conn{})
		const messages = 20
		var wrs []ib.SendWR
		for i := range messages {
			b.b.recv(uint64(i), 0, 1000)
			b.b.recv(uint64(messages+i), 0, 1000)
			wrs = append(wrs, ib.SendWR{Opcode: ib.WRSendWithImm, SGList: b.a.sge(0, 1000), Imm: uint32(i)})
		}
		qp := qpOf(b.a.qp)
		way := func(on bool) {
			b.a.dev.SetShortcut(on)
			b.b.dev.SetShortcut(on)
		}
		qp.exclusively(func(p *pass) {
			_, err := qp.req.postSend(&p.posted, wrs)
			check(t, err)
			qp.advance(p)
			way(false)
		})
		qp.exclusively(func(*pass) {
			if !qp.egress.blocked {
				t.Error("the network has taken all")
			}
			way(true)
		})
		testutil.AdvanceTime(time.Second)
		seen := map[uint32]int{}
		wc := make([]ib.WC, 3*messages)
		n, err := b.b.cq.Poll(wc)
		check(t, err)
		for _, c := range wc[:n] {
			if seen[c.Imm]++; seen[c.Imm] > 1 {
				t.Errorf("message %d arrives again", c.Imm)
			}
		}
		if n == 0 {
			t.Error("nothing has arrived")
		}
	})
}

// TestDisassociateOfASilentProgram tests that queue pairs of a silent program are flushed when the memory answers.
func TestDisassociateOfASilentProgram(t *testing.T) {
	b := newBench(t, setup{shortcut: true})
	x := newSilentProgram(b, ib.QPTypeRC)
	x.space.hush()
	x.recv(1, 64)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = x.peers[0].PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 64), RemoteAddr: x.addr,
			RKey: x.mr.RKey()})
	}()
	x.awaitSlow()
	within(t, "Disassociate", func() { ops{b.b.dev}.Disassociate(x.program) })
	x.space.answer()
	<-sent
	for i := range x.qps {
		if !testutil.PollUntil(func() bool { return x.qps[i].State() == ib.QPErr }) {
			t.Errorf("queue pair %d is in %v", i, x.qps[i].State())
		}
	}
}

// TestPostToASilentProgram tests that PostSend, which may not sleep, returns while the memory of the peer's program
// does not answer.
func TestPostToASilentProgram(t *testing.T) {
	for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		b := newBench(t, setup{shortcut: true})
		x := newSilentProgram(b, typ)
		x.space.hush()
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			_, err := x.peers[0].PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 64), RemoteAddr: x.addr,
				RKey: x.mr.RKey()})
			check(t, err)
		}()
		select {
		case <-returned:
		case <-time.After(2 * time.Second):
			t.Errorf("%v: PostSend has not returned after 2 s", typ)
			x.space.answer()
			<-returned
		}
		x.awaitSlow()
	}
}

// busySpace is memory that calls a function for each write.
type busySpace struct {
	*umem.Local
	written func()
}

func (s *busySpace) WriteV(src [][]byte, addr uint64) error {
	s.written()
	return s.Local.WriteV(src, addr)
}

// TestPostToABusyReceiver tests that PostSend returns while other threads continue to send to the receiver, which
// answers nothing.
func TestPostToABusyReceiver(t *testing.T) {
	const most = 2 * passBudget / trainCost
	b := newBench(t, setup{shortcut: true, typ: ib.QPTypeUC})
	b.connect(conn{})
	var wr ib.SendWR
	returned, received := make(chan struct{}), 0
	space := &busySpace{Local: umem.NewLocal(), written: func() {
		switch received++; {
		case received == most:
			select {
			case <-returned:
			case <-time.After(2 * time.Second):
				t.Errorf("PostSend receives for others, and has not returned after %d trains", received)
			}
		case received < most:
			_, err := b.a.qp.PostSend(wr)
			check(t, err)
		}
	}}
	addr, err := space.Add(make([]byte, 64))
	check(t, err)
	mr, err := b.b.pd.RegMR(ib.MRInit{Space: space, Addr: addr, Length: 64, Access: allAccess})
	check(t, err)
	wr = ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("1"), RemoteAddr: addr, RKey: mr.RKey()}
	b.a.send(wr)
	close(returned)
	testutil.Eventually(t, "all have arrived", func() bool { return qpOf(b.b.qp).activity.state.Load() == resting })
	check(t, mr.Dereg())
}

// TestStorm sends on queue pairs of every service while their environment changes. At the end all queue pairs rest,
// and no train, event or byte counts as waiting.
func TestStorm(t *testing.T) {
	const room = 16 << 10 // target memory of a queue pair; the source memory lies before it
	for _, storm := range []struct {
		name     string
		qps, cqe int
		change   func(b *bench, r *rand.Rand)
	}{
		{"many", 100, 30000, func(*bench, *rand.Rand) {}},
		{"completion queues are full", 12, 64, func(*bench, *rand.Rand) {}},
		{"way", 12, 30000, func(b *bench, r *rand.Rand) { b.b.dev.SetShortcut(r.IntN(2) == 0) }},
		{"port", 12, 30000, func(b *bench, r *rand.Rand) {
			at := b.b.dev.at.Load()
			ifi := at.netdev
			ifi.Running, ifi.MTU = r.IntN(2) == 0, []int{1500, 9000}[r.IntN(2)]
			b.b.dev.SetInterface(ifi, at.addrs())
		}},
		{"error", 12, 30000, func(b *bench, r *rand.Rand) {
			for qp := range []*Device{b.a.dev, b.b.dev}[r.IntN(2)].qps.all() {
				if qp != qpOf(b.a.qp) && qp != qpOf(b.b.qp) && r.IntN(50) == 0 {
					_ = qp.Modify(&ib.QPAttr{State: []ib.QPState{ib.QPErr, ib.QPReset}[r.IntN(2)]}, ib.QPAttrState, nil)
				}
			}
			time.Sleep(time.Millisecond)
		}},
	} {
		t.Run(storm.name, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true, cqe: storm.cqe, bufLen: room * (storm.qps + 1)})
			b.connect(conn{})
			ah := newAH(b.a, b.b.dev, 1)
			var from, to []*ib.QP
			for i := range storm.qps {
				typ := []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD}[i%3]
				from, to = append(from, b.a.newQP(setup{typ: typ, cap: userCap})), append(to, b.b.newQP(setup{typ: typ,
					cap: userCap}))
				connectQPs(t, b.a.dev, from[i], b.b.dev, to[i], conn{timeout: 10})
			}
			stop := time.Now().Add(60 * time.Millisecond)
			var wg sync.WaitGroup
			for k := range 4 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(k), 1))
					for time.Now().Before(stop) {
						if k == 0 {
							storm.change(b, r)
							continue
						}
						i := r.IntN(storm.qps)
						off := room * (i + 1)
						wr := ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, r.IntN(9000)), RemoteAddr: b.b.addr + uint64(off),
							RKey: b.b.mr.RKey()}
						switch {
						case i%3 == 2:
							_, _ = to[i].PostRecv(ib.RecvWR{SGList: b.b.sge(off, 5000)})
							wr = ib.SendWR{Opcode: ib.WRSend, SGList: b.a.sge(0, r.IntN(4096)), AH: ah, RemoteQPN: to[i].Num(),
								RemoteQKey: testQKey}
						case i%3 == 0 && r.IntN(2) == 0:
							wr.Opcode, wr.SGList, wr.RemoteAddr = ib.WRRDMARead, b.a.sge(off, r.IntN(9000)), b.b.addr
						}
						_, _ = from[i].PostSend(wr)
					}
				})
			}
			wg.Wait()
			at := b.b.dev.at.Load()
			ifi := at.netdev
			ifi.Running = true
			b.b.dev.SetInterface(ifi, at.addrs())
			for _, obj := range slices.Concat(from, to) {
				qp := qpOf(obj)
				testutil.Eventually(t, fmt.Sprintf("%v queue pair %d rests", qp.typ, qp.num), func() bool {
					return qp.activity.state.Load() == resting && !qp.events.any.Load() && qp.egress.handed.Load() == 0 &&
						qp.lane.bytes.Load() == 0 && (obj.State() != ib.QPRTS || !hasPosted(qp))
				})
				check(t, obj.Destroy())
			}
			check(t, ah.Destroy())
		})
	}
}

func hasPosted(qp *QP) bool {
	_, some := qp.Posted()
	return some
}
