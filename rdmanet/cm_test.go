package rdmanet_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"verbena/driver/rxe"
	"verbena/link"
	"verbena/rdmanet"
	"verbena/service/servicetest"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/service"
)

// newHost returns a Host with the device of the world.
func (w *testbed) newHost() *rdmanet.Host {
	return &rdmanet.Host{
		Devices: func() ([]verbs.DeviceInfo, error) { return w.stack.Devices(), nil },
		Manager: func() (*cm.Manager, error) { return w.stack.ConnectionManager(nil) },
	}
}

// newTestHost returns the Host of the device of openTestDevice, and an address of this device.
func newTestHost(t testing.TB) (h *rdmanet.Host, addr string) {
	t.Helper()
	if os.Getenv("VERBS_DEVICE") != "" {
		return hostOfService(), serviceAddr()
	}
	return newTestbed(t, &rxe.Fabric{}).newHost(), "127.0.0.80"
}

// serviceAddr returns an address at which the connection manager reaches VERBS_DEVICE.
func serviceAddr() string { return cmp.Or(os.Getenv("VERBS_ADDR"), "127.0.0.1") }

// cmTestPair holds a listener and a dialer that use the connection manager.
type cmTestPair struct {
	l      *rdmanet.Listener
	d      *rdmanet.Dialer
	failed chan error // errors of ListenConfig.Failed
}

func newCMTestPair(t testing.TB, cfg rdmanet.Config, addr string) *cmTestPair {
	t.Helper()
	e := &cmTestPair{d: &rdmanet.Dialer{Config: cfg, CM: true}, failed: make(chan error, 10)}
	lc := rdmanet.ListenConfig{Config: cfg, CM: true, Failed: func(_ net.Addr, err error) { e.failed <- err }}
	var err error
	e.l, err = lc.Listen(context.Background(), "rdma", net.JoinHostPort(addr, "0"))
	must(t, err)
	t.Cleanup(func() { must(t, e.l.Close()) })
	return e
}

// connect establishes a connection.
func (e *cmTestPair) connect(t testing.TB) (a, b *rdmanet.Conn) {
	t.Helper()
	x, err := e.d.Dial("rdma", e.l.Addr().String())
	must(t, err)
	y, err := e.l.Accept()
	must(t, err)
	t.Cleanup(func() {
		_ = x.Close()
		_ = y.Close()
	})
	return x.(*rdmanet.Conn), y.(*rdmanet.Conn)
}

// TestCMConnBehavesLikeTCPSetup checks that a connection over the connection manager behaves like a connection set up
// over TCP.
func TestCMConnBehavesLikeTCPSetup(t *testing.T) {
	t.Parallel()
	h, addr := newTestHost(t)
	e := newCMTestPair(t, rdmanet.Config{Host: h, KeepAlive: -1}, addr)
	t.Run("Conn", func(t *testing.T) {
		t.Parallel()
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			a, b := e.connect(t)
			return a, b, func() {
				var wg sync.WaitGroup
				wg.Go(func() { _ = a.Close() })
				_ = b.Close()
				wg.Wait()
			}, nil
		})
	})
	e = newCMTestPair(t, rdmanet.Config{Host: h, KeepAlive: -1}, addr)
	a, b := e.connect(t)
	if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() {
		t.Errorf("addresses: %v and %v, %v and %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	exchangeData(t, a, b, 1<<20)
	r, m := newTestRegion(t, a, b, 1000, 0)
	_, err := m.WriteAt([]byte("one-sided"), 10)
	must(t, err)
	if !bytes.Contains(r.Bytes(), []byte("one-sided")) {
		t.Error("region after WriteAt: got other bytes, want the written ones")
	}
	_, err = m.ReadAt(make([]byte, 1000), 0)
	must(t, err)
	// Data written before Close must arrive. The end of the connection must appear as the end of the stream, not as a
	// failure.
	_, err = a.Write([]byte("last words"))
	must(t, err)
	must(t, a.Close())
	if got, err := io.ReadAll(b); err != nil || string(got) != "last words" {
		t.Errorf("got %q, %v", got, err)
	}
	must(t, b.Close())
}

// TestCMDialErrorsNameCause checks the errors of Dial without a Listener, and with a peer that uses another protocol.
func TestCMDialErrorsNameCause(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	h := w.newHost()
	e := newCMTestPair(t, rdmanet.Config{Host: h}, "127.0.0.80")
	unserved := newCMTestPair(t, rdmanet.Config{Host: h}, "127.0.0.80")
	must(t, unserved.l.Close())
	_, err := e.d.Dial("rdma", unserved.l.Addr().String())
	checkOpError(t, "Dial without a Listener", err, syscall.ECONNREFUSED)
	if ne := net.Error(nil); !errors.As(err, &ne) || ne.Timeout() {
		t.Errorf("Dial without a Listener: got the timeout %v, want another error", err)
	}
	_, err = unserved.l.Accept()
	checkOpError(t, "Accept", err, net.ErrClosed)
}

// newOtherHost returns a Host, and the connection manager of this Host for direct use by the test.
func (w *testbed) newOtherHost(t testing.TB) (*rdmanet.Host, *cm.Manager) {
	t.Helper()
	m, err := w.stack.ConnectionManager(nil)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	h := w.newHost()
	h.Manager = func() (*cm.Manager, error) { return m, nil }
	return h, m
}

// TestCMRejectsOtherProtocols checks connections with peers that use another protocol over the connection manager.
func TestCMRejectsOtherProtocols(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	d := w.openDevice(t)
	h, m := w.newOtherHost(t)
	e := newCMTestPair(t, rdmanet.Config{Host: h}, "127.0.0.80")
	pd, err := d.AllocPD()
	must(t, err)
	cq, err := d.CreateCQ(10, nil)
	must(t, err)
	qp := func() *verbs.QP {
		q, err := pd.CreateQP(verbs.QPInit{SendCQ: cq})
		must(t, err)
		return q
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for _, x := range []struct{ data, want string }{
		{"hello", "does not use"}, {"RNET\x02\x01", "version 2"}, {"RNET\x01\x02", "kind 2"}, {"RNET\x01\x01", "version 0"},
		{"RNET\x01\x01\x01\x00\x00\x01", "ring"},
	} {
		c, err := m.Resolve(ctx, cm.Target{Addr: netip.MustParseAddrPort(e.l.Addr().String())})
		must(t, err)
		q := qp()
		must(t, c.Init(q))
		_, err = c.Connect(ctx, q, cm.Param{}, []byte(x.data))
		var refused *cm.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(string(refused.Data), x.want) {
			t.Errorf("%q: got %v, want a refusal that contains %q", x.data, err, x.want)
		}
		if err := <-e.failed; !errors.Is(err, syscall.EPROTO) && !errors.Is(err, syscall.EPROTONOSUPPORT) {
			t.Errorf("%q: got %v at the listener, want EPROTO", x.data, err)
		}
		must(t, c.Close())
		must(t, q.Close())
	}
	l, err := m.Listen(netip.MustParseAddrPort("127.0.0.80:0"), 0)
	must(t, err)
	defer l.Close()
	for _, x := range []struct {
		name   string
		answer func(*cm.Request)
		want   error
	}{
		{"another protocol", func(r *cm.Request) {
			q := qp()
			must(t, r.Init(q))
			c, err := r.Accept(q, cm.Param{}, []byte("welcome"))
			must(t, err)
			<-c.Done()
			must(t, q.Close())
			must(t, c.Close())
		}, syscall.EPROTO},
		{"a refusal", func(r *cm.Request) { must(t, r.Reject(nil)) }, syscall.ECONNREFUSED},
	} {
		var wg sync.WaitGroup
		wg.Go(func() {
			r, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			x.answer(r)
		})
		_, err := e.d.DialContext(ctx, "rdma", l.Addr().String())
		checkOpError(t, x.name, err, x.want)
		wg.Wait()
	}
	// The peer does not respond. The attempt must end with its context, and otherwise after SetupTimeout.
	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	defer stop()
	_, err = e.d.DialContext(short, "rdma", l.Addr().String())
	checkOpError(t, "Dial to a silent peer with a context", err, context.DeadlineExceeded)
	e.d.SetupTimeout = 10 * time.Millisecond
	_, err = e.d.DialContext(ctx, "rdma", l.Addr().String())
	checkOpError(t, "Dial to a silent peer with a SetupTimeout", err, context.DeadlineExceeded)
	if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("Dial to a silent peer: got %v, want a timeout", err)
	}
	e.d.SetupTimeout = 0
	short, stop = context.WithCancel(ctx)
	time.AfterFunc(10*time.Millisecond, stop)
	_, err = e.d.DialContext(short, "rdma", l.Addr().String())
	checkOpError(t, "Dial with a cancelled context", err, context.Canceled)
	must(t, cq.Close())
	must(t, pd.Close())
}

// TestCMPacketLossEndsConn drops all packets, first during the set-up of a connection and then on the connection.
func TestCMPacketLossEndsConn(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, nil)
	e := newCMTestPair(t, rdmanet.Config{Host: w.newHost(), Linger: -1}, "127.0.0.80")
	must(t, w.net.Faults().Add(link.Rule{Drop: 1}))
	e.d.SetupTimeout = 50 * time.Millisecond
	_, err := e.d.Dial("rdma", e.l.Addr().String())
	checkOpError(t, "Dial", err, context.DeadlineExceeded)
	w.net.Faults().Clear()
	e.d.SetupTimeout = 0
	a, b := e.connect(t)
	exchangeData(t, a, b, 1000)
}

// newService returns a service in this process with a device at an address.
func newService(t testing.TB, addr string) *service.Service {
	t.Helper()
	s, err := service.At(servicetest.Start(t, addr))
	must(t, err)
	return s
}

// TestCMReportsAddresses checks the reported addresses on a service. ListenConfig.Failed must receive the address of a
// rejected peer. A Listener must report its address even after Close.
func TestCMReportsAddresses(t *testing.T) {
	t.Parallel()
	s := newService(t, "127.91.16.3")
	type failure struct {
		remote net.Addr
		err    error
	}
	failed := make(chan failure, 1)
	lc := rdmanet.ListenConfig{
		Config: rdmanet.Config{Host: &rdmanet.Host{Devices: s.Devices, Manager: s.ConnectionManager}}, CM: true,
		Failed: func(remote net.Addr, err error) { failed <- failure{remote, err} },
	}
	l, err := lc.Listen(context.Background(), "rdma", "127.91.16.3:0")
	must(t, err)
	at := l.Addr()

	m, err := s.ConnectionManager()
	must(t, err)
	d, err := s.Open("")
	must(t, err)
	pd, err := d.AllocPD()
	must(t, err)
	cq, err := d.CreateCQ(10, nil)
	must(t, err)
	q, err := pd.CreateQP(verbs.QPInit{SendCQ: cq})
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	c, err := m.Resolve(ctx, cm.Target{Addr: netip.MustParseAddrPort(at.String())})
	must(t, err)
	must(t, c.Init(q))
	want := c.LocalAddr().String()
	if _, err := c.Connect(ctx, q, cm.Param{}, []byte("another protocol")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Connect: got %v, want ECONNREFUSED", err)
	}
	if f := <-failed; f.remote.String() != want || !errors.Is(f.err, syscall.EPROTO) {
		t.Errorf("Failed: got %v with error %v, want %s with EPROTO", f.remote, f.err, want)
	}
	for _, x := range []interface{ Close() error }{c, q, cq, pd, d, m, l} {
		must(t, x.Close())
	}
	if got := l.Addr(); got != at {
		t.Errorf("Addr after Close: got %v, want %v", got, at)
	}
	_, err = l.Accept()
	checkOpError(t, "Accept", err, net.ErrClosed)
	if !strings.Contains(err.Error(), at.String()) {
		t.Errorf("Accept: got %q, want it to contain %v", err, at)
	}
}
