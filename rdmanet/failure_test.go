package rdmanet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/driver/rxe"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/rdmanet"
	"verbena/verbs"
	"verbena/verbs/cm"
)

// callTimeout limits the duration of a call that fails without a timeout.
const callTimeout = 10 * time.Second

// blockingCall is a call that is expected to block.
type blockingCall struct {
	name string
	f    func() error
}

// newBlockingCalls returns blocking calls on a connection. The calls block because the peer does not read or write, and
// its packets are lost.
func newBlockingCalls(t *testing.T, a *rdmanet.Conn, there, mine *rdmanet.Region) []blockingCall {
	m := a.Remote(there.Descriptor())
	ctx := context.Background()
	return []blockingCall{
		{"Read", func() error { _, err := a.Read(make([]byte, 1)); return err }},
		{"Write", func() error { _, err := a.Write(make([]byte, 10<<20)); return err }},
		{"ReadAt", func() error { _, err := m.ReadAt(make([]byte, 10), 0); return err }},
		{"WriteAt", func() error { _, err := m.WriteAt(make([]byte, 10), 0); return err }},
		{"ReadAtContext", func() error { _, err := m.ReadAtContext(ctx, make([]byte, 10), 0); return err }},
		{"ReadRegion", func() error { return m.ReadRegion(ctx, 0, mine, 0, 10) }},
		{"WriteRegion", func() error { return m.WriteRegion(ctx, 0, mine, 0, 10) }},
	}
}

// expectCallsFail runs the calls of a list concurrently. expectCallsFail then calls do, which unblocks the calls, and
// checks their errors.
func expectCallsFail(t *testing.T, list []blockingCall, do func(), want ...error) {
	t.Helper()
	type result struct {
		name string
		err  error
	}
	results := make(chan result, len(list))
	var waiting []func()
	for _, c := range list {
		waiting = append(waiting, func() { results <- result{c.name, c.f()} })
	}
	testutil.WaitBlocked(t, waiting...)
	do()
	over := time.After(callTimeout)
	for range list {
		select {
		case r := <-results:
			checkOpError(t, r.name, r.err, want...)
		case <-over:
			t.Fatal("a call still waits")
		}
	}
	for _, c := range list { // later calls must fail in the same way
		checkOpError(t, c.name, c.f(), want...)
	}
}

// TestConnectionEndUnblocksCalls checks each reason for the end of a connection. All blocked and later calls must end
// with an error that names the reason. A Listener and a Dialer must continue when the device has returned.
func TestConnectionEndUnblocksCalls(t *testing.T) {
	t.Parallel()
	for _, useCM := range []bool{false, true} {
		name := "TCP"
		if useCM {
			name = "CM"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestbed(t, nil)
			// The retries last longer than the test. Therefore only the end of the device ends the calls.
			cfg := rdmanet.Config{
				Host: w.newHost(), Linger: -1, KeepAlive: -1, Path: verbs.Path{Timeout: time.Minute},
			}
			address := "127.0.0.80:0"
			if useCM {
				address = ":0" // a listener at the address of the device would end together with the device
			}
			lc := rdmanet.ListenConfig{Config: cfg, CM: useCM}
			l, err := lc.Listen(context.Background(), "rdma", address)
			must(t, err)
			_, port, err := net.SplitHostPort(l.Addr().String())
			must(t, err)
			d := rdmanet.Dialer{Config: cfg, CM: useCM}
			pair := func() (a, b *rdmanet.Conn) {
				t.Helper()
				x, err := d.Dial("rdma", net.JoinHostPort("127.0.0.80", port))
				must(t, err)
				y, err := l.Accept()
				must(t, err)
				return x.(*rdmanet.Conn), y.(*rdmanet.Conn)
			}
			var old []*rdmanet.Conn
			for range 2 {
				a, b := pair()
				exchangeData(t, a, b, 1000)
				old = append(old, a, b)
				there, err := b.NewRegion(100, 0)
				must(t, err)
				mine, err := a.NewRegion(100, 0)
				must(t, err)
				must(t, w.net.Faults().Add(link.Rule{Drop: 1}))
				expectCallsFail(t, newBlockingCalls(t, a, there, mine), func() { w.unplugDevice(t) }, syscall.ECONNABORTED)
				if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
					t.Errorf("Read at the other end: got %v, want ECONNABORTED", err)
				}
				_, err = a.NewRegion(10, 0)
				checkOpError(t, "NewRegion", err, syscall.ECONNABORTED)
				if _, err := d.Dial("rdma", net.JoinHostPort("127.0.0.80", port)); err == nil {
					t.Error("Dial without a device: got nil, want an error")
				}
				must(t, mine.Close())
				must(t, there.Close())
				w.net.Faults().Clear()
				w.plugDevice(t) // the device returns while the old connections are open
			}
			a, b := pair()
			exchangeData(t, a, b, 1000)
			must(t, a.CloseWrite())
			_, err = io.ReadAll(b)
			must(t, err)
			for _, c := range append(old, a, b) {
				start := time.Now()
				_ = c.Close()
				if d := time.Since(start); d > callTimeout {
					t.Errorf("Close took %v", d)
				}
			}
			must(t, l.Close())
		})
	}
}

// TestStalledDeviceFailsConn checks that a connection fails when the device of this end stops working without an error.
func TestStalledDeviceFailsConn(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	d := w.openDevice(t)
	cfg := rdmanet.Config{KeepAlive: 5 * time.Millisecond, Linger: 5 * time.Millisecond}
	a, b := connectDevices(t, d, d, cfg, cfg)
	there, err := b.NewRegion(100, 0)
	must(t, err)
	mine, err := a.NewRegion(100, 0)
	must(t, err)
	t.Cleanup(func() {
		must(t, there.Close())
		must(t, mine.Close())
	})
	w.hw.Hang()
	expectCallsFail(t, newBlockingCalls(t, a, there, mine), func() { a.SetProbeTimeout(20 * time.Millisecond) },
		syscall.ETIMEDOUT)
	checkOpError(t, "Close", a.Close(), syscall.ETIMEDOUT)
}

// TestIdleDeviceIsNotStalled checks that the device of an idle connection is not mistaken for a device that has stopped
// working.
func TestIdleDeviceIsNotStalled(t *testing.T) {
	t.Parallel()
	d := newTestbed(t, &rxe.Fabric{}).openDevice(t)
	cfg := rdmanet.Config{KeepAlive: 200 * time.Millisecond}
	a, b := connectDevices(t, d, d, cfg, cfg)
	a.SetProbeTimeout(500 * time.Millisecond)
	b.SetProbeTimeout(500 * time.Millisecond)
	must(t, a.SetReadDeadline(time.Now().Add(time.Second)))
	_, err := a.Read(make([]byte, 1))
	checkOpError(t, "Read", err, os.ErrDeadlineExceeded)
	must(t, a.SetReadDeadline(time.Time{}))
	exchangeData(t, a, b, 1000)
}

// TestListenerEndsWithDevice checks that a Listener with Config.Device ends with that device.
func TestListenerEndsWithDevice(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		cm   bool
		end  func(*testing.T, *testbed, *verbs.Device)
	}{
		{"unplugged", false, func(t *testing.T, w *testbed, _ *verbs.Device) {
			w.unplugDevice(t)
			w.plugDevice(t)
		}},
		{"closed", false, func(t *testing.T, _ *testbed, d *verbs.Device) { must(t, d.Close()) }},
		{"address", true, func(t *testing.T, w *testbed, _ *verbs.Device) {
			w.unplugDevice(t)
			w.plugDevice(t)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := newTestbed(t, &rxe.Fabric{})
			cfg := rdmanet.Config{Host: w.newHost()}
			var d *verbs.Device
			if !x.cm {
				d = w.openDevice(t)
				cfg.Device = d
			}
			lc := rdmanet.ListenConfig{Config: cfg, CM: x.cm}
			l, err := lc.Listen(context.Background(), "rdma", "127.0.0.80:0")
			must(t, err)
			accept := func() error { _, err := l.Accept(); return err }
			expectCallsFail(t, []blockingCall{{"Accept", accept}}, func() { x.end(t, w, d) }, syscall.ECONNABORTED)
			if err := accept(); errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "device") {
				t.Errorf("Accept: got %q, want an error about the device and not io.EOF", err)
			}
			must(t, l.Close())
			_, err = (&rdmanet.Dialer{Config: rdmanet.Config{Device: d, Host: w.newHost()}, CM: x.cm}).Dial("rdma",
				l.Addr().String())
			checkOpError(t, "Dial", err, syscall.ECONNREFUSED)
		})
	}
}

// TestCMDisconnectEndsCalls checks that a disconnect event of the connection manager ends calls at once, without a wait
// for probes.
func TestCMDisconnectEndsCalls(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	var m *cm.Manager
	h := w.newHost()
	h.Manager = func() (_ *cm.Manager, err error) {
		m, err = w.stack.ConnectionManager(nil)
		return m, err
	}
	e := newCMTestPair(t, rdmanet.Config{Host: h, KeepAlive: -1, Linger: -1}, "127.0.0.80")
	a, b := e.connect(t)
	_, err := b.Write([]byte("last words"))
	must(t, err)
	var wg sync.WaitGroup
	var readers []func()
	for _, c := range []*rdmanet.Conn{a, b} {
		wg.Add(1)
		readers = append(readers, func() {
			defer wg.Done()
			got := make([]byte, 10)
			var err error
			for n := 0; err == nil; n, err = c.Read(got) {
				if c == b && n > 0 {
					t.Errorf("read %d bytes", n)
				}
			}
			var ce *rdmanet.ConnError
			if !errors.As(err, &ce) {
				t.Errorf("Read: got %v, want a ConnError", err)
			}
		})
	}
	testutil.WaitBlocked(t, readers...)
	must(t, m.Close())
	wg.Wait()
	_, err = e.l.Accept()
	checkOpError(t, "Accept", err, syscall.ECONNABORTED)
}
