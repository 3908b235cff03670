package link_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
)

// shaped runs a test in virtual time with a shape in front of endpoint A. B has no shape.
func shaped(t *testing.T, s link.Shape, f func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Config{})
		faults := link.NewFaults(n, rand.NewPCG(1, 2))
		if err := faults.Shape(s); err != nil {
			t.Fatal(err)
		}
		b := &sink{start: time.Now()}
		ea, err := faults.Listen(addrA, &sink{})
		if err != nil {
			t.Fatal(err)
		}
		defer ea.Close()
		eb, err := n.Listen(addrB, b)
		if err != nil {
			t.Fatal(err)
		}
		defer eb.Close()
		f(t, faults, ea, b)
	})
}

func statsOf(e link.Endpoint) link.Stats { return e.(link.StatsReader).Stats() }

// onWire is the size of the packets of train on the wire.
const onWire = 100 + 8 + 20

// TestShapeTimes: the rate and the delay determine the arrival times of packets, and the division into trains does not.
func TestShapeTimes(t *testing.T) {
	const bit = link.Rate(1)
	for name, c := range map[string]struct {
		shape link.Shape
		n     int
		last  time.Duration // time of the last packet
	}{
		"delay": {link.Shape{Delay: 3 * time.Millisecond}, 10, 3 * time.Millisecond},
		"rate":  {link.Shape{Rate: onWire * 8 * 1000 * bit}, 10, 10 * time.Millisecond},
		"rate and delay": {link.Shape{Rate: onWire * 8 * 1000 * bit, Delay: time.Second}, 10, time.Second +
			10*time.Millisecond},
		"odd rate": {link.Shape{Rate: onWire * 8 * 3 * bit}, 9, 3 * time.Second}, // rounding errors do not add up
		"slowest":  {link.Shape{Rate: link.MinRate}, 2, 2 * onWire * 8 * time.Millisecond},
		"fastest": {link.Shape{Rate: link.MaxRate, Delay: time.Second}, 60, time.Second +
			60*onWire*8*time.Nanosecond/1000},
		"longest delay":   {link.Shape{Delay: time.Minute}, 1, time.Minute},
		"nothing":         {link.Shape{}, 10, 0},
		"loss of nothing": {link.Shape{Delay: time.Second, Loss: 0}, 10, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			shaped(t, c.shape, func(t *testing.T, _ *link.Faults, a link.Endpoint, b *sink) {
				for psn := 0; psn < c.n; {
					n := min(1+psn%4, c.n-psn)
					send(t, a, train(addrB, 1, psn, n))
					psn += n
				}
				testutil.AdvanceTime(5 * time.Minute)
				if got := b.psns(); !slices.Equal(got, count(0, c.n)) {
					t.Fatalf("got PSNs %v, want 0 to %d", got, c.n-1)
				}
				all := b.arrivals()
				if got := all[len(all)-1].after; got < c.last || got > c.last+time.Nanosecond {
					t.Errorf("the last packet came after %v, want %v", got, c.last)
				}
			})
		})
	}
}

// TestShapeSharesRate: the rate limits the packets of two threads to two addresses together.
func TestShapeSharesRate(t *testing.T) {
	shaped(t, link.Shape{Rate: onWire * 8 * 1000}, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
		c, err := faults.Listen(addrC, &sink{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var wg sync.WaitGroup
		for _, e := range []link.Endpoint{a, c} {
			wg.Go(func() {
				for i := range 500 {
					if err := e.Send(train(addrB, 1, i, 1)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		testutil.AdvanceTime(time.Minute)
		all := b.arrivals()
		if len(all) != 1000 || all[999].after != time.Second {
			t.Errorf("got %d packets, the last after %v; want 1000 in 1s", len(all), all[len(all)-1].after)
		}
	})
}

// TestShapeQueue: packets that do not fit into the queue are dropped at its tail and counted.
func TestShapeQueue(t *testing.T) {
	const rate = onWire * 8 * 1000 // one packet per millisecond
	for name, c := range map[string]struct {
		shape link.Shape
		want  int // out of 100 packets that come at once
	}{
		"bytes":            {link.Shape{Rate: rate, QueueBytes: 10 * onWire}, 10},
		"packets":          {link.Shape{Rate: rate, QueuePackets: 7}, 7},
		"both":             {link.Shape{Rate: rate, QueueBytes: 10 * onWire, QueuePackets: 20}, 10},
		"less than one":    {link.Shape{Rate: rate, QueueBytes: 1}, 1},
		"default":          {link.Shape{Rate: rate}, 100},
		"largest":          {link.Shape{Rate: rate, QueueBytes: link.MaxQueue, QueuePackets: 1 << 16}, 100},
		"some loss":        {link.Shape{Loss: 1}, 0},
		"a delay no queue": {link.Shape{Delay: time.Second}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			shaped(t, c.shape, func(t *testing.T, _ *link.Faults, a link.Endpoint, b *sink) {
				for i := range 10 {
					send(t, a, train(addrB, 1, 10*i, 10))
				}
				testutil.AdvanceTime(time.Minute)
				s := statsOf(a)
				if got := b.psns(); !slices.Equal(got, count(0, c.want)) || int(s.ShaperOverflows+s.ShaperLosses) != 100-c.want {
					t.Errorf("got %d packets, %d counted as dropped, %d as lost; want the first %d", len(got), s.ShaperOverflows,
						s.ShaperLosses, c.want)
				}
				// The queue is empty now, and accepts packets again.
				send(t, a, train(addrB, 1, 1000, 1))
				testutil.AdvanceTime(time.Minute)
				if got := b.psns(); c.want > 0 && got[len(got)-1] != 1000 {
					t.Errorf("the last packet is %v, want 1000", got[len(got)-1])
				}
			})
		})
	}
}

// marks is a Receiver that records the traffic classes.
type marks struct {
	mu  sync.Mutex
	got map[uint8]int
}

func (m *marks) Receive(a *link.Arrival) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got[a.TOS] += len(a.Packets)
}

// TestShapeECN: above the threshold, only packets of transports that understand ECN are marked.
func TestShapeECN(t *testing.T) {
	for name, c := range map[string]struct {
		tos  uint8
		want map[uint8]int
	}{
		"ECT(0)":  {0x6a, map[uint8]int{0x6a: 6, 0x6b: 4}}, // the sixth packet finds five packets: no more than ECN
		"ECT(1)":  {0x01, map[uint8]int{0x01: 6, 0x03: 4}},
		"not-ECT": {0x68, map[uint8]int{0x68: 10}},
		"CE":      {0x03, map[uint8]int{0x03: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				faults := link.NewFaults(simnet.New(simnet.Config{}), nil)
				if err := faults.Shape(link.Shape{Rate: onWire * 8 * 1000, ECN: 5 * onWire}); err != nil {
					t.Fatal(err)
				}
				m := &marks{got: map[uint8]int{}}
				a, err := faults.Listen(addrA, &sink{})
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				b, err := faults.Listen(addrB, m)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				tr := train(addrB, 1, 0, 10)
				tr.TOS = c.tos
				send(t, a, tr)
				testutil.AdvanceTime(time.Minute)
				m.mu.Lock()
				defer m.mu.Unlock()
				for tos, n := range c.want {
					if m.got[tos] != n {
						t.Errorf("got %v, want %v", m.got, c.want)
					}
				}
				if got, want := int(statsOf(a).ShaperMarked), c.want[c.tos|3]; c.tos != 3 && got != want {
					t.Errorf("counted %d marks, want %d", got, want)
				}
			})
		})
	}
}

// TestShapeJitter: packets arrive within the jitter, and therefore out of order.
func TestShapeJitter(t *testing.T) {
	s := link.Shape{Delay: time.Second, Jitter: 100 * time.Millisecond, Seed: 7}
	shaped(t, s, func(t *testing.T, _ *link.Faults, a link.Endpoint, b *sink) {
		send(t, a, train(addrB, 1, 0, 50))
		testutil.AdvanceTime(time.Minute)
		for _, x := range b.arrivals() {
			if x.after < s.Delay || x.after > s.Delay+s.Jitter {
				t.Errorf("packet %d came after %v", x.psn, x.after)
			}
		}
		if got := b.psns(); len(got) != 50 || slices.IsSorted(got) {
			t.Errorf("got %v, want 50 packets out of order", got)
		}
	})
}

// TestShapeEnds: at the end of the shape, held packets leave at once, in order. Close of the endpoint drops held
// packets.
func TestShapeEnds(t *testing.T) {
	s := link.Shape{Rate: link.MinRate, Delay: time.Minute}
	shaped(t, s, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
		send(t, a, train(addrB, 1, 0, 60))
		testutil.AdvanceTime(time.Second)
		if got := b.psns(); len(got) > 0 {
			t.Fatalf("got %v before its time", got)
		}
		if err := faults.Shape(link.Shape{}); err != nil {
			t.Fatal(err)
		}
		testutil.AdvanceTime(time.Millisecond)
		if got := b.psns(); !slices.Equal(got, count(0, 60)) {
			t.Errorf("got %v, want all", got)
		}
		if faults.Active() {
			t.Error("the Faults are still active")
		}
		if err := faults.Shape(s); err != nil {
			t.Fatal(err)
		}
		send(t, a, train(addrB, 1, 60, 60))
		a.Close()
		testutil.AdvanceTime(10 * time.Minute)
		if got := b.psns(); len(got) != 60 {
			t.Errorf("got %d packets, want the 60 of before", len(got))
		}
		if n := faults.Held(); n != 0 {
			t.Errorf("%d bytes are still held up", n)
		}
	})
}

// TestShapeChanges: a new Shape applies to packets that wait for the rate of the old one. They keep their order, and
// none is lost. Packets that have left the queue keep their arrival times.
func TestShapeChanges(t *testing.T) {
	const rate = onWire * 8 * 1000 // one packet per millisecond
	for name, c := range map[string]struct {
		before, after link.Shape
		want          []time.Duration // arrival times of ten packets; the change is in the middle of the fourth
	}{
		"faster": {link.Shape{Rate: rate}, link.Shape{Rate: 1000 * rate}, []time.Duration{1000, 2000, 3000, 3501,
			3502, 3503, 3504, 3505, 3506, 3507}},
		"slower": {link.Shape{Rate: rate}, link.Shape{Rate: rate / 2}, []time.Duration{1000, 2000, 3000, 5500, 7500,
			9500, 11500, 13500, 15500, 17500}},
		"less room": {link.Shape{Rate: rate}, link.Shape{Rate: rate, QueuePackets: 1}, []time.Duration{1000, 2000, 3000,
			4500, 5500, 6500, 7500, 8500, 9500, 10500}},
		"rate no more": {link.Shape{Rate: rate}, link.Shape{Loss: 1}, []time.Duration{1000, 2000, 3000, 3500, 3500, 3500,
			3500, 3500, 3500, 3500}},
		"longer delay": {link.Shape{Rate: rate, Delay: 2 * time.Millisecond}, link.Shape{Rate: rate,
			Delay: 5 * time.Millisecond},
			[]time.Duration{3000, 4000, 5000, 9500, 10500, 11500, 12500, 13500, 14500, 15500}},
		"to a rate": {link.Shape{Delay: 6 * time.Millisecond}, link.Shape{Rate: rate}, []time.Duration{6000, 6000, 6000,
			6000, 6000, 6000, 6000, 6000, 6000, 6000}},
	} {
		t.Run(name, func(t *testing.T) {
			shaped(t, c.before, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
				other, err := faults.Listen(addrC, &sink{})
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				for psn := range 10 {
					from := a
					if psn%3 == 2 {
						from = other
					}
					send(t, from, train(addrB, 1, psn, 1))
				}
				testutil.AdvanceTime(3500 * time.Microsecond)
				if err := faults.Shape(c.after); err != nil {
					t.Fatal(err)
				}
				testutil.AdvanceTime(time.Minute)
				all := b.arrivals()
				for i := range c.want {
					if i >= len(all) || all[i].after.Round(time.Microsecond) != c.want[i]*time.Microsecond {
						t.Fatalf("got %v, want them after %v", all, c.want)
					}
				}
				if got := b.psns(); c.before.Rate > 0 && c.after.Rate > 0 && !slices.Equal(got, count(0, 10)) {
					t.Errorf("got the order %v", got)
				}
				// No packet is counted twice.
				send(t, a, train(addrB, 1, 1000, 1))
				testutil.AdvanceTime(time.Minute)
				if n := faults.Held(); n != 0 {
					t.Errorf("%d bytes are still held up", n)
				}
				if s := statsOf(a); s.ShaperOverflows > 0 {
					t.Errorf("%d packets were dropped", s.ShaperOverflows)
				}
			})
		})
	}
}

// TestShapeChangesUnderWay: while threads send, changes of the Shape lose no packet, and no packet stays with an old
// Shape.
func TestShapeChangesUnderWay(t *testing.T) {
	const senders, each, rounds = 4, 10, 300
	shaped(t, link.Shape{}, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
		for round := range rounds {
			if err := faults.Shape(link.Shape{Rate: link.MinRate}); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range senders {
				wg.Go(func() {
					for i := range each {
						send(t, a, train(addrB, 1, i, 1))
					}
				})
			}
			for i := range 3 {
				if err := faults.Shape(link.Shape{Rate: link.MaxRate >> i, Delay: time.Duration(i%2) * time.Second}); err != nil {
					t.Fatal(err)
				}
			}
			wg.Wait()
			testutil.AdvanceTime(2 * time.Second)
			if n, want := len(b.psns()), (round+1)*senders*each; n != want || faults.Held() != 0 {
				t.Fatalf("round %d: %d packets have arrived, %d bytes are held up; want %d and none", round, n, faults.Held(), want)
			}
		}
	})
}

// TestShapeBound: the memory of held packets is limited, whatever the delay.
func TestShapeBound(t *testing.T) {
	shaped(t, link.Shape{Delay: time.Minute}, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
		for range 3 * link.MaxQueue / 64_000 {
			send(t, a, &link.Train{Dst: addrB, Size: 4000, Buf: make([]byte, 64_000)})
		}
		if n, limit := faults.Held(), int64(2*link.MaxQueue); n > limit || n < limit/2 {
			t.Errorf("%d bytes are held up, want up to %d", n, limit)
		}
		if s := statsOf(a); s.ShaperOverflows == 0 {
			t.Error("nothing is counted as dropped")
		}
	})
}

// TestShapeBehindRules: the shaper comes after the rules. It gets both copies of a duplicated packet, and damaged
// packets.
func TestShapeBehindRules(t *testing.T) {
	shaped(t, link.Shape{Rate: onWire * 8 * 1000}, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
		add(t, faults, link.Rule{Duplicate: 1, Limit: 1})
		add(t, faults, link.Rule{Drop: 1, Skip: 2, Limit: 1})
		add(t, faults, link.Rule{Corrupt: 1, Skip: 3, Limit: 1})
		send(t, a, train(addrB, 1, 0, 5))
		testutil.AdvanceTime(time.Minute)
		all := b.arrivals()
		got := b.psns()
		slices.Sort(got)
		if !slices.Equal(got, []int{0, 0, 1, 3}) || all[3].after != 5*time.Millisecond && all[3].after != 4*time.Millisecond {
			t.Errorf("got %v", all)
		}
	})
}

func TestShapeValidate(t *testing.T) {
	for name, s := range map[string]link.Shape{
		"slow":             {Rate: link.MinRate - 1},
		"fast":             {Rate: link.MaxRate + 1},
		"overflow":         {Rate: 1<<64 - 1},
		"negative delay":   {Delay: -1},
		"long delay":       {Delay: time.Minute + 1},
		"negative jitter":  {Jitter: -1},
		"long jitter":      {Jitter: 1 << 62},
		"long queue":       {Rate: 1e9, QueueBytes: link.MaxQueue + 1},
		"many packets":     {Rate: 1e9, QueuePackets: 1 << 63},
		"high threshold":   {Rate: 1e9, ECN: 1 << 40},
		"queue, no rate":   {Delay: 1, QueueBytes: 1},
		"ecn, no rate":     {Delay: 1, ECN: 1},
		"packets, no rate": {Delay: 1, QueuePackets: 1},
		"loss":             {Loss: 1.1},
		"negative loss":    {Loss: -0.1},
		"seed of nothing":  {Rate: 1e9, Seed: 1},
	} {
		if err := link.NewFaults(simnet.New(simnet.Config{}), nil).Shape(s); !errors.Is(err, link.ErrShape) ||
			errors.Is(err, link.ErrRule) {
			t.Errorf("%s: got %v, want ErrShape", name, err)
		}
	}
}

func TestRateString(t *testing.T) {
	for rate, want := range map[uint64]string{1_000: "1Kbit", 1_500_000: "1.5Mbit", 10_000_000_000: "10Gbit",
		1e12: "1Tbit", 1_234_567: "1234.567Kbit", 1_001: "1.001Kbit", 1_234_567_891: "1234567.891Kbit", 999: "999bit"} {
		if got := link.Rate(rate).String(); got != want {
			t.Errorf("%d: got %q, want %q", rate, got, want)
		}
	}
}

// TestLinkDown: no packet passes in either direction while the link is down, and held packets are lost at their time.
func TestLinkDown(t *testing.T) {
	shaped(t, link.Shape{Delay: time.Second}, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
		c := &sink{}
		ec, err := faults.Listen(addrC, c)
		if err != nil {
			t.Fatal(err)
		}
		defer ec.Close()
		send(t, a, train(addrB, 1, 0, 3))
		faults.SetLink(false)
		if !faults.Active() {
			t.Error("a link that is down does not act on packets")
		}
		send(t, a, train(addrB, 1, 3, 3))
		testutil.AdvanceTime(2 * time.Second)
		faults.SetLink(true)
		if err := faults.Shape(link.Shape{}); err != nil {
			t.Fatal(err)
		}
		send(t, a, train(addrC, 1, 0, 1))
		faults.SetLink(false)
		testutil.AdvanceTime(time.Second)
		if got := c.psns(); len(got) > 0 {
			t.Errorf("%v came in", got)
		}
		faults.SetLink(true)
		send(t, a, train(addrB, 1, 6, 3))
		testutil.AdvanceTime(2 * time.Second)
		if got := b.psns(); !slices.Equal(got, count(6, 9)) {
			t.Errorf("got %v, want 6 to 8", got)
		}
		if s := statsOf(a); s.LinkDown != 6 {
			t.Errorf("counted %d packets, want 6", s.LinkDown)
		}
	})
}

// TestAtPacket: the link goes down before the requested packet.
func TestAtPacket(t *testing.T) {
	for _, n := range []int{1, 2, 4, 5, 10, 12, 13} {
		shaped(t, link.Shape{}, func(t *testing.T, faults *link.Faults, a link.Endpoint, b *sink) {
			hits := 0
			faults.AtPacket(uint64(n), func() { hits++ })
			for psn := 0; psn < 12; psn += 4 {
				send(t, a, train(addrB, 1, psn, 4))
			}
			testutil.AdvanceTime(time.Second)
			if got := b.psns(); !slices.Equal(got, count(0, min(n-1, 12))) {
				t.Errorf("n %d: got %v", n, got)
			}
			if want := map[bool]int{true: 1}[n <= 12]; hits != want {
				t.Errorf("n %d: got %d calls, want %d", n, hits, want)
			}
			if n > 12 {
				faults.AtPacket(0, nil)
			}
			faults.SetLink(true)
			if faults.Active() {
				t.Errorf("n %d: the Faults are still active", n)
			}
		})
	}
}
