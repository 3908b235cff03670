package rblk

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"verbena/driver/rxe"
	"verbena/driver/rxe/wire/netdev"
	"verbena/driver/rxe/wire/simnet"
	"verbena/ib"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a core with one device that can be taken away and brought back.
type host struct {
	t    testing.TB
	core ib.Core
	make func() (*ib.Device, func())

	mu   sync.Mutex
	dev  *ib.Device
	free func()
}

// newHost is a host with a software device at addr on a network. Checked mode watches the protocol as a consumer.
func newHost(t testing.TB, network *simnet.Net, addr string) *host {
	h := &host{t: t}
	h.core.Check(ib.CheckConfig{Report: func(v ib.Violation) { t.Error(v) }})
	ip := netip.MustParseAddr(addr)
	h.make = func() (*ib.Device, func()) {
		d, err := rxe.New(rxe.Config{
			Name: "rxe0", Addrs: []netip.Addr{ip}, Network: network, Fabric: &rxe.Fabric{},
			Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		return d.IB(), func() { d.Close() }
	}
	h.plug()
	t.Cleanup(h.unplug)
	return h
}

func (h *host) plug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dev != nil {
		return
	}
	h.dev, h.free = h.make()
	if err := h.core.Register(h.dev); err != nil {
		h.t.Error(err)
	}
}

// unplug is an orderly reset's first half, unless the device fails first.
func (h *host) unplug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dev == nil {
		return
	}
	if err := h.core.Unregister(h.dev); err != nil {
		h.t.Error(err)
	}
	h.free()
	h.dev = nil
}

// fail is the device's fatal error.
func (h *host) fail() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dev != nil {
		h.dev.SetError()
		h.dev.DispatchEvent(ib.EventDeviceFatal, 0)
	}
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
