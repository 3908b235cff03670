package rblk

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/internal/leaktest"

	"verbena/driver/rxe"
	"verbena/ib"
	ibslot "verbena/ib/slot"
	"verbena/link/simnet"
	"verbena/netdev"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// host is a core with one slot, whose adapter can fail in every way.
type host struct {
	t    testing.TB
	core ib.Core
	cfg  rxe.Config
	hw   *rxe.Hardware
	slot *ibslot.Slot
}

// newHost is a host with a software device at addr on a network. Checked mode watches the protocol as a consumer.
func newHost(t testing.TB, network *simnet.Net, addr string) *host {
	h := &host{t: t, cfg: rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Network: network, Fabric: &rxe.Fabric{},
		Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
	}}
	h.core.Check(ib.CheckConfig{Report: func(v ib.Violation) { t.Error(v) }})
	h.insert()
	t.Cleanup(h.remove)
	return h
}

// insert puts a new adapter into a new slot.
func (h *host) insert() {
	h.hw = rxe.NewHardware(h.cfg)
	h.slot = ibslot.New(&h.core, h.cfg.Name, h.hw, nil)
	h.plug()
}

// remove also waits for resets on their way.
func (h *host) remove() { h.must(h.slot.Close()) }

func (h *host) plug() { h.must(h.slot.Plug()) }

func (h *host) unplug() { h.must(h.slot.Unplug()) }

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Error(err)
	}
}

// resetAt arms a reset, once a reset that was armed before is over.
func (h *host) resetAt(m ibslot.Moment) {
	err := error(syscall.ENODEV)
	for errors.Is(err, syscall.ENODEV) {
		h.must(h.slot.Settle(context.Background()))
		err = h.slot.ResetAt(m, nil)
	}
	h.must(err)
}

// breakdowns are the ways in which a device fails and comes back, after a pause where there is one.
var breakdowns = map[string]func(h *host, pause time.Duration){
	"reset": func(h *host, _ time.Duration) { h.must(h.slot.Reset(context.Background())) },
	"hang": func(h *host, pause time.Duration) {
		h.hw.Hang()
		time.Sleep(pause)
		h.must(h.slot.Reset(context.Background()))
	},
	"unreachable": func(h *host, pause time.Duration) {
		h.hw.Disconnect()
		time.AfterFunc(pause, h.hw.Return)
		h.must(h.slot.Reset(context.Background()))
	},
	"at a work request": func(h *host, pause time.Duration) {
		h.resetAt(ibslot.AtWorkRequest(1 + uint64(pause/time.Millisecond)))
	},
	"in a completion handler": func(h *host, _ time.Duration) { h.resetAt(ibslot.InHandler) },
	"unplug": func(h *host, pause time.Duration) {
		h.unplug()
		time.Sleep(pause)
		h.plug()
	},
	"death": func(h *host, pause time.Duration) {
		h.hw.Die()
		if err := h.slot.Reset(context.Background()); err == nil {
			h.t.Error("a dead adapter was reset")
		}
		h.remove()
		time.Sleep(pause)
		h.insert()
	},
}

// world is a target and what a disk needs to reach it.
type world struct {
	t         testing.TB
	init      *host
	targ      *host
	target    *Target
	addr      atomic.Value // string
	listening chan error
}

func newWorld(t testing.TB, store Store) *world {
	network := simnet.New(simnet.Config{})
	w := &world{t: t, init: newHost(t, network, "10.0.0.1"), targ: newHost(t, network, "10.0.0.2")}
	w.serve(TargetConfig{Exports: map[string]Store{"disk": store}, Logf: t.Logf})
	t.Cleanup(w.stop)
	return w
}

func (w *world) serve(cfg TargetConfig) {
	w.t.Helper()
	var err error
	if w.target, err = NewTarget(&w.targ.core, cfg); err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.addr.Store(l.Addr().String())
	w.listening = make(chan error, 1)
	target, listening := w.target, w.listening
	go func() { listening <- target.Serve(l) }()
}

func (w *world) stop() {
	w.target.Close()
	if err := <-w.listening; err != nil {
		w.t.Errorf("serve: %v", err)
	}
}

func (w *world) config() DiskConfig {
	return DiskConfig{
		Export: "disk", Depth: 16, MaxIO: 16 << 10, Logf: w.t.Logf,
		Dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", w.addr.Load().(string))
		},
	}
}

func (w *world) open(cfg DiskConfig) *Disk {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := Open(ctx, &w.init.core, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { d.Close() })
	return d
}

// pattern is data that tells where it belongs and which writing it is of.
func pattern(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
