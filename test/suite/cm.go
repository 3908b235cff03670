package suite

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/verbs"
	"verbena/verbs/cm"
)

// CMConfig is the configuration for tests of connections.
type CMConfig struct {
	Config
	// Manager opens a new connection manager.
	Manager func() (*cm.Manager, error)
	// Addr is an address of the device at which the device reaches itself.
	Addr netip.Addr
}

// RunCM runs the tests of package cm.
func RunCM(t *testing.T, c CMConfig) {
	for _, x := range []struct {
		name string
		f    func(*CMTestbed)
	}{
		{"Connect", (*CMTestbed).testConnect}, {"Reject", (*CMTestbed).testReject}, {"Nobody", (*CMTestbed).testNoListener},
		{"Disconnect", (*CMTestbed).testDisconnect}, {"Many", (*CMTestbed).testManyConnections}, {"Cancel",
			(*CMTestbed).testCancelDial}, {"Close",
			(*CMTestbed).testCloseManager},
		{"Misuse", (*CMTestbed).testInvalidCMCalls},
	} {
		t.Run(x.name, func(t *testing.T) { WithCM(t, c, x.f) })
	}
}

// WithCM runs one test with the device and the connection manager open.
func WithCM(t *testing.T, c CMConfig, test func(*CMTestbed)) {
	w := &CMTestbed{Testbed: &Testbed{T: t, Config: c.Config, Memory: 16 << 10}, Addr: c.Addr}
	var err error
	w.Device, err = c.Open()
	w.Must(err)
	w.Manager, err = c.Manager()
	w.Must(err)
	test(w)
	w.Must(w.Manager.Close())
	w.Must(w.Manager.Close())
	w.Must(w.Device.Close())
}

// CMTestbed is a Testbed with a connection manager.
type CMTestbed struct {
	*Testbed
	Manager *cm.Manager
	Addr    netip.Addr
}

// Listen listens on a free port.
func (w *CMTestbed) Listen() (*cm.Listener, netip.AddrPort) {
	w.Helper()
	l, err := w.Manager.Listen(netip.AddrPortFrom(w.Addr, 0), 0)
	w.Must(err)
	at := l.Addr()
	if at.Port() == 0 || at.Addr() != w.Addr {
		w.Fatalf("Listen: got address %v, want a port of %v", at, w.Addr)
	}
	return l, at
}

// Accept accepts one request, and returns its private data.
func (w *CMTestbed) Accept(l *cm.Listener, data []byte) (*End, *cm.Conn, []byte, error) {
	r, err := l.Accept(w.ShortContext())
	if err != nil {
		return nil, nil, nil, err
	}
	e := w.NewEnd(verbs.QPInit{})
	if err := r.Init(e.QP); err != nil {
		return nil, nil, nil, err
	}
	c, err := r.Accept(e.QP, cm.Param{}, data)
	if err == nil {
		err = c.Established(w.ShortContext())
	}
	return e, c, r.Data, err
}

// Dial resolves an address and connects.
func (w *CMTestbed) Dial(at netip.AddrPort, data []byte) (*End, *cm.Conn, []byte, error) {
	c, err := w.Manager.Resolve(w.ShortContext(), cm.Target{Addr: at})
	if err != nil {
		return nil, nil, nil, err
	}
	e := w.NewEnd(verbs.QPInit{})
	if err := c.Init(e.QP); err != nil {
		return e, c, nil, err
	}
	got, err := c.Connect(w.ShortContext(), e.QP, cm.Param{}, data)
	return e, c, got, err
}

// connectedEnds returns two connected Ends with their connections.
func (w *CMTestbed) connectedEnds() (a, b *End, ca, cb *cm.Conn) {
	w.Helper()
	l, at := w.Listen()
	defer l.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		var got []byte
		b, cb, got, err = w.Accept(l, []byte("welcome"))
		if err != nil || !bytes.HasPrefix(got, []byte("hello\x00")) {
			w.Errorf("private data at the passive side: got %q and error %v", got, err)
		}
	})
	a, ca, got, err := w.Dial(at, []byte("hello"))
	wg.Wait()
	if err != nil || !bytes.HasPrefix(got, []byte("welcome\x00")) {
		w.Fatalf("private data at the active side: got %q and error %v", got, err)
	}
	if w.Failed() {
		w.FailNow()
	}
	return a, b, ca, cb
}

// awaitEnd waits for the end of a connection.
func (w *CMTestbed) awaitEnd(c *cm.Conn, want error) {
	w.Helper()
	select {
	case <-c.Done():
	case <-time.After(operationTimeout):
		w.Fatal("wait for the end of the connection: got a timeout, want the end")
	}
	if err := c.Err(); !errors.Is(err, want) {
		w.Errorf("end of the connection: got %v, want %v", err, want)
	}
}

func (w *CMTestbed) testConnect() {
	a, b, ca, cb := w.connectedEnds()
	if ca.RemoteAddr().Addr() != w.Addr || cb.LocalAddr().Addr() != w.Addr {
		w.Errorf("addresses: got %v and %v, want %v", ca.RemoteAddr(), cb.LocalAddr(), w.Addr)
	}
	for _, x := range [][2]*End{{a, b}, {b, a}} {
		from, to := x[0], x[1]
		want := from.Fill(0, 5000, 3)
		to.PostRecv(1, 0, 5000)
		from.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: from.MR.SGE(0, 5000)})
		from.WaitSuccess(2)
		to.WaitSuccess(1)
		w.MustEqual(to.MR.Bytes()[:5000], want)
		from.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.Read, Local: from.MR.SGE(9000, 100), Remote: to.Remote(0)})
		from.WaitSuccess(3)
		w.MustEqual(from.MR.Bytes()[9000:9100], want[:100])
	}
	w.Must(ca.Close())
	w.awaitEnd(ca, syscall.ECONNABORTED)
	w.awaitEnd(cb, cm.ErrDisconnected)
	w.Must(cb.Close())
	w.Must(cb.Close())
}

func (w *CMTestbed) testReject() {
	l, at := w.Listen()
	defer l.Close()
	go func() {
		if r, err := l.Accept(w.ShortContext()); err == nil {
			r.Reject([]byte("not now"))
		}
	}()
	_, c, _, err := w.Dial(at, nil)
	var refused *cm.RefusedError
	if !errors.As(err, &refused) || refused.Reason != 28 || !bytes.HasPrefix(refused.Data, []byte("not now\x00")) ||
		!errors.Is(err, syscall.ECONNREFUSED) {
		w.Errorf("Dial: got %v, want a rejection with its data", err)
	}
	w.Must(c.Close())
}

func (w *CMTestbed) testNoListener() {
	_, c, _, err := w.Dial(netip.AddrPortFrom(w.Addr, 9), nil)
	var refused *cm.RefusedError
	if !errors.As(err, &refused) || refused.Reason != 8 {
		w.Errorf("Dial: got %v, want a rejection, because the port has no listener", err)
	}
	w.Must(c.Close())
}

func (w *CMTestbed) testDisconnect() {
	for i := range 2 {
		_, _, ca, cb := w.connectedEnds()
		c := []*cm.Conn{ca, cb}
		w.Must(c[i].Disconnect())
		w.awaitEnd(c[1-i], cm.ErrDisconnected)
		w.awaitEnd(c[i], cm.ErrDisconnected)
		w.Must(ca.Close())
		w.Must(cb.Close())
	}
}

func (w *CMTestbed) testManyConnections() {
	const n = 20
	l, at := w.Listen()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			e, c, _, err := w.Accept(l, nil)
			if err != nil {
				w.Errorf("accept: %v", err)
				return
			}
			defer c.Close()
			e.PostRecv(1, 0, 100)
			e.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: e.MR.SGE(200, 100)})
			<-c.Done()
		})
		wg.Go(func() {
			e, c, _, err := w.Dial(at, nil)
			if err != nil {
				w.Errorf("connect: %v", err)
				return
			}
			defer c.Close()
			e.PostRecv(1, 0, 100)
			var wc [4]verbs.WC
			if n, err := e.CQ.Wait(e.ShortContext(), wc[:]); err != nil || n == 0 || wc[0].Status != verbs.Success {
				w.Errorf("receive: got %d, %v, %v", n, wc[0].Status, err)
			}
		})
	}
	wg.Wait()
	w.Must(l.Close())
}

func (w *CMTestbed) testCancelDial() {
	l, _ := w.Listen()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		w.Errorf("Accept: got %v, want %v", err, context.DeadlineExceeded)
	}
	done := make(chan error)
	go func() { done <- errorOnly(l.Accept(context.Background())) }()
	time.Sleep(2 * time.Millisecond)
	w.Must(l.Close())
	w.Must(l.Close())
	if err := <-done; !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("Accept of a closed listener: got %v, want %v", err, verbs.ErrClosed)
	}
}

// testCloseManager tests that a blocked Accept returns when the manager is closed.
func (w *CMTestbed) testCloseManager() {
	_, _, ca, _ := w.connectedEnds()
	l, _ := w.Listen()
	done := make(chan error)
	go func() { done <- errorOnly(l.Accept(context.Background())) }()
	time.Sleep(2 * time.Millisecond)
	w.Must(w.Manager.Close())
	select {
	case err := <-done:
		if err == nil {
			w.Error("Accept on a closed manager: got a request, want an error")
		}
	case <-time.After(operationTimeout):
		w.Fatal("Accept on a closed manager: got no return, want one")
	}
	select {
	case <-ca.Done():
	case <-time.After(operationTimeout):
		w.Error("connection after the close of its manager: got no end, want one")
	}
	if _, err := w.Manager.Listen(netip.AddrPortFrom(w.Addr, 0), 0); err == nil {
		w.Error("Listen on a closed manager: got a listener, want an error")
	}
}

func (w *CMTestbed) testInvalidCMCalls() {
	l, at := w.Listen()
	defer l.Close()
	if _, err := w.Manager.Listen(at, 0); !errors.Is(err, syscall.EADDRINUSE) {
		w.Errorf("Listen on a port in use: got %v, want EADDRINUSE", err)
	}
	if _, err := w.Manager.Listen(netip.MustParseAddrPort("192.0.2.1:0"), 0); err == nil {
		w.Error("Listen at an address of another host: got a listener, want an error")
	}
	if _, err := w.Manager.Resolve(w.ShortContext(), cm.Target{}); err == nil {
		w.Error("Dial without an address: got a connection, want an error")
	}
	c, err := w.Manager.Resolve(w.ShortContext(), cm.Target{Addr: at})
	w.Must(err)
	e := w.NewEnd(verbs.QPInit{})
	w.Must(c.Init(e.QP))
	if _, err := c.Connect(w.ShortContext(), e.QP, cm.Param{}, make([]byte, 57)); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("Dial with 57 bytes of private data: got %v, want EINVAL", err)
	}
	w.Must(c.Close())
}
