package engine

import (
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/ib/ibtest"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
)

// modelSeeds returns a number of seeds that takes a few seconds.
func modelSeeds() int {
	if raceEnabled {
		return 15
	}
	return 120
}

// TestModel compares the driver with the model of package ibtest on all paths of packets: with captures and traces,
// on networks that delay, lose, repeat and reorder packets, and with receivers that seem not to be ready. The seed
// determines all choices.
func TestModel(t *testing.T) {
	ibtest.Model(t, modelDevice, ibtest.Bubble(), ibtest.Seeds(modelSeeds()))
}

// modelDevice creates the device for a seed.
func modelDevice(t testing.TB, seed uint64) (h *ib.DeviceHandle, lossy bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	inner := simnet.New(simnet.Config{
		Latency: time.Duration(1+r.IntN(30)) * time.Microsecond, Bandwidth: 1 << 30, Rand: rand.NewPCG(seed, 2),
	})
	network := link.NewFaults(inner, rand.NewPCG(seed, 3))
	d, err := New(Config{
		Layout:  layout.Layout{},
		Name:    "rxe0",
		Netdev:  netdev.Interface{Name: "sim0", Index: 1, MTU: 256<<r.IntN(5) + 104, Up: true, Running: true},
		Addrs:   []netip.Addr{addrA},
		Network: network,
		Fabric:  &Fabric{},
		Logf:    t.Logf,
		Taps:    &link.Taps{},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	w := way(r.IntN(3))
	d.SetShortcut(w != wayWire)
	if w == wayWatched {
		d.taps.Add(&readingTap{})
	}
	l := lossNone
	if w == wayWire && r.IntN(3) > 0 {
		l = loss(r.IntN(int(numLosses)))
	}
	if l != lossNone {
		if err := network.Add(l.rule()); err != nil {
			t.Fatal(err)
		}
	}
	return d.Handle(), l != lossNone
}

// way is the path of packets from one queue pair to the other.
type way int

const (
	wayShortcut way = iota
	wayWatched      // the shortcut, with captures and traces, which need separate packets
	wayWire
)

func (w way) String() string { return [...]string{"shortcut", "watched", "wire"}[w] }

// loss is a fault of the network. Packets on the shortcut have none.
type loss int

const (
	lossNone loss = iota
	lossDrop
	lossDuplicate
	lossReorder
	lossMixed
	lossRNR
	numLosses
)

func (l loss) String() string {
	return [...]string{"none", "drops", "duplicates", "reorders", "mixed", "RNR NAKs"}[l]
}

func (l loss) rule() link.Rule {
	return [...]link.Rule{
		lossDrop:      {Drop: 0.02},
		lossDuplicate: {Duplicate: 0.2},
		lossReorder:   {Reorder: 0.02, Behind: 3},
		lossMixed:     {Drop: 0.005, Corrupt: 0.005, Duplicate: 0.02},
		lossRNR:       {RNR: 0.3, Limit: 20},
	}[l]
}

// readingTap reads packets, so that the race detector sees it.
type readingTap struct{ sum atomic.Int64 }

func (x *readingTap) Packet(p *link.Tapped) { x.sum.Add(int64(p.Data[0])) }
