package link_test

import (
	"encoding"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"verbena/internal/fault"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/roce"
)

// TestFaultsSender: a rule for a queue pair selects packets to and from the queue pair.
func TestFaultsSender(t *testing.T) {
	bubble(t, simnet.Config{}, func(t *testing.T, n *simnet.Net, a link.Endpoint, b *sink) {
		add(t, n.Faults(), link.Rule{Drop: 1, QP: 17})
		for i, qp := range []uint32{17, 18, 0} {
			tr := train(addrB, 30, 10*i, 2)
			tr.QP = qp
			send(t, a, tr)
		}
		synctest.Wait()
		if got, want := b.psns(), []int{10, 11, 20, 21}; !slices.Equal(got, want) {
			t.Errorf("arrived: %v, want %v", got, want)
		}
	})
}

// property parses a property of a rule.
func property[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, text string) (v T) {
	t.Helper()
	if err := P(&v).UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestFaultsMatches tests each property by which a rule selects packets, alone and together, in both directions.
func TestFaultsMatches(t *testing.T) {
	sl, tclass, pkey := property[fault.ServiceLevel], property[fault.TrafficClass], property[fault.PKey]
	// packets of all kinds, sent from A and received at A
	type kind struct {
		qp   uint32
		op   roce.Opcode
		tos  uint8
		sl   uint8
		pkey uint16
	}
	kinds := []kind{
		{17, 0x04, 0, 0, 0xffff}, {17, 0x04, 104, 3, 0xffff}, {18, 0x24, 106, 3, 0x7fff}, {1, 0x64, 107, 15, 0x8001},
		{19, 0xa4, 255, 7, 0x0001}, {20, 0x81, 0, 0, 0xffff},
	}
	for _, c := range []struct {
		name           string
		rule           link.Rule
		sent, received []int // selected indices of kinds
	}{
		{"all", link.Rule{}, []int{0, 1, 2, 3, 4, 5}, []int{0, 1, 2, 3, 4, 5}},
		{"own GID", link.Rule{GID: addrA}, []int{0, 1, 2, 3, 4, 5}, []int{0, 1, 2, 3, 4, 5}},
		{"own GID, mapped", link.Rule{GID: netip.MustParseAddr("::ffff:10.0.0.1")}, []int{0, 1, 2, 3, 4, 5},
			[]int{0, 1, 2, 3, 4, 5}},
		{"GID of the peer", link.Rule{GID: addrB}, nil, nil},
		{"RC", link.Rule{QPType: fault.QPTypeRC}, []int{0, 1}, []int{0, 1}},
		{"UC", link.Rule{QPType: fault.QPTypeUC}, []int{2}, []int{2}},
		{"UD", link.Rule{QPType: fault.QPTypeUD}, []int{3}, []int{3}},
		{"XRC", link.Rule{QPType: fault.QPTypeXRC}, []int{4}, []int{4}},
		{"SL 0", link.Rule{SL: sl(t, "0")}, []int{0, 5}, nil},
		{"SL 3", link.Rule{SL: sl(t, "3")}, []int{1, 2}, nil},
		{"DSCP 26", link.Rule{TClass: tclass(t, "106")}, []int{1, 2, 3}, []int{1, 2, 3}},
		{"DSCP 0", link.Rule{TClass: tclass(t, "0")}, []int{0, 5}, []int{0, 5}},
		{"DSCP 63", link.Rule{TClass: tclass(t, "252")}, []int{4}, []int{4}},
		{"default partition", link.Rule{PKey: pkey(t, "0xffff")}, []int{0, 1, 2, 5}, []int{0, 1, 2, 5}},
		{"partition 1", link.Rule{PKey: pkey(t, "1")}, []int{3, 4}, []int{3, 4}},
		{"partition 0", link.Rule{PKey: pkey(t, "0")}, nil, nil},
		{"two properties", link.Rule{TClass: tclass(t, "104"), QPType: fault.QPTypeUC}, []int{2}, []int{2}},
		{"properties of no packet", link.Rule{SL: sl(t, "3"), QPType: fault.QPTypeUD}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := simnet.New(simnet.Config{})
				f := link.NewFaults(n, nil) // only for A
				at := map[netip.Addr]*sink{addrA: {}, addrB: {}}
				a, err := f.Listen(addrA, at[addrA])
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				b, err := n.Listen(addrB, at[addrB])
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				packet := func(i int, dst netip.Addr) *link.Train {
					k := kinds[i]
					tr := &link.Train{Dst: dst, Size: 100, Buf: make([]byte, 100), TOS: k.tos, SL: k.sl}
					roce.BTH(tr.Buf).Encode(&roce.BTHFields{Opcode: k.op, PKey: k.pkey, DestQPN: k.qp, PSN: roce.PSN(i)})
					return tr
				}
				// want returns the packets that arrive if the selected packets are lost.
				want := func(lost []int) (list []int) {
					for i := range kinds {
						if !slices.Contains(lost, i) {
							list = append(list, i)
						}
					}
					return list
				}
				drop := c.rule
				drop.Drop = 1
				add(t, f, drop)
				for i := range kinds {
					send(t, a, packet(i, addrB))
				}
				synctest.Wait()
				if got := at[addrB].psns(); !slices.Equal(got, want(c.sent)) {
					t.Errorf("sent packets that arrive: got %v, want %v", got, want(c.sent))
				}
				f.Clear()
				if c.rule.SL != (fault.ServiceLevel{}) {
					return // received packets do not have this property
				}
				stop := c.rule
				stop.Stop = true
				add(t, f, stop)
				for i := range kinds {
					send(t, b, packet(i, addrA))
				}
				synctest.Wait()
				if got := at[addrA].psns(); !slices.Equal(got, want(c.received)) {
					t.Errorf("received packets that arrive: got %v, want %v", got, want(c.received))
				}
				f.Clear()
				rnr := c.rule
				rnr.RNR = 1
				add(t, f, rnr)
				for i, k := range kinds {
					p := link.Packet{Peer: addrB, Local: addrA, QP: k.qp, TOS: k.tos}
					if got, want := f.NotReady(p, packet(i, addrA).Buf), slices.Contains(c.received, i); got != want {
						t.Errorf("RNR NAK of packet %d: got %v, want %v", i, got, want)
					}
				}
			})
		})
	}
}

// TestFaultsAllocateNothing tests that a rule with all properties allocates no memory for a packet.
func TestFaultsAllocateNothing(t *testing.T) {
	f := link.NewFaults(simnet.New(simnet.Config{}), nil)
	add(t, f, link.Rule{
		RNR: 1, Peer: addrB, GID: addrA, QP: 17, QPType: fault.QPTypeRC, TClass: property[fault.TrafficClass](t, "0"),
		PKey: property[fault.PKey](t, "0xffff"), Skip: 1 << 40,
	})
	pkt := train(addrA, 17, 0, 1).Buf
	p := link.Packet{Peer: addrB, Local: addrA, QP: 17}
	if n := testing.AllocsPerRun(100, func() { f.NotReady(p, pkt) }); n > 0 {
		t.Errorf("allocations for a packet: got %v, want 0", n)
	}
	if s := f.List()[0]; s.Seen == 0 {
		t.Errorf("seen packets: got %d, want all", s.Seen)
	}
}

// TestFaultsStop: with a Stop rule no packet passes in either direction.
func TestFaultsStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Config{})
		f := link.NewFaults(n, nil) // only for A
		at := map[netip.Addr]*sink{}
		ends := map[netip.Addr]link.Endpoint{}
		for _, x := range []struct {
			addr netip.Addr
			net  link.Network
		}{{addrA, f}, {addrB, n}, {addrC, n}} {
			at[x.addr] = &sink{}
			e, err := x.net.Listen(x.addr, at[x.addr])
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			ends[x.addr] = e
		}
		exchange := func(psn int) {
			t.Helper()
			for _, p := range []netip.Addr{addrB, addrC} {
				send(t, ends[addrA], train(p, 17, psn, 2))
				send(t, ends[p], train(addrA, 17, psn, 2))
			}
			synctest.Wait()
		}
		exchange(0)
		add(t, f, link.Rule{Stop: true, Peer: addrB, Skip: 1}) // skips the first packet from A
		exchange(10)
		if s := f.List()[0]; s.Seen != 4 || s.Hit != 3 || s.Dropped != 3 {
			t.Errorf("the rule says %+v", s)
		}
		f.Clear()
		exchange(20)
		for a, want := range map[netip.Addr][]int{
			addrA: {0, 1, 0, 1, 10, 11, 20, 21, 20, 21},
			addrB: {0, 1, 10, 20, 21},
			addrC: {0, 1, 10, 11, 20, 21},
		} {
			if got := at[a].psns(); !slices.Equal(got, want) {
				t.Errorf("at %v arrived %v, want %v", a, got, want)
			}
		}
	})
}

func TestFaultsNotReady(t *testing.T) {
	var none *link.Faults
	if none.NotReady(link.Packet{Peer: addrA, QP: 1}, nil) || none.Active() {
		t.Error("no Faults, but a fault")
	}
	f := link.NewFaults(simnet.New(simnet.Config{}), nil)
	ask := func(qp uint32, peer netip.Addr, n int) (got []bool) {
		for range n {
			got = append(got, f.NotReady(link.Packet{Peer: peer, Local: addrB, QP: qp}, train(addrB, qp, 0, 1).Buf))
		}
		return got
	}
	add(t, f, link.Rule{Drop: 1})
	if slices.Contains(ask(1, addrA, 10), true) {
		t.Error("a rule about sending refuses receives")
	}
	add(t, f, link.Rule{RNR: 1, QP: 1, Peer: addrA, Skip: 1, Limit: 2})
	for _, other := range [][]bool{ask(2, addrA, 3), ask(1, addrB, 3)} {
		if slices.Contains(other, true) {
			t.Error("the rule acts on packets that it does not select")
		}
	}
	if got := ask(1, addrA, 5); !slices.Equal(got, []bool{false, true, true, false, false}) {
		t.Errorf("skip 1, limit 2: %v", got)
	}
	if s := f.List()[1]; s.Seen != 5 || s.Hit != 2 || s.NotReady != 2 {
		t.Errorf("the rule says %+v", s)
	}
	share := func(seed uint64) (n int, got []bool) {
		f.Clear()
		add(t, f, link.Rule{RNR: 0.25, Seed: seed})
		for _, yes := range ask(5, addrA, 1000) {
			if got = append(got, yes); yes {
				n++
			}
		}
		return n, got
	}
	n, first := share(7)
	if n < 200 || n > 300 {
		t.Errorf("refused %d of 1000 messages, want 200 to 300", n)
	}
	if _, again := share(7); !slices.Equal(first, again) {
		t.Error("the same seed, other decisions")
	}
	if _, other := share(8); slices.Equal(first, other) {
		t.Error("another seed, the same decisions")
	}
}

// TestFaultsSeed: a rule with its own seed does not depend on earlier rules, and does not change the other rules.
func TestFaultsSeed(t *testing.T) {
	lose := func(seed uint64, before ...link.Rule) []int {
		got, _ := fates(t, seed, 10, append(before, link.Rule{Drop: 0.5, Seed: 42})...)
		return got
	}
	none := link.Rule{Duplicate: 1, QP: 9999}
	if a, b := lose(1), lose(2, none, none); !reflect.DeepEqual(a, b) {
		t.Errorf("the same seed, other decisions: %v, %v", a, b)
	}
	second := func(first link.Rule) []int {
		got, _ := fates(t, 3, 10, first, link.Rule{Drop: 0.5})
		return got
	}
	seeded := none
	seeded.Seed = 5
	if a, b := second(none), second(seeded); !reflect.DeepEqual(a, b) {
		t.Errorf("the first rule's seed changes the second: %v, %v", a, b)
	}
}

func TestFaultsNumberBy(t *testing.T) {
	var n atomic.Int64
	net := simnet.New(simnet.Config{})
	a, b := link.NewFaults(net, nil), link.NewFaults(net, nil)
	a.NumberBy(&n)
	b.NumberBy(&n)
	for _, f := range []*link.Faults{a, b, a} {
		add(t, f, link.Rule{Drop: 1})
	}
	if x, y := a.List(), b.List(); x[0].ID != 1 || y[0].ID != 2 || x[1].ID != 3 {
		t.Errorf("rules %v and %v", x, y)
	}
	if a.Remove(2) || !b.Remove(2) {
		t.Error("a rule of the other one was removed")
	}
}

// The faults are between a device and its network. The network is a simnet.Net in a test in virtual time, or
// link.UDP(link.UDPOptions{}) otherwise. If rxe.Config has the Faults as both Network and Faults, they apply to all
// packets of the device.
func ExampleFaults() {
	network := simnet.New(simnet.Config{})
	faults := link.NewFaults(network, rand.NewPCG(1, 2)) // with this seed, the same faults in each run

	to := &sink{}
	a, err := faults.Listen(netip.MustParseAddr("10.0.0.1"), &sink{})
	if err != nil {
		panic(err)
	}
	b, err := network.Listen(netip.MustParseAddr("10.0.0.2"), to)
	if err != nil {
		panic(err)
	}

	// The third packet is lost.
	if err := faults.Add(link.Rule{Drop: 1, Skip: 2, Limit: 1}); err != nil {
		panic(err)
	}
	if err := a.Send(train(b.Addr(), 17, 0, 5)); err != nil {
		panic(err)
	}
	for len(to.psns()) < 4 {
		runtime.Gosched()
	}
	fmt.Println("arrived:", to.psns())
	for _, r := range faults.List() {
		fmt.Printf("rule %d, %v: saw %d, dropped %d\n", r.ID, r.Rule, r.Seen, r.Dropped)
	}
	a.Close()
	b.Close()
	// Output:
	// arrived: [0 1 3 4]
	// rule 1, drop 1 after 2 for 1: saw 5, dropped 1
}
