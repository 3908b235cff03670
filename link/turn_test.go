package link

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"verbena/internal/testutil"
	"verbena/roce"
)

// taken is a Receiver that also records Arrival.By of each batch.
type taken struct {
	*collector
	mu sync.Mutex
	by []any
}

func newTaken() *taken { return &taken{collector: newCollector()} }

func (c *taken) Receive(a *Arrival) {
	c.mu.Lock()
	c.by = append(c.by, a.By)
	c.mu.Unlock()
	c.collector.Receive(a)
}

// patient returns a network on which blocked threads keep the receive token, so a slow machine does not disturb a test.
func patient() Network { return UDP(UDPOptions{stop: time.Hour, delay: time.Hour}) }

// claim returns the receive token of an endpoint. It waits for the receive thread to release the token.
func claim(t *testing.T, e Endpoint) Turn {
	t.Helper()
	var turn Turn
	testutil.Eventually(t, "the receive thread to release the token", func() bool {
		turn = e.(Taker).Claim()
		return turn != nil
	})
	return turn
}

// TestTake: a sender receives its packets on its own thread.
func TestTake(t *testing.T) {
	families(t, func(t *testing.T, src, dst netip.Addr) {
		c := newTaken()
		from, to := pair(t, patient(), src, dst, c)
		turn := claim(t, to)
		var want []*Train
		for i := range 4 {
			tr := makeTrain(dst, 4, 100, 100, uint32(4*i))
			if err := from.Send(tr); err != nil {
				t.Fatal(err)
			}
			want = append(want, tr)
		}
		if !turn.Take("me", 2) {
			t.Error("Take: got false, want true")
		}
		if n := c.count(); n != 12 {
			t.Errorf("packets of two trains and one more: got %d, want 12", n)
		}
		if !turn.Take("me", 16) {
			t.Error("Take: got false, want true")
		}
		if turn.Take("me", 16) {
			t.Error("Take when there is nothing: got true, want false")
		}
		turn.Yield()
		for _, by := range c.by {
			if by != "me" {
				t.Errorf("Arrival.By: got %v", by)
			}
		}
		checkPackets(t, c.wait(16), want...)
	})
}

// isArmed reports whether a packet for an endpoint wakes its receive thread.
func isArmed(e Endpoint) bool {
	turn := &e.(*UDPEndpoint).turn
	turn.mu.Lock()
	defer turn.mu.Unlock()
	return turn.armed
}

// TestYieldDefersArming tests that after many claims in a row the socket stays disarmed between them, and that a packet
// of another sender ends the claims in a row.
func TestYieldDefersArming(t *testing.T) {
	send := func(from, to Endpoint, n int) {
		for i := range n {
			if err := from.Send(makeTrain(to.Addr(), 1, 100, 100, uint32(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name  string
		armed bool // state after the next Yield
		do    func(from, to Endpoint, turn Turn)
	}{
		{"what was sent is taken", false, func(from, to Endpoint, turn Turn) {
			send(from, to, 2)
			turn.Take("me", 2)
		}},
		{"another claim", true, func(_, to Endpoint, _ Turn) { to.(Taker).Claim() }},
		{"another sender", true, func(_, to Endpoint, _ Turn) { to.(Taker).Expect() }},
		{"more than was sent", true, func(from, to Endpoint, turn Turn) {
			send(from, to, 3)
			turn.Take("me", 1)
		}},
		{"less than was sent", true, func(from, to Endpoint, turn Turn) {
			send(from, to, 1)
			turn.Take("me", 2)
		}},
		{"nothing", true, func(_, _ Endpoint, turn Turn) { turn.Take("me", 1) }},
		{"abandoned", true, func(_, _ Endpoint, turn Turn) { turn.Abandon() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newTaken()
			from, to := pair(t, patient(), loopback(), loopback(), c)
			for range deferAfter {
				claim(t, to).Yield()
			}
			turn := claim(t, to)
			tt.do(from, to, turn)
			turn.Yield()
			if got := isArmed(to); got != tt.armed {
				t.Errorf("armed after Yield: got %v, want %v", got, tt.armed)
			}
		})
	}
}

// TestDeferredArming tests that a packet for a disarmed socket is received, also if a sender receives at the end of the
// delay, and that an endpoint with a disarmed socket can be closed.
func TestDeferredArming(t *testing.T) {
	c := newTaken()
	from, to := pair(t, UDP(UDPOptions{stop: time.Hour}), loopback(), loopback(), c)
	late := to.(*UDPEndpoint).rearmLate
	for i := range 20 {
		for range deferAfter {
			claim(t, to).Yield()
		}
		if i%2 == 1 {
			turn := claim(t, to)
			late()
			turn.Yield()
			if !isArmed(to) {
				t.Error("armed after a Yield that follows the end of the delay: got false, want true")
			}
		}
		if err := from.Send(makeTrain(to.Addr(), 1, 100, 100, uint32(i))); err != nil {
			t.Fatal(err)
		}
		c.wait(i + 1)
	}
	_, closes := pair(t, patient(), loopback(), loopback(), c)
	for range deferAfter {
		claim(t, closes).Yield()
	}
	if isArmed(closes) {
		t.Error("armed after many claims: got true, want false")
	}
	if err := closes.Close(); err != nil {
		t.Error(err)
	}
}

// TestClaimHolds: while a sender holds the receive token, no other thread receives. The receive thread receives the
// remaining packets.
func TestClaimHolds(t *testing.T) {
	c := newTaken()
	from, to := pair(t, patient(), loopback(), loopback(), c)
	for range 20 {
		before := c.count()
		turn := claim(t, to)
		if to.(Taker).Claim() != nil {
			t.Fatal("Claim of a held token: got a token, want nil")
		}
		if err := from.Send(makeTrain(to.Addr(), 1, 100, 100, 1)); err != nil {
			t.Fatal(err)
		}
		testutil.Consistently(t, time.Millisecond,
			"packets do not wake the receive thread while another thread holds the token", func() bool {
				_, woken := epollWait(to.(*UDPEndpoint).turn.epoll, false)
				return !woken
			})
		if n := c.count(); n != before {
			t.Fatal("a thread without the token has received")
		}
		turn.Yield()
		c.wait(before + 1)
	}
	for _, by := range c.by {
		if by != nil {
			t.Errorf("Arrival.By on the receive thread: got %v, want nil", by)
		}
	}
}

// TestClaimWhileReceiving: Claim fails while the receive thread is in Receive.
func TestClaimWhileReceiving(t *testing.T) {
	inside, done := make(chan struct{}), make(chan struct{})
	from, to := pair(t, patient(), loopback(), loopback(), receiverFunc(func(*Arrival) {
		inside <- struct{}{}
		<-done
	}))
	if err := from.Send(makeTrain(to.Addr(), 1, 100, 100, 1)); err != nil {
		t.Fatal(err)
	}
	<-inside
	if to.(Taker).Claim() != nil {
		t.Error("Claim during Receive: got a token, want nil")
	}
	close(done)
	claim(t, to).Yield()
}

// TestClaimIsForgotten: a sender that does not yield does not keep other threads from receiving.
func TestClaimIsForgotten(t *testing.T) {
	c := newTaken()
	from, to := pair(t, UDP(UDPOptions{}), loopback(), loopback(), c)
	turn := claim(t, to)
	defer turn.Yield() // for Close, if the token is not lost
	tr := makeTrain(to.Addr(), 1, 100, 100, 1)
	if err := from.Send(tr); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the receive thread to receive", func() bool { return c.count() > 0 })
	checkPackets(t, c.wait(1), tr)
	if turn.Take("late", 1) {
		t.Error("Take with a lost token: got true, want false")
	}
	turn.Yield()
	other := claim(t, to)
	turn.Yield() // does not affect other
	if to.(Taker).Claim() != nil {
		t.Error("a late Yield has freed the token of another holder")
	}
	other.Yield()
	if err := to.Close(); err != nil {
		t.Error(err)
	}
}

// TestTakeThatDoesNotReturn: a sender that is blocked in Receive loses its batch, and the receive thread continues.
// Close does not wait for the sender.
func TestTakeThatDoesNotReturn(t *testing.T) {
	c := newTaken()
	hold, inside := make(chan struct{}), make(chan *Arrival)
	from, to := pair(t, UDP(UDPOptions{}), loopback(), loopback(), receiverFunc(func(a *Arrival) {
		if a.By != nil {
			inside <- a
			<-hold
			return
		}
		c.Receive(a)
	}))
	turn := claim(t, to)
	send := func(psn uint32) *Train {
		tr := makeTrain(to.Addr(), 1, 100, 100, psn)
		if err := from.Send(tr); err != nil {
			t.Fatal(err)
		}
		return tr
	}
	send(1)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		turn.Take("me", 16)
		if turn.Take("me", 16) {
			t.Error("Take when it is late: got true, want false")
		}
		turn.Yield()
	}()
	a := <-inside
	want := send(2)
	checkPackets(t, c.wait(1), want)
	if !a.Dropped() {
		t.Error("Arrival.Dropped when another receives: got false, want true")
	}
	if err := to.Close(); err != nil {
		t.Error(err)
	}
	close(hold)
	<-returned
}

// TestTakePanics: a Receiver that panics in Take loses its batch.
func TestTakePanics(t *testing.T) {
	c := newTaken()
	from, to := pair(t, patient(), loopback(), loopback(), receiverFunc(func(a *Arrival) {
		if a.By != nil {
			panic("on purpose")
		}
		c.Receive(a)
	}))
	turn := claim(t, to)
	if err := from.Send(makeTrain(to.Addr(), 3, 100, 100, 1)); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		turn.Take("me", 1)
	}()
	turn.Yield()
	tr := makeTrain(to.Addr(), 1, 100, 100, 7)
	if err := from.Send(tr); err != nil {
		t.Fatal(err)
	}
	checkPackets(t, c.wait(1), tr)
}

// TestCloseDuringTake: Close waits for the holder of the receive token. Claim returns nil afterwards.
func TestCloseDuringTake(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	from, to := pair(t, patient(), loopback(), loopback(), receiverFunc(func(a *Arrival) {
		close(inside)
		<-leave
	}))
	turn := claim(t, to)
	if err := from.Send(makeTrain(to.Addr(), 1, 100, 100, 1)); err != nil {
		t.Fatal(err)
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		turn.Take("me", 1)
		turn.Yield()
	}()
	<-inside
	closed := make(chan error, 1)
	testutil.WaitBlocked(t, func() { closed <- to.Close() })
	if len(closed) > 0 {
		t.Error("Close has returned during a call of Receive")
	}
	close(leave)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	<-returned
	if to.(Taker).Claim() != nil {
		t.Error("Claim of a closed endpoint: got a token, want nil")
	}
}

// TestTakeFaults: rules for received packets also apply to Take.
func TestTakeFaults(t *testing.T) {
	f := NewFaults(patient(), nil)
	c := newTaken()
	from, to := pair(t, f, loopback(), loopback(), c)
	turn := claim(t, to)
	if err := from.Send(makeTrain(to.Addr(), 1, 100, 100, 1)); err != nil {
		t.Fatal(err)
	}
	if err := f.Add(Rule{Stop: true}); err != nil {
		t.Fatal(err)
	}
	turn.Take("me", 1)
	turn.Yield()
	if n := c.count(); n != 0 {
		t.Errorf("%d packets passed a Stop rule, want 0", n)
	}
}

// TestTakersAndThread: with many senders, some with Take, each packet arrives once, and the packets of a sender arrive
// in order.
func TestTakersAndThread(t *testing.T) {
	const senders, rounds = 6, 300
	n := patient()
	var last [senders]atomic.Int64
	var got, inside atomic.Int64
	to := listen(t, n, loopback(), receiverFunc(func(a *Arrival) {
		if inside.Add(1) != 1 {
			t.Error("two threads are in Receive")
		}
		defer inside.Add(-1)
		for _, p := range a.Packets {
			h := roce.BTH(p)
			psn := int64(h.PSN())
			if before := last[h.DestQPN()].Swap(psn); psn <= before {
				t.Errorf("sender %d: packet %d after %d", h.DestQPN(), psn, before)
			}
			got.Add(1)
		}
	}))
	var wg sync.WaitGroup
	for i := range senders {
		from := listen(t, n, loopback(), receiverFunc(func(*Arrival) {}))
		wg.Go(func() {
			for k := range rounds {
				var turn Turn
				if i%2 == 0 {
					turn = to.(Taker).Claim()
				}
				tr := makeTrain(to.Addr(), 1, 100, 100, 0)
				h := roce.BTH(tr.Packet(0))
				h.Encode(&roce.BTHFields{Opcode: 4, DestQPN: uint32(i)})
				h.SetPSN(roce.PSN(k + 1))
				if err := from.Send(tr); err != nil {
					t.Error(err)
				}
				if turn != nil {
					turn.Take(i, 1+k%3)
					turn.Yield()
				}
				if !testutil.PollUntil(func() bool { return got.Load() >= int64(k) }) { // no more than the socket holds
					t.Errorf("%d packets arrived, want %d", got.Load(), k)
				}
			}
		})
	}
	wg.Wait()
	testutil.Eventually(t, "all packets to arrive", func() bool { return got.Load() >= senders*rounds })
	if n := got.Load(); n != senders*rounds {
		t.Errorf("%d packets arrived, want %d", n, senders*rounds)
	}
}
