package engine

import (
	"net/netip"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/uapi"
	"verbena/umem"
)

// countingNet is a network that counts the received batches: those of sending threads, and those of receive threads.
type countingNet struct {
	link.Network
	taken, woken atomic.Int64
}

type countingReceiver struct {
	link.Receiver
	net *countingNet
}

func (n *countingNet) Listen(addr netip.Addr, r link.Receiver) (link.Endpoint, error) {
	return n.Network.Listen(addr, countingReceiver{r, n})
}

func (r countingReceiver) Receive(a *link.Arrival) {
	if a.By != nil {
		r.net.taken.Add(1)
	} else {
		r.net.woken.Add(1)
	}
	r.Receiver.Receive(a)
}

func newTakeBench(t *testing.T, typ ib.QPType) (*bench, *countingNet) {
	s := loopback()
	n := &countingNet{Network: s.network}
	s.network, s.typ = n, typ
	b := newBench(t, s)
	b.connect(conn{timeout: 20})
	return b, n
}

// TestTakeAnswers sends messages for which a program waits. The sending thread receives all packets, and the message
// is complete when PostSend returns.
func TestTakeAnswers(t *testing.T) {
	for name, wr := range map[string]ib.SendWR{
		"SEND":  {Opcode: ib.WRSend},
		"WRITE": {Opcode: ib.WRRDMAWrite},
		"READ":  {Opcode: ib.WRRDMARead},
	} {
		for _, size := range []int{8, 60_000} {
			t.Run(name, func(t *testing.T) {
				b, nw := newTakeBench(t, ib.QPTypeRC)
				// On a busy machine, the sending thread sometimes loses its processor, and another thread takes the
				// endpoint. If that happened each time, there would be no messages in a row.
				const want = 5
				row, end := 0, time.Now().Add(20*time.Second)
				for n := 0; row < want && time.Now().Before(end); n++ {
					woken := nw.woken.Load()
					at := [][2]*node{{b.a, b.b}, {b.b, b.a}}[n%2]
					from, to := at[0], at[1]
					if wr.Opcode == ib.WRSend {
						to.recv(1, 0, size)
					}
					wr.ID, wr.Flags, wr.SGList, wr.RemoteAddr, wr.RKey = 2, ib.SendSignaled, from.sge(0, size), to.addr, to.mr.RKey()
					from.send(wr)
					row++
					if k, err := from.cq.Poll(make([]ib.WC, 1)); err != nil || k == 0 {
						row = 0
						from.poll(1)
					}
					if wr.Opcode == ib.WRSend {
						to.poll(1)
					}
					if nw.woken.Load() != woken {
						row = 0
					}
				}
				if row < want {
					t.Errorf("never %d messages in a row that were complete when PostSend returned, and by it alone; of all batches %d received by PostSend, %d by receive threads",
						want, nw.taken.Load(), nw.woken.Load())
				}
			})
		}
	}
}

// TestTakeStream sends messages for which no program waits. The receive thread receives them.
func TestTakeStream(t *testing.T) {
	b, n := newTakeBench(t, ib.QPTypeRC)
	wr := ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: b.a.sge(0, 64), RemoteAddr: b.b.addr, RKey: b.b.mr.RKey()}
	for range 50 {
		b.a.send(wr)
	}
	wr.Flags = ib.SendSignaled
	b.a.send(wr)
	b.a.poll(1)
	if n.woken.Load() == 0 {
		t.Error("receive threads received nothing")
	}
}

// TestTakeLater tests that PostSend does not run the completion handlers for the packets that it has received.
func TestTakeLater(t *testing.T) {
	b, n := newTakeBench(t, ib.QPTypeRC)
	stacks := make(chan string, 1)
	cq, err := b.b.dev.IB().CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) { stacks <- string(debug.Stack()) }})
	check(t, err)
	recv, err := b.b.pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: userCap, Type: ib.QPTypeRC})
	check(t, err)
	send, err := b.a.pd.CreateQP(ib.QPInitAttr{SendCQ: b.a.cq, RecvCQ: b.a.cq, Cap: userCap, Type: ib.QPTypeRC})
	check(t, err)
	defer func() { check(t, send.Destroy()); check(t, recv.Destroy()); check(t, cq.Destroy()) }()
	connectQPs(t, b.a.dev, send, b.b.dev, recv, conn{timeout: 20})
	for end := time.Now().Add(20 * time.Second); n.taken.Load() < 20 && time.Now().Before(end); {
		_, err = recv.PostRecv(ib.RecvWR{ID: 1})
		check(t, err)
		_, err = cq.ReqNotify(ib.NotifyNextComp)
		check(t, err)
		_, err = send.PostSend(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled})
		check(t, err)
		b.a.poll(1)
		if s := <-stacks; strings.Contains(s, "PostSend") {
			t.Fatalf("a handler runs in PostSend:\n%s", s)
		}
		_, err = cq.Poll(make([]ib.WC, 1))
		check(t, err)
	}
	if n.taken.Load() < 20 {
		t.Errorf("PostSend has received %d batches only", n.taken.Load())
	}
}

// TestWaits tests the distinction between messages for which a program waits and others.
func TestWaits(t *testing.T) {
	const (
		idle   = true
		busy   = false
		signal = true
	)
	type run struct {
		idle, heard   bool
		posts         []bool // signaled
		answer, polls bool
	}
	for name, runs := range map[string][]run{
		"one after another, by their completions": {{idle, false, []bool{signal}, false, true}, {idle, false, []bool{signal}, false, true}},
		"a stream":                         {{idle, false, []bool{false}, false, true}, {busy, false, []bool{false}, false, false}, {idle, false, []bool{false}, false, false}},
		"a stream, each with a completion": {{idle, false, []bool{signal}, false, true}, {busy, false, []bool{signal}, false, false}},
		"two at once":                      {{idle, false, []bool{false, signal}, false, true}, {idle, false, []bool{false, signal}, false, true}},
		"answers without completions":      {{idle, true, []bool{false}, true, true}, {idle, true, []bool{false}, true, false}},
		"an answer, then a stream":         {{idle, true, []bool{false}, true, true}, {idle, false, []bool{false}, false, false}},
		"more of the same message":         {{idle, true, []bool{false}, true, true}, {busy, false, nil, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := waits{told: true}
			for i, r := range runs {
				w.heard = w.heard || r.heard
				w.begin(r.idle)
				for _, signaled := range r.posts {
					w.posted(signaled)
				}
				if w.answers != r.answer || w.polls != r.polls {
					t.Errorf("run %d: got answers %t, polls %t, want %t, %t", i, w.answers, w.polls, r.answer, r.polls)
				}
			}
		})
	}
}

// TestUrgent tests for which packets of a queue pair the sending thread also receives the answers.
func TestUrgent(t *testing.T) {
	const answers, polls, reliable, inFlight = 1, 2, 4, 8
	for _, c := range []struct {
		name    string
		is      int
		bytes   int
		waiting int // completions that the program has not polled
		want    bool
	}{
		{"response of a queue pair without requests", reliable, 0, 9, true},
		{"much of it", reliable, maxUrgent, 9, true},
		{"too much of it", reliable, maxUrgent + 1, 9, false},
		{"stream", reliable | inFlight, 0, 0, false},
		{"request of a program that polls", reliable | inFlight | polls, 0, 0, true},
		{"request of a program with an older completion", reliable | inFlight | polls, 0, 1, false},
		{"answer", reliable | inFlight | answers, 0, 9, true},
		{"too much of an answer", reliable | inFlight | answers, maxUrgent + 1, 9, false},
		{"unreliable stream", 0, 0, 0, false},
		{"unreliable request of a program that polls", polls, 0, 1, true},
		{"unreliable request of a program with an older completion", polls, 0, 2, false},
		{"unreliable answer", answers, 0, 9, true},
	} {
		qp := &QP{service: service{reliable: c.is&reliable != 0}, sendCQ: &cq{queue: queue.NewCompletion(10)}}
		qp.egress.bytes = c.bytes
		qp.req.waits = waits{answers: c.is&answers != 0, polls: c.is&polls != 0}
		if c.is&inFlight != 0 {
			qp.req.snd.Push(transport.Request{Kind: transport.Send, Packets: 1})
		}
		for range c.waiting {
			qp.sendCQ.queue.Push(&uapi.WC{})
		}
		if got := qp.urgent(); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
}

// lateNet is a network that counts the batches whose receiver was blocked until another thread took the endpoint.
type lateNet struct {
	link.Network
	late, lateTaken atomic.Int64
}

type lateReceiver struct {
	link.Receiver
	net *lateNet
}

func (n *lateNet) Listen(addr netip.Addr, r link.Receiver) (link.Endpoint, error) {
	return n.Network.Listen(addr, lateReceiver{r, n})
}

func (r lateReceiver) Receive(a *link.Arrival) {
	r.Receiver.Receive(a)
	if a.Dropped() {
		r.net.late.Add(1)
		if a.By != nil {
			r.net.lateTaken.Add(1)
		}
	}
}

// TestSlowProgramTakesNothing runs a program that sends to itself. Each access to its memory takes longer than a
// stall. The program must block the reception of its device once, and not with each message.
func TestSlowProgramTakesNothing(t *testing.T) {
	s := loopback()
	n := &lateNet{Network: s.network}
	s.network = n
	b := newBench(t, s)
	b.connect(conn{timeout: 20})
	x := newSilentProgram(b, ib.QPTypeRC)
	mem := &sluggishSpace{Local: x.space.Local}
	data := func() *ib.Udata { return &ib.Udata{Context: x.program, Out: make([]byte, 64)} }
	dev := b.b.dev
	mr, err := ibuser.RegMR(x.pd, ib.MRInit{Space: mem, Addr: x.addr, Length: uint64(len(x.buf)), IOVA: x.addr, Access: allAccess}, data())
	check(t, err)
	var qps [2]*ib.QP
	for i := range qps {
		qps[i], err = ibuser.CreateQP(x.pd, ib.QPInitAttr{SendCQ: x.own, RecvCQ: x.own, Cap: userCap, Type: ib.QPTypeRC}, data())
		check(t, err)
	}
	connectQPs(t, dev, qps[0], dev, qps[1], conn{timeout: 20})
	defer func() {
		mem.takes.Store(0)
		check(t, qps[0].Destroy())
		check(t, qps[1].Destroy())
		check(t, mr.Dereg())
	}()
	mem.takes.Store(int64(4 * stallTick))
	const messages = 20
	for range messages {
		_, err := qps[0].PostSend(ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline | ib.SendSignaled, Inline: []byte("12345678"), RemoteAddr: x.addr, RKey: mr.RKey()})
		check(t, err)
		o := node{t: t, dev: dev, cq: x.own}
		o.poll(1)
	}
	// The first stall counts one. On a busy machine, the receiving thread sometimes loses its processor.
	if late := n.late.Load(); late > messages/3 {
		t.Errorf("the reception of the device was stopped %d times in %d messages, %d of these by the sending thread", late, messages, n.lateTaken.Load())
	}
}

// sluggishSpace is memory with a delay for each access.
type sluggishSpace struct {
	*umem.Local
	takes atomic.Int64
}

// access waits for the delay.
func (s *sluggishSpace) access() { time.Sleep(time.Duration(s.takes.Load())) }

func (s *sluggishSpace) ReadV(dst [][]byte, addr uint64) error {
	s.access()
	return s.Local.ReadV(dst, addr)
}

func (s *sluggishSpace) WriteV(src [][]byte, addr uint64) error {
	s.access()
	return s.Local.WriteV(src, addr)
}

// TestStoppedPassGivesUpClaims blocks a pass in the memory of one endpoint's program. The pass must give up the other
// endpoints from which it receives.
func TestStoppedPassGivesUpClaims(t *testing.T) {
	b := newBench(t, loopback())
	b.connect(conn{timeout: 20})
	x := newSilentProgram(b, ib.QPTypeRC)
	b.neighbours(2)
	x.space.hush()
	e := b.b.dev.at.Load().endpoints[0]
	other := &watchedTurn{claimed(t, b.a.dev.at.Load().endpoints[0]), make(chan struct{})}
	turn := claimed(t, e)
	_, err := x.peers[0].PostSend(ib.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, Inline: []byte("12345678"), RemoteAddr: x.addr, RKey: x.mr.RKey()})
	check(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p := b.a.dev.begin(false)
		p.claims = append(p.claims, claim{e, turn, 16}, claim{b.a.dev.at.Load().endpoints[0], other, 0})
		p.finish()
	}()
	within(t, "giving up the other endpoint", func() { <-other.abandoned })
	if x.space.waiting.Load() == 0 {
		t.Error("it was given up before the pass was stopped")
	}
	x.space.answer()
	<-done
	b.neighbours(2)
}

// watchedTurn is a link.Turn that reports when it is abandoned.
type watchedTurn struct {
	link.Turn
	abandoned chan struct{}
}

func (w *watchedTurn) Abandon() {
	close(w.abandoned)
	w.Turn.Abandon()
}

// claimed claims an endpoint and returns its link.Turn.
func claimed(t *testing.T, e *endpoint) (turn link.Turn) {
	t.Helper()
	within(t, "claiming an endpoint", func() {
		for turn == nil {
			turn = e.wire.Load().taker.Claim()
		}
	})
	return turn
}

// endlessTurn is a link.Turn of an endpoint in which packets arrive without end.
type endlessTurn struct {
	p     *pass
	e     *endpoint
	size  int // bytes of the packets of one Take
	takes int
}

func (x *endlessTurn) Take(by any, _ int) bool {
	x.takes++
	x.e.Receive(&link.Arrival{Src: addrA, Dst: addrB, By: by, Packets: [][]byte{make([]byte, x.size)}})
	x.p.claims[0].sent++
	return true
}

func (x *endlessTurn) Yield()   {}
func (x *endlessTurn) Abandon() {}

// TestTakeLeavesRest tests that a pass leaves packets to other threads when it has received some times, or much.
func TestTakeLeavesRest(t *testing.T) {
	b := newBench(t, setup{})
	for size, want := range map[int]int{
		100: maxTakes, maxTaken/4 - trainCost: 5, maxTaken/4 - trainCost + 1: 4, maxTaken + 1: 1,
	} {
		p := b.b.dev.begin(false)
		x := &endlessTurn{p: p, e: b.b.dev.at.Load().endpoints[0], size: size}
		p.claims = append(p.claims, claim{x.e, x, 1})
		p.take()
		if x.takes != want || len(p.claims) != 0 {
			t.Errorf("%d bytes at a time: got %d times and %d endpoints left, want %d and 0", size, x.takes, len(p.claims), want)
		}
		p.end()
	}
}
