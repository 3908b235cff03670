package link_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/fault"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	addrC = netip.MustParseAddr("10.0.0.3")
)

// arrived is a received packet.
type arrived struct {
	psn   int
	after time.Duration
}

// sink is a Receiver that records PSNs and times.
type sink struct {
	start time.Time
	mu    sync.Mutex
	got   []arrived
}

func (s *sink) Receive(a *link.Arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range a.Packets {
		s.got = append(s.got, arrived{int(roce.BTH(p).PSN()), time.Since(s.start)})
	}
}

func (s *sink) psns() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []int{}
	for _, a := range s.got {
		list = append(list, a.psn)
	}
	return list
}

func (s *sink) arrivals() []arrived {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// train returns a train of n packets of 100 bytes to a queue pair, with PSNs from psn on.
func train(dst netip.Addr, qp uint32, psn, n int) *link.Train {
	t := &link.Train{Dst: dst, Size: 100, Buf: make([]byte, n*100)}
	for i := range n {
		h := roce.BTH(t.Packet(i))
		h.Encode(&roce.BTHFields{Opcode: 4, PKey: 0xffff, DestQPN: qp, PSN: roce.PSN(psn + i)})
	}
	return t
}

// bubble runs a test in virtual time with two endpoints behind faults. f sends from A. The sink records the packets
// received at B.
func bubble(t *testing.T, cfg simnet.Config, f func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Record = true
		n := simnet.New(cfg)
		b := &sink{start: time.Now()}
		ea, err := n.Listen(addrA, &sink{})
		if err != nil {
			t.Fatal(err)
		}
		defer ea.Close()
		eb, err := n.Listen(addrB, b)
		if err != nil {
			t.Fatal(err)
		}
		defer eb.Close()
		f(t, n, ea, b)
	})
}

func send(t *testing.T, e link.Endpoint, tr *link.Train) {
	t.Helper()
	if err := e.Send(tr); err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, f *link.Faults, r link.Rule) {
	t.Helper()
	if err := f.Add(r); err != nil {
		t.Fatal(err)
	}
}

func count(from, to int) []int {
	list := []int{}
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

// TestFaultsRules tests the effect of single rules on a train of packets 0 to 5 and a following train of packets 6 to
// 9.
func TestFaultsRules(t *testing.T) {
	for _, test := range []struct {
		name string
		rule link.Rule
		want []int
	}{
		{"drop all", link.Rule{Drop: 1}, []int{}},
		{"drop the third", link.Rule{Drop: 1, Skip: 2, Limit: 1}, []int{0, 1, 3, 4, 5, 6, 7, 8, 9}},
		{"drop from the eighth on", link.Rule{Drop: 1, Skip: 7}, count(0, 7)},
		{"drop the first two", link.Rule{Drop: 1, Limit: 2}, count(2, 10)},
		{"corrupt the second", link.Rule{Corrupt: 1, Skip: 1, Limit: 1}, []int{0, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"duplicate the fifth", link.Rule{Duplicate: 1, Skip: 4, Limit: 1}, []int{0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9}},
		{"duplicate all", link.Rule{Duplicate: 1}, []int{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9}},
		{"hold back the first", link.Rule{Reorder: 1, Limit: 1}, []int{1, 0, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"hold back behind three", link.Rule{Reorder: 1, Skip: 1, Limit: 1, Behind: 3}, []int{0, 2, 3, 4, 1, 5, 6, 7, 8, 9}},
		{"hold back into the next train", link.Rule{Reorder: 1, Skip: 5, Limit: 1, Behind: 2}, []int{0, 1, 2, 3, 4, 6, 7, 5,
			8, 9}},
		{"hold back two", link.Rule{Reorder: 1, Skip: 2, Limit: 2, Behind: 2}, []int{0, 1, 4, 5, 2, 3, 6, 7, 8, 9}},
		{"hold back the last until the time is over", link.Rule{Reorder: 1, Skip: 9, Hold: time.Second}, count(0, 10)},
		{"delay the first", link.Rule{Delay: time.Millisecond, Limit: 1}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 0}},
		{"delay all", link.Rule{Delay: time.Millisecond}, count(0, 10)},
		{"another queue pair", link.Rule{Drop: 1, QP: 18}, count(0, 10)},
		{"the queue pair", link.Rule{Drop: 1, QP: 17}, []int{}},
		{"another peer", link.Rule{Drop: 1, Peer: addrC}, count(0, 10)},
		{"the peer, mapped to IPv6", link.Rule{Drop: 1, Peer: netip.MustParseAddr("::ffff:10.0.0.2")}, []int{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
				add(t, n.Faults(), test.rule)
				send(t, a, train(addrB, 17, 0, 6))
				send(t, a, train(addrB, 17, 6, 4))
				testutil.AdvanceTime(10 * time.Second)
				if got := b.psns(); !slices.Equal(got, test.want) {
					t.Errorf("arrived: %v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestFaultsTimes(t *testing.T) {
	const ms = time.Millisecond
	bubble(t, simnet.Config{Latency: ms}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		add(t, n.Faults(), link.Rule{Delay: 5 * ms, Limit: 1})
		add(t, n.Faults(), link.Rule{Reorder: 1, Hold: 20 * ms, QP: 9})
		send(t, a, train(addrB, 1, 0, 2))
		testutil.AdvanceTime(2 * ms)
		send(t, a, train(addrB, 9, 2, 1))
		testutil.AdvanceTime(time.Second)
		want := []arrived{{1, ms}, {0, 6 * ms}, {2, 23 * ms}}
		if !slices.Equal(b.arrivals(), want) {
			t.Errorf("arrived: %v, want %v", b.arrivals(), want)
		}
	})
	bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		const packets = 1000
		add(t, n.Faults(), link.Rule{Delay: 10 * ms, Jitter: 4 * ms})
		for i := range packets / 10 {
			send(t, a, train(addrB, 1, i*10, 10))
		}
		testutil.AdvanceTime(time.Second)
		if slices.IsSorted(b.psns()) || len(b.arrivals()) != packets {
			t.Errorf("%d packets arrived, in order: %v", len(b.arrivals()), slices.IsSorted(b.psns()))
		}
		low, high := time.Hour, time.Duration(0)
		for _, x := range b.arrivals() {
			low, high = min(low, x.after), max(high, x.after)
		}
		if low < 10*ms || high > 14*ms || high-low < 3*ms {
			t.Errorf("delays are from %v to %v", low, high)
		}
	})
}

// fates sends packets through rules and returns the PSNs of the received packets and the states of the rules.
func fates(t *testing.T, seed uint64, trainLen int, rules ...link.Rule) (got []int, states []link.RuleState) {
	bubble(t, simnet.Config{Rand: rand.NewPCG(seed, 0)}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		for _, r := range rules {
			add(t, n.Faults(), r)
		}
		for i := 0; i < 9600; i += trainLen {
			send(t, a, train(addrB, 17, i, trainLen))
		}
		testutil.AdvanceTime(time.Minute)
		got, states = b.psns(), n.Faults().List()
	})
	return got, states
}

// TestFaultsRepeatable: one seed gives the same faults again, and the division into trains has no effect.
func TestFaultsRepeatable(t *testing.T) {
	rules := []link.Rule{
		{Drop: 0.02, Duplicate: 0.03, Corrupt: 0.01, Reorder: 0.05, Behind: 3},
		{Drop: 0.01, QP: 17, Jitter: time.Millisecond},
	}
	got1, states1 := fates(t, 1, 1, rules...)
	got2, states2 := fates(t, 1, 1, rules...)
	if !slices.Equal(got1, got2) || !reflect.DeepEqual(states1, states2) {
		t.Error("the same seed gives other faults")
	}
	_, states3 := fates(t, 1, 48, rules...)
	if !reflect.DeepEqual(states1, states3) {
		t.Errorf("trains get other faults than single packets:\n%+v\n%+v", states3, states1)
	}
	if got4, _ := fates(t, 2, 1, rules...); slices.Equal(got1, got4) {
		t.Error("another seed gives the same faults")
	}
	// A rule for another queue pair changes nothing except the seeds of later rules.
	only1, _ := fates(t, 1, 1, link.Rule{Drop: 0.1})
	only2, _ := fates(t, 1, 1, link.Rule{Drop: 0.1}, link.Rule{Drop: 0.5, QP: 3})
	if !slices.Equal(only1, only2) {
		t.Error("a rule about others changes what happens")
	}
}

// TestFaultsHitAt: HitAt lists the first hits of a rule, and List returns a copy.
func TestFaultsHitAt(t *testing.T) {
	_, states := fates(t, 1, 8, link.Rule{Drop: 1, Skip: 100, Limit: 3}, link.Rule{Drop: 0.3})
	if got, want := states[0].HitAt, []uint64{101, 102, 103}; !slices.Equal(got, want) {
		t.Errorf("HitAt: got %d, want %d", got, want)
	}
	s := states[1]
	if s.Hit <= fault.MaxHitAt || len(s.HitAt) != fault.MaxHitAt || !slices.IsSorted(s.HitAt) || s.HitAt[0] == 0 ||
		s.HitAt[fault.MaxHitAt-1] > s.Seen {
		t.Errorf("HitAt of %d hits of %d: %d", s.Hit, s.Seen, s.HitAt)
	}
	f := link.NewFaults(simnet.New(simnet.Config{}), rand.NewPCG(1, 1))
	add(t, f, link.Rule{RNR: 1})
	for range 3 {
		f.NotReady(link.Packet{Peer: addrA, QP: 17}, train(addrB, 17, 0, 1).Buf)
	}
	f.List()[0].HitAt[0] = 99
	if got, want := f.List()[0].HitAt, []uint64{1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("HitAt of RNR NAKs: got %d, want %d", got, want)
	}
}

// TestFaultsShares: the shares of the faults are as requested, and the counters agree with the received packets.
func TestFaultsShares(t *testing.T) {
	const n = 9600
	got, states := fates(t, 7, 32, link.Rule{Drop: 0.1, Duplicate: 0.2, Corrupt: 0.3, Reorder: 0.4})
	s := states[0]
	// A dropped packet has no further fault.
	for _, x := range []struct {
		name string
		got  uint64
		p    float64
	}{
		{"dropped", s.Dropped, 0.1}, {"duplicated", s.Duplicated, 0.9 * 0.2}, {"corrupted", s.Corrupted, 0.9 * 0.3},
		{"reordered", s.Reordered, 0.9 * 0.4}, {"hit", s.Hit, 1 - 0.9*0.8*0.7*0.6}, {"seen", s.Seen, 1},
	} {
		if sigma := math.Sqrt(n * x.p * (1 - x.p)); math.Abs(float64(x.got)-n*x.p) > 4*sigma {
			t.Errorf("%s: %d of %d, want a share of %v", x.name, x.got, n, x.p)
		}
	}
	distinct := make(map[int]int)
	for _, psn := range got {
		distinct[psn]++
	}
	if lost := n - len(distinct); lost != int(s.Dropped+s.Corrupted) {
		t.Errorf("%d packets are missing, %d were dropped and %d damaged", lost, s.Dropped, s.Corrupted)
	}
}

// TestFaultsCorrupt: damage is one bit after sealing, at a position that the ICRC covers.
func TestFaultsCorrupt(t *testing.T) {
	bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		add(t, n.Faults(), link.Rule{Corrupt: 1})
		for i := range 500 {
			send(t, a, train(addrB, 17, i, 2))
		}
		synctest.Wait()
		where := make(map[int]bool)
		for i, p := range n.Packets() {
			want := train(addrB, 17, i/2+i%2, 1).Buf
			roce.NewFlow(netip.AddrPortFrom(addrA, link.Port), netip.AddrPortFrom(addrB, link.Port)).Seal(0, want)
			flipped := 0
			for k := range want {
				if want[k] != p.Data[k] {
					flipped += bits.OnesCount8(want[k] ^ p.Data[k])
					where[k] = true
				}
			}
			if flipped != 1 || p.Fate != simnet.LostICRC {
				t.Fatalf("packet %d: %d bits flipped, %v", i, flipped, p.Fate)
			}
		}
		if where[4] || len(where) < 95 {
			t.Errorf("%d bytes of 100 were hit, the masked one: %v", len(where), where[4])
		}
		if got := b.psns(); len(got) != 0 {
			t.Errorf("damaged packets arrived: %v", got)
		}
	})
}

// TestFaultsKeepTrains: unaffected packets between affected packets stay a train.
func TestFaultsKeepTrains(t *testing.T) {
	bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		send(t, a, train(addrB, 17, 0, 4))
		add(t, n.Faults(), link.Rule{Drop: 1, Skip: 3, Limit: 1})
		send(t, a, train(addrB, 17, 0, 6))
		var ids []uint16
		for _, p := range n.Packets() {
			ids = append(ids, p.ID)
		}
		if want := []uint16{0, 1, 2, 3, 0, 1, 2, 0, 1}; !slices.Equal(ids, want) {
			t.Errorf("identifications %v, want %v", ids, want)
		}
		if s := a.(link.StatsReader).Stats(); s.SentTrains != 3 || s.SendCutOff != 0 {
			t.Errorf("counted %+v, want 3 trains", s)
		}
	})
}

func TestFaultsClose(t *testing.T) {
	bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		add(t, n.Faults(), link.Rule{Delay: time.Second})
		send(t, a, train(addrB, 17, 0, 10))
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Send(train(addrB, 17, 10, 1)); !errors.Is(err, link.ErrClosed) {
			t.Errorf("Send after Close, to be delayed: %v", err)
		}
		n.Faults().Clear()
		if err := a.Send(train(addrB, 17, 11, 1)); !errors.Is(err, link.ErrClosed) {
			t.Errorf("Send after Close: %v", err)
		}
		if err := a.Close(); !errors.Is(err, link.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		testutil.AdvanceTime(time.Minute)
		if got := b.psns(); len(got) != 0 {
			t.Errorf("arrived after Close: %v", got)
		}
	})
}

func TestFaultsList(t *testing.T) {
	bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		f := n.Faults()
		if f.Active() {
			t.Error("active without rules")
		}
		rules := []link.Rule{{Drop: 1, QP: 1}, {Duplicate: 1, QP: 2}, {Delay: time.Hour / 100, QP: 3}}
		for _, r := range rules {
			add(t, f, r)
		}
		for qp := range uint32(4) {
			send(t, a, train(addrB, qp, int(qp)*10, 2))
		}
		list := f.List()
		for i, s := range list {
			if s.Rule != rules[i] || s.Seen != 2 || s.Hit != 2 || s.Dropped+s.Duplicated+s.Delayed != 2 {
				t.Errorf("rule %d is %+v", i, s)
			}
		}
		if !f.Remove(list[1].ID) || f.Remove(list[1].ID) || len(f.List()) != 2 || !f.Active() {
			t.Errorf("after removing one: %v", f.List())
		}
		f.Clear()
		if len(f.List()) != 0 || f.Active() {
			t.Errorf("after Clear: %v", f.List())
		}
		send(t, a, train(addrB, 1, 40, 1))
		synctest.Wait()
		if got, want := b.psns(), []int{0, 1, 20, 20, 21, 21, 40}; !slices.Equal(got, want) {
			t.Errorf("arrived: %v, want %v", got, want)
		}
		testutil.AdvanceTime(time.Hour) // delayed packets arrive nevertheless
		if got := b.psns(); len(got) != 9 {
			t.Errorf("arrived in the end: %v", got)
		}
	})
}

func TestRuleJSON(t *testing.T) {
	for _, test := range []struct {
		rule link.Rule
		json string
		text string
	}{
		{link.Rule{Drop: 0.25}, `{"drop":0.25}`, "drop 0.25"},
		{
			link.Rule{Peer: addrB, QP: 17, Skip: 3, Limit: 1, Delay: time.Millisecond, Jitter: 2},
			`{"peer":"10.0.0.2","qp":17,"skip":3,"limit":1,"delay_ns":1000000,"jitter_ns":2}`,
			"delay 1ms jitter 2ns peer 10.0.0.2 queue pair 17 after 3 for 1",
		},
		{
			link.Rule{Reorder: 0.5, Behind: 2, Hold: time.Second, Corrupt: 1, Duplicate: 1},
			`{"duplicate":1,"corrupt":1,"reorder":0.5,"behind":2,"hold_ns":1000000000}`,
			"duplicate 1 corrupt 1 reorder 0.5 behind 2 hold 1s",
		},
		{
			link.Rule{
				Drop: 1, GID: addrA, QPType: fault.QPTypeUD, SL: property[fault.ServiceLevel](t, "0"),
				TClass: property[fault.TrafficClass](t, "106"), PKey: property[fault.PKey](t, "0x7fff"),
			},
			`{"gid":"10.0.0.1","qp_type":"ud","sl":"0","tclass":"106","pkey":"0x7fff","drop":1}`,
			"drop 1 gid 10.0.0.1 qp-type ud sl 0 tclass 106 pkey 0x7fff",
		},
		{link.Rule{Stop: true, Peer: addrB}, `{"peer":"10.0.0.2","stop":true}`, "stop peer 10.0.0.2"},
		{link.Rule{RNR: 0.5, QP: 17, Seed: 9}, `{"qp":17,"seed":9,"rnr":0.5}`, "rnr 0.5 queue pair 17 seed 9"},
	} {
		b, err := json.Marshal(test.rule)
		if err != nil || string(b) != test.json {
			t.Errorf("%v is %s (%v), want %s", test.rule, b, err, test.json)
		}
		var back link.Rule
		if err := json.Unmarshal(b, &back); err != nil || back != test.rule {
			t.Errorf("%s comes back as %+v (%v)", b, back, err)
		}
		if got := test.rule.String(); got != test.text {
			t.Errorf("in words %q, want %q", got, test.text)
		}
	}
}

// TestRuleValidate: invalid rules are refused, with the reason.
func TestRuleValidate(t *testing.T) {
	const (
		noEffect = "the rule has no effect: add one of drop, duplicate, "
		alone    = "stop and rnr need separate rules"
	)
	f := link.NewFaults(simnet.New(simnet.Config{}), nil)
	for _, c := range []struct {
		rule link.Rule
		want string
	}{
		{link.Rule{}, noEffect}, {link.Rule{QP: 5}, noEffect}, {link.Rule{Hold: 3, Behind: 4},
			noEffect}, {link.Rule{Seed: 3}, noEffect},
		{link.Rule{Drop: -0.1}, "drop -0.1 is not a probability from 0 to 1"},
		{link.Rule{Drop: 1.1}, "drop 1.1 is not a probability from 0 to 1"},
		{link.Rule{Drop: link.Share(math.NaN())}, "drop NaN is not a probability from 0 to 1"},
		{link.Rule{Corrupt: 2}, "corrupt 2 is not a probability from 0 to 1"},
		{link.Rule{Duplicate: -1}, "duplicate -1 is not a probability from 0 to 1"},
		{link.Rule{Reorder: 7}, "reorder 7 is not a probability from 0 to 1"},
		{link.Rule{RNR: 1.5}, "rnr 1.5 is not a probability from 0 to 1"},
		{link.Rule{RNR: -1}, "rnr -1 is not a probability from 0 to 1"},
		{link.Rule{Delay: -1}, "delay -1ns is not from 0 to 1m0s"},
		{link.Rule{Delay: time.Hour}, "delay 1h0m0s is not from 0 to 1m0s"},
		{link.Rule{Drop: 1, Jitter: -1}, "jitter -1ns is not from 0 to 1m0s"},
		{link.Rule{Drop: 1, Hold: time.Hour}, "hold 1h0m0s is not from 0 to 1m0s"},
		{link.Rule{Drop: 1, GID: netip.MustParseAddr("fe80::1%lo")}, "GID fe80::1%lo must not have a zone"},
		{link.Rule{Stop: true, SL: property[fault.ServiceLevel](t, "3")}, "sl selects sent packets only"},
		{link.Rule{RNR: 1, SL: property[fault.ServiceLevel](t, "3")}, "sl selects sent packets only"},
		{link.Rule{Drop: 1, QPType: 9}, "there is no type 9 of queue pairs"},
		{link.Rule{Drop: 1, QP: 1 << 24}, "queue pair number 0x1000000 has more than 24 bits"},
		{link.Rule{Reorder: 1, Behind: -1}, "cannot be behind -1 packets"},
		{link.Rule{RNR: 1, Stop: true}, alone}, {link.Rule{RNR: 1, Drop: 0.1}, alone}, {link.Rule{Stop: true, Delay: 1},
			alone},
	} {
		if err := f.Add(c.rule); !errors.Is(err, link.ErrRule) || !strings.HasPrefix(err.Error(), "bad fault rule: "+c.want) {
			t.Errorf("%+v: got %v, want %s", c.rule, err, c.want)
		}
	}
	if len(f.List()) != 0 {
		t.Errorf("refused rules are in force: %v", f.List())
	}
}

// TestFaultsAgain: a train that the socket refuses can be sent again as a whole, since no packet of it was sent.
func TestFaultsAgain(t *testing.T) {
	cfg := simnet.Config{Bandwidth: 1000_000, SendBuffer: 1000}
	bubble(t, cfg, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		add(t, n.Faults(), link.Rule{Drop: 1, Skip: 11, Limit: 1})
		send(t, a, train(addrB, 17, 0, 10))
		if err := a.Send(train(addrB, 17, 10, 4)); !errors.Is(err, link.ErrAgain) {
			t.Errorf("with a full buffer: %v, want %v", err, link.ErrAgain)
		}
		testutil.AdvanceTime(time.Millisecond)
		send(t, a, train(addrB, 17, 10, 4))
		testutil.AdvanceTime(time.Second)
		// The rule has already counted the packets of the first attempt, and has spent its only hit on packet 11.
		if got := b.psns(); !slices.Equal(got, count(0, 14)) {
			t.Errorf("arrived: %v", got)
		}
	})
}

// notRaw is a network without raw endpoints.
type notRaw struct{}

type notRawEndpoint struct{ link.Endpoint }

func (notRaw) Listen(addr netip.Addr, r link.Receiver) (link.Endpoint, error) {
	e, err := simnet.New(simnet.Config{}).Listen(addr, r)
	return notRawEndpoint{e}, err
}

func TestFaultsNeedRawEndpoints(t *testing.T) {
	if e, err := link.NewFaults(notRaw{}, nil).Listen(addrA, &sink{}); err == nil {
		e.Close()
		t.Error("no error")
	}
	inner := simnet.New(simnet.Config{})
	e, err := inner.Listen(addrA, &sink{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := link.NewFaults(inner, nil).Listen(addrA, &sink{}); err == nil {
		t.Error("the error of the network behind is lost")
	}
}

// TestFaultsUDP: over sockets, the receiver detects damage, and rules can change during the traffic.
func TestFaultsUDP(t *testing.T) {
	f := link.NewFaults(link.UDP(link.UDPOptions{}), rand.NewPCG(1, 1))
	pid := os.Getpid()
	src := netip.AddrFrom4([4]byte{127, byte(pid>>8) | 128, byte(pid), 1})
	dst := src.Next()
	var b sink
	to, err := f.Listen(dst, &b)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	from, err := f.Listen(src, &sink{})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	add(t, f, link.Rule{Corrupt: 0.5})
	for i := range 100 {
		send(t, from, train(dst, 17, i*10, 10))
	}
	corrupted := f.List()[0].Corrupted
	f.Clear()
	marker := train(dst, 17, 5000, 1)
	testutil.Eventually(t, "a packet sent after the damaged ones to arrive", func() bool {
		send(t, from, marker)
		return slices.Contains(b.psns(), 5000)
	})
	if s := to.(link.StatsReader).Stats(); s.ICRCErrors != corrupted || s.ReceivedPackets < 1000-corrupted {
		t.Errorf("%d packets were damaged, counted %+v", corrupted, s)
	}

	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if err := from.Send(train(dst, 17, 1, 4)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 200 {
		add(t, f, link.Rule{Drop: 0.1, Reorder: 0.3, Delay: time.Microsecond, Jitter: time.Microsecond})
		f.List()
		if len(f.List()) > 3 {
			f.Clear()
		}
	}
	close(stop)
	wg.Wait()
}

func ExampleRule() {
	// The third response to queue pair 17 is lost, once.
	r := link.Rule{QP: 17, Drop: 1, Skip: 2, Limit: 1}
	var b bytes.Buffer
	json.NewEncoder(&b).Encode(r)
	fmt.Print(&b)
	fmt.Println(r)
	// Output:
	// {"qp":17,"skip":2,"limit":1,"drop":1}
	// drop 1 queue pair 17 after 2 for 1
}
