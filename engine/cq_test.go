package engine

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"verbena/ib"
)

// TestSignalling tests that there is a completion for every signalled request, for every request with SigAll, and for
// every failure.
func TestSignalling(t *testing.T) {
	for _, sigAll := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{shortcut: true, sigAll: sigAll})
			b.connect(conn{})
			write := ib.SendWR{Opcode: ib.WRRDMAWrite}
			want := []ib.WC{{ID: 2, Opcode: ib.WCRDMAWrite}, {ID: 4, Opcode: ib.WCRDMAWrite}}
			if sigAll {
				want = nil
			}
			for id := uint64(1); id < 6; id++ {
				write.ID, write.Flags = id, 0
				if id%2 == 0 {
					write.Flags = ib.SendSignaled
				}
				b.a.send(write)
				if sigAll {
					want = append(want, ib.WC{ID: id, Opcode: ib.WCRDMAWrite})
				}
			}
			b.a.expect(want...)
			b.a.send(ib.SendWR{ID: 9, Opcode: ib.WRSend, SGList: []ib.SGE{{Length: 1}}})
			b.a.expect(ib.WC{ID: 9, Status: ib.WCLocProtErr})
			b.a.none()
		})
	}
}

// TestNotify tests that an armed queue calls its handler once. With NotifySolicited, only solicited completions and
// errors do.
func TestNotify(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true})
		b.connect(conn{})
		count := func(n *node) int {
			synctest.Wait()
			n.mu.Lock()
			defer n.mu.Unlock()
			c := n.notified
			n.notified = 0
			return c
		}
		arm := func(f ib.NotifyFlags) {
			if _, err := b.b.cq.ReqNotify(f); err != nil {
				t.Fatal(err)
			}
		}
		send := func(f ib.SendFlags) {
			b.b.recv(1, 0, 10)
			b.a.send(ib.SendWR{Opcode: ib.WRSend, Flags: f})
			b.b.poll(1)
		}
		send(0)
		if n := count(b.b); n != 0 {
			t.Errorf("%d notifications while not armed", n)
		}
		arm(ib.NotifyNextComp)
		send(0)
		send(0)
		if n := count(b.b); n != 1 {
			t.Errorf("%d notifications, armed once", n)
		}
		arm(ib.NotifySolicited)
		send(0)
		if n := count(b.b); n != 0 {
			t.Errorf("%d notifications of an unsolicited completion", n)
		}
		send(ib.SendSolicited)
		if n := count(b.b); n != 1 {
			t.Errorf("%d notifications of a solicited completion", n)
		}
		arm(ib.NotifyNextComp)
		arm(ib.NotifySolicited) // does not disarm
		send(0)
		if n := count(b.b); n != 1 {
			t.Errorf("%d notifications, armed for all, then for solicited", n)
		}
		b.b.recv(1, 0, 10)
		b.a.send(ib.SendWR{Opcode: ib.WRSend})
		synctest.Wait()
		if missed, err := b.b.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); !missed || err != nil {
			t.Errorf("a completion waits, ReqNotify says %v, %v", missed, err)
		}
		b.b.poll(1)
		if missed, err := b.b.cq.ReqNotify(ib.NotifySolicited | ib.NotifyReportMissed); missed || err != nil {
			t.Errorf("no completion waits, ReqNotify says %v, %v", missed, err)
		}
		b.b.recv(1, 0, 10)
		check(t, b.b.qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		if n := count(b.b); n != 1 {
			t.Errorf("%d notifications of a flushed receive", n)
		}
	})
}

// TestCQOverflow tests that a completion without room puts the queue, and the queue pairs that post to it, in error.
func TestCQOverflow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true, cqe: 3})
		b.connect(conn{})
		room := b.a.cq.Entries()
		for i := range room + 2 {
			b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled})
		}
		synctest.Wait()
		if got := b.a.raised(); !slices.Equal(got, []ib.EventType{ib.EventCQErr}) {
			t.Errorf("events are %v", got)
		}
		if s := b.a.qp.State(); s != ib.QPErr {
			t.Errorf("queue pair is in state %v", s)
		}
		for i := range room {
			b.a.expect(ib.WC{ID: uint64(i), Opcode: ib.WCRDMAWrite})
		}
		b.a.none()
	})
}

func TestCQResize(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBench(t, setup{shortcut: true, cqe: 20})
		b.connect(conn{})
		for i := range 9 {
			b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled})
		}
		b.a.expect(ib.WC{ID: 0, Opcode: ib.WCRDMAWrite})
		if err := b.a.cq.Resize(7); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("resize to 7 with 8 waiting: %v", err)
		}
		if err := b.a.cq.Resize(maxCQE + 1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("resize to more than there can be: %v", err)
		}
		for _, n := range []int{8, 100} {
			check(t, b.a.cq.Resize(n))
			if b.a.cq.Entries() < n {
				t.Errorf("resized to %d: %d entries", n, b.a.cq.Entries())
			}
		}
		for i := 9; i < 60; i++ {
			b.a.send(ib.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled})
		}
		for i := 1; i < 60; i++ {
			b.a.expect(ib.WC{ID: uint64(i), Opcode: ib.WCRDMAWrite})
		}
	})
}
