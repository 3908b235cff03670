package rblk

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"verbena/internal/leaktest"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/check"
	ibslot "verbena/ib/slot"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/rdmacm"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// testHost is a core with a connection manager and one slot. The adapter in the slot can fail in each way.
type testHost struct {
	t       testing.TB
	core    ib.Core
	manager *rdmacm.Manager
	cfg     rxe.Config
	hw      *rxe.Hardware
	slot    *ibslot.Slot
}

// newHost returns a host with a software device at addr on a network. Checked mode also checks rblk, which is a
// consumer.
func newHost(t testing.TB, network *simnet.Net, addr string) *testHost {
	h := &testHost{t: t, cfg: rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Network: network, Fabric: &rxe.Fabric{},
		Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
	}}
	check.On(&h.core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
	var err error
	// Messages that are lost while the peer's device is down are retransmitted after 34 ms.
	if h.manager, err = rdmacm.New(&h.core, rdmacm.Config{Timeout: 13}); err != nil {
		t.Fatal(err)
	}
	h.insertAdapter()
	t.Cleanup(func() {
		h.manager.Close()
		h.removeSlot()
	})
	return h
}

// insertAdapter puts a new adapter into a new slot.
func (h *testHost) insertAdapter() {
	h.hw = rxe.NewHardware(h.cfg)
	h.slot = ibslot.New(&h.core, h.cfg.Name, h.hw, nil)
	h.plugAdapter()
}

// removeSlot also waits for resets in progress.
func (h *testHost) removeSlot() { h.reportError(h.slot.Close()) }

func (h *testHost) plugAdapter() { h.reportError(h.slot.Plug()) }

func (h *testHost) unplugAdapter() { h.reportError(h.slot.Unplug()) }

func (h *testHost) reportError(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Error(err)
	}
}

// resetAt arms a reset after an earlier reset has ended.
func (h *testHost) resetAt(m ibslot.Moment) {
	err := error(syscall.ENODEV)
	for errors.Is(err, syscall.ENODEV) {
		h.reportError(h.slot.Settle(context.Background()))
		err = h.slot.ResetAt(m, nil)
	}
	h.reportError(err)
}

// deviceFailures lists the ways in which a device fails and recovers, some of them with a pause.
var deviceFailures = map[string]func(h *testHost, pause time.Duration){
	"reset": func(h *testHost, _ time.Duration) { h.reportError(h.slot.Reset(context.Background())) },
	"hang": func(h *testHost, pause time.Duration) {
		h.hw.Hang()
		time.Sleep(pause)
		h.reportError(h.slot.Reset(context.Background()))
	},
	"unreachable": func(h *testHost, pause time.Duration) {
		h.hw.Disconnect()
		time.AfterFunc(pause, h.hw.Return)
		h.reportError(h.slot.Reset(context.Background()))
	},
	"at a work request": func(h *testHost, pause time.Duration) {
		h.resetAt(ibslot.AtWorkRequest(1 + uint64(pause/time.Millisecond)))
	},
	"in a completion handler": func(h *testHost, _ time.Duration) { h.resetAt(ibslot.InHandler) },
	"unplug": func(h *testHost, pause time.Duration) {
		h.unplugAdapter()
		time.Sleep(pause)
		h.plugAdapter()
	},
	"death": func(h *testHost, pause time.Duration) {
		h.hw.Die()
		if err := h.slot.Reset(context.Background()); err == nil {
			h.t.Error("dead adapter: got a successful reset")
		}
		h.removeSlot()
		time.Sleep(pause)
		h.insertAdapter()
	},
}

// testbed is a target, and the host of a disk.
type testbed struct {
	t         testing.TB
	init      *testHost
	targ      *testHost
	network   *simnet.Net
	target    *Target
	listening chan error
}

const testPort = 10810

func newTestbed(t testing.TB, store Store) *testbed {
	network := simnet.New(simnet.Config{})
	w := &testbed{t: t, network: network, init: newHost(t, network, "10.0.0.1"), targ: newHost(t, network, "10.0.0.2")}
	w.serveTarget(TargetConfig{Exports: map[string]Store{"disk": store}, Logf: t.Logf})
	t.Cleanup(w.stopTarget)
	return w
}

func (w *testbed) serveTarget(cfg TargetConfig) {
	w.t.Helper()
	var err error
	if w.target, err = NewTarget(&w.targ.core, cfg); err != nil {
		w.t.Fatal(err)
	}
	l, err := w.targ.manager.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), testPort), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.listening = make(chan error, 1)
	target, listening := w.target, w.listening
	go func() { listening <- target.Serve(l) }()
}

func (w *testbed) stopTarget() {
	w.target.Close()
	if err := <-w.listening; err != nil {
		w.t.Errorf("serve: %v", err)
	}
}

func (w *testbed) diskConfig() DiskConfig {
	return DiskConfig{
		Manager: w.init.manager, Target: netip.MustParseAddrPort("10.0.0.2:10810"),
		Export: "disk", Depth: 16, MaxIO: 16 << 10, Logf: w.t.Logf,
	}
}

func (w *testbed) openDisk(cfg DiskConfig) *Disk {
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

// rawConn is a connection to the target on which a test sends messages that no Disk sends.
type rawConn struct {
	t    testing.TB
	conn *rdmacm.Conn
	ep   *endpoint
	said chan []byte
	sent chan struct{} // a value for each completed message
}

// dialRaw connects to the target with an offer.
func (w *testbed) dialRaw(offer []byte) (_ *rawConn, err error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r := &rawConn{t: w.t, said: make(chan []byte, 1), sent: make(chan struct{}, 2)}
	dev := w.init.core.Devices()[0]
	if r.conn, err = w.init.manager.Resolve(ctx, rdmacm.Target{Addr: w.diskConfig().Target, Device: dev}); err != nil {
		w.t.Fatal(err)
	}
	handle := func(wc *ib.WC) {
		switch {
		case wc.Status != ib.WCSuccess:
		case wc.ID == ofHello:
			r.said <- r.ep.receivedHandshakeBytes(wc)
		case wc.ID == ofReply:
			r.sent <- struct{}{}
		}
	}
	if r.ep, err = newEndpoint(dev, 4, 4, handle, func(ib.EventType) {}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(r.close)
	if err := errors.Join(r.conn.Init(r.ep.qp.QP), r.ep.postLoginReceive()); err != nil {
		w.t.Fatal(err)
	}
	_, _, err = r.conn.Connect(ctx, r.ep.qp.QP, rdmacm.Param{ResponderResources: readDepth, RetryCount: retryCount}, offer)
	return r, err
}

// sendLogin sends v as a login message.
func (w *testbed) sendLogin(v any) *rawConn {
	w.t.Helper()
	r, err := w.dialRaw(sessionOffer{1, 512}.bytes())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := r.ep.sendHandshake(v); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// readWelcome returns the target's reply to the login.
func (r *rawConn) readWelcome() (w welcomeMessage) {
	r.t.Helper()
	select {
	case b := <-r.said:
		if err := json.Unmarshal(b, &w); err != nil {
			r.t.Errorf("%s: %v", b, err)
		}
	case <-r.conn.Done():
		r.t.Errorf("no answer: %v", r.conn.Err())
	case <-time.After(20 * time.Second):
		r.t.Error("no answer")
	}
	return w
}

// awaitClosed waits until the target has closed the connection.
func (r *rawConn) awaitClosed() {
	r.t.Helper()
	select {
	case <-r.conn.Done():
	case <-time.After(20 * time.Second):
		r.t.Error("the target waits")
	}
}

func (r *rawConn) close() {
	if err := r.ep.close(); err != nil {
		r.t.Error(err)
	}
	r.conn.Close()
}

// newPattern returns data that identifies its range and its write.
func newPattern(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
