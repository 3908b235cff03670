package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/link"
)

// tracedEvents returns the trace of a node's queue pair, one line for each event.
func (n *node) tracedEvents(t *testing.T) (lines []string) {
	t.Helper()
	tr, err := n.dev.QPTrace(n.qp.Num())
	check(t, err)
	for _, e := range tr.Events {
		lines = append(lines, e.String())
	}
	return lines
}

func TestTrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{})
		defer b.close()
		b.connect(conn{mtu: ib.MTU1024, psn: 100})
		for _, n := range []*node{b.a, b.b} {
			if tr, err := n.dev.QPTrace(n.qp.Num()); err != nil || tr.On || len(tr.Events) > 0 {
				t.Errorf("a trace that was not begun: %+v, %v", tr, err)
			}
			check(t, n.dev.TraceQP(n.qp.Num(), true))
		}
		b.b.recv(1, 0, 4096)
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 3000)})
		b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
		b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 3000})
		if got, want := b.a.tracedEvents(t), []string{
			"send RC SEND First psn 100: 3 packets", "receive RC Acknowledge psn 102: ACK", "send completed: success",
		}; !slices.Equal(got, want) {
			t.Errorf("the sender has\n%q, want\n%q", got, want)
		}
		if got, want := b.b.tracedEvents(t), []string{
			"receive RC SEND First psn 100", "receive RC SEND Middle psn 101", "receive RC SEND Last psn 102",
			"receive completed: success", "send RC Acknowledge psn 102: ACK",
		}; !slices.Equal(got, want) {
			t.Errorf("the receiver has\n%q, want\n%q", got, want)
		}
		check(t, b.a.dev.TraceQP(b.a.qp.Num(), true))
		b.b.recv(2, 0, 64)
		b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled}) // a packet without payload
		b.a.expect(ib.WC{ID: 2, Opcode: ib.WCSend})
		b.b.expect(ib.WC{ID: 2, Opcode: ib.WCRecv})
		if got, want := b.a.tracedEvents(t), "send RC SEND Only psn 103"; !slices.Contains(got, want) {
			t.Errorf("trace of an empty message: got %q, want %q in it", got, want)
		}
		check(t, b.a.dev.TraceQP(b.a.qp.Num(), false))
		if got := b.a.tracedEvents(t); len(got) > 0 {
			t.Errorf("when it has ended: %q", got)
		}
	})
}

func TestTraceOfFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{})
		defer b.close()
		b.connect(conn{mtu: ib.MTU1024, psn: 100})
		check(t, b.a.dev.TraceQP(b.a.qp.Num(), true))
		check(t, b.net.Faults().Add(link.Rule{Drop: 1}))
		b.b.recv(1, 0, 64)
		b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 64)})
		b.a.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr})
		all := strings.Join(b.a.tracedEvents(t), "\n")
		for _, want := range []string{"timeout", "retry: 0 retries left", "send completed: transport retry counter exceeded", "state: ERR"} {
			if !strings.Contains(all, want) {
				t.Errorf("no %q in\n%s", want, all)
			}
		}
		for _, s := range b.a.dev.QPStatuses() {
			if again := strings.Count(all, "retry: "); s.Num == b.a.qp.Num() && s.Retransmits < uint64(again) {
				t.Errorf("retransmits: got %d, want at least the %d retries of the trace", s.Retransmits, again)
			}
		}
		for _, s := range b.b.dev.QPStatuses() {
			if s.Retransmits != 0 {
				t.Errorf("retransmits of the receiver: got %d, want 0", s.Retransmits)
			}
		}
	})
}

// TestErrorStateComesFirst tests that the error state precedes the completion of a failure.
func TestErrorStateComesFirst(t *testing.T) {
	for _, c := range []struct {
		name, completion string
		fail             func(b *bench) *node
	}{
		{"a send without an answer", "send completed: transport retry counter exceeded", func(b *bench) *node {
			check(t, b.net.Faults().Add(link.Rule{Drop: 1}))
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 64)})
			b.a.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr})
			return b.a
		}},
		{"a receive that is too small", "receive completed: local length error", func(b *bench) *node {
			b.b.recv(1, 0, 8)
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, SGList: b.a.sge(0, 64)})
			b.b.expect(ib.WC{ID: 1, Status: ib.WCLocLenErr})
			return b.b
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBenchIn(t, setup{})
				defer b.close()
				b.connect(conn{mtu: ib.MTU1024, psn: 100})
				for _, n := range []*node{b.a, b.b} {
					check(t, n.dev.TraceQP(n.qp.Num(), true))
				}
				events := c.fail(b).tracedEvents(t)
				state, completion := slices.Index(events, "state: ERR"), slices.Index(events, c.completion)
				if state < 0 || completion < state {
					t.Errorf("events %q: the state has to come before %q", events, c.completion)
				}
			})
		})
	}
}

// TestTraceIsBounded tests that a trace keeps the latest events and counts the lost ones, and tests the limit of
// traced queue pairs.
func TestTraceIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBenchIn(t, setup{})
		defer b.close()
		b.connect(conn{mtu: ib.MTU1024, psn: 100})
		num := b.a.qp.Num()
		check(t, b.a.dev.TraceQP(num, true))
		for i := range uint64(200) {
			b.b.recv(i, 0, 64)
			b.a.send(ib.SendWR{ID: i, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 64)})
			b.a.expect(ib.WC{ID: i, Opcode: ib.WCSend})
			b.b.expect(ib.WC{ID: i, Opcode: ib.WCRecv, ByteLen: 64})
		}
		tr, err := b.a.dev.QPTrace(num)
		check(t, err)
		if len(tr.Events) != traceLen || tr.Lost != 3*200-traceLen {
			t.Errorf("%d events, %d lost; want %d and %d", len(tr.Events), tr.Lost, traceLen, 3*200-traceLen)
		}
		if !slices.IsSortedFunc(tr.Events, func(x, y TraceEvent) int { return x.Time.Compare(y.Time) }) {
			t.Error("the events are not in order")
		}
		var more []*ib.QP
		for i := 1; ; i++ {
			qp, err := b.a.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: b.a.cq, RecvCQ: b.a.cq, Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
			check(t, err)
			more = append(more, qp)
			err = b.a.dev.TraceQP(qp.Num(), true)
			if i < maxTraced && err != nil || i == maxTraced && !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("trace of queue pair %d: %v", i, err)
			}
			if i == maxTraced {
				break
			}
		}
		for _, qp := range more {
			check(t, qp.Destroy())
		}
		if err := b.a.dev.TraceQP(0xfffff0, true); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("trace of no queue pair: %v", err)
		}
	})
}

func TestQPStatuses(t *testing.T) {
	b := newBench(t, setup{})
	b.connect(conn{mtu: ib.MTU1024, psn: 100})
	b.b.recv(1, 0, 4096)
	b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 3000)})
	b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
	b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 3000})
	find := func(n *node) QPStatus {
		for _, s := range n.dev.QPStatuses() {
			if s.Num == n.qp.Num() {
				return s
			}
		}
		t.Fatal("the queue pair is not listed")
		return QPStatus{}
	}
	a, z := find(b.a), find(b.b)
	if a.State != "RTS" || a.Type != "RC" || a.DestQPN != b.b.qp.Num() || a.NextPSN != 103 || a.Unacknowledged != 103 || a.MTU != 1024 || a.InFlight != 0 {
		t.Errorf("the sender is %+v", a)
	}
	if z.ExpectedPSN != 103 || z.Traced {
		t.Errorf("the receiver is %+v", z)
	}
	qp := qpOf(b.a.qp)
	lane := qp.lane
	lane.stall()
	takeRun(qp) // like a pass that is blocked in the program's memory
	if s := find(b.a); !s.Slow || s.MTU != 0 {
		t.Errorf("status of an unresponsive program: %+v", s)
	}
	if err := b.a.dev.TraceQP(b.a.qp.Num(), true); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("trace of an unresponsive program: %v", err)
	}
	if n := len(qp.events.list); n != 0 {
		t.Errorf("%d events are left, want 0", n)
	}
	qp.activity.state.Store(resting)
	lane.resume()
	lane.mu.Lock()
	lane.until = time.Time{}
	lane.mu.Unlock()
	if !lane.recovered() {
		t.Error("the program is still slow")
	}
}

func ExampleTraceEvent_String() {
	fmt.Println(TraceEvent{Event: "receive", Opcode: "RC Acknowledge", PSN: 7, Detail: "RNR NAK"})
	// Output: receive RC Acknowledge psn 7: RNR NAK
}
