package rxe

import (
	"net/netip"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"verbena/ib"
	"verbena/link"
)

// countingNet is a network that counts the batches that were received by who sent them, and by receive threads.
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

// TestTakeAnswers: of messages that somebody waits for, all packets are received by the thread that sends, and a message is complete
// when PostSend returns.
func TestTakeAnswers(t *testing.T) {
	for name, wr := range map[string]ib.SendWR{
		"SEND":  {Opcode: ib.WRSend},
		"WRITE": {Opcode: ib.WRRDMAWrite},
		"READ":  {Opcode: ib.WRRDMARead},
	} {
		for _, size := range []int{8, 60_000} {
			t.Run(name, func(t *testing.T) {
				b, nw := newTakeBench(t, ib.QPTypeRC)
				// On a busy machine who has the turn is stopped now and then: it is another's then.
				const want = 30
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

// TestTakeStream: what nobody waits for is left to the receive thread.
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

// TestTakeLater: the handlers that come due by what PostSend has received do not run in it.
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

// TestWaits: which messages a program waits for.
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
