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

// CMConfig says how connections are tested.
type CMConfig struct {
	Config
	// Manager opens the connection manager anew.
	Manager func() (*cm.Manager, error)
	// Addr is an address of the device, by which it reaches itself.
	Addr netip.Addr
}

// RunCM runs the tests of package cm.
func RunCM(t *testing.T, c CMConfig) {
	for _, x := range []struct {
		name string
		f    func(*cmWorld)
	}{
		{"Connect", (*cmWorld).connects}, {"Reject", (*cmWorld).rejects}, {"Nobody", (*cmWorld).nobody},
		{"Disconnect", (*cmWorld).disconnects}, {"Many", (*cmWorld).many}, {"Cancel", (*cmWorld).cancels}, {"Close", (*cmWorld).closes},
		{"Misuse", (*cmWorld).misuse},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := &cmWorld{world: &world{T: t, c: c.Config, memory: 16 << 10}, addr: c.Addr}
			var err error
			w.d, err = c.Open()
			w.must(err)
			w.m, err = c.Manager()
			w.must(err)
			x.f(w)
			w.must(w.m.Close())
			w.must(w.m.Close())
			w.must(w.d.Close())
		})
	}
}

type cmWorld struct {
	*world
	m    *cm.Manager
	addr netip.Addr
}

func (w *cmWorld) listen() (*cm.Listener, netip.AddrPort) {
	w.Helper()
	l, err := w.m.Listen(netip.AddrPortFrom(w.addr, 0), 0)
	w.must(err)
	at := l.Addr()
	if at.Port() == 0 || at.Addr() != w.addr {
		w.Fatalf("listens at %v, want a port of %v", at, w.addr)
	}
	return l, at
}

// accept accepts one request, and returns its data.
func (w *cmWorld) accept(l *cm.Listener, data []byte) (*end, *cm.Conn, []byte, error) {
	r, err := l.Accept(w.ctx())
	if err != nil {
		return nil, nil, nil, err
	}
	e := w.end(verbs.QPInit{})
	if err := r.Init(e.qp); err != nil {
		return nil, nil, nil, err
	}
	c, err := r.Accept(e.qp, cm.Param{}, data)
	if err == nil {
		err = c.Established(w.ctx())
	}
	return e, c, r.Data, err
}

// dial connects.
func (w *cmWorld) dial(at netip.AddrPort, data []byte) (*end, *cm.Conn, []byte, error) {
	c, err := w.m.Resolve(w.ctx(), cm.Target{Addr: at})
	if err != nil {
		return nil, nil, nil, err
	}
	e := w.end(verbs.QPInit{})
	if err := c.Init(e.qp); err != nil {
		return e, c, nil, err
	}
	got, err := c.Connect(w.ctx(), e.qp, cm.Param{}, data)
	return e, c, got, err
}

// pair is two ends that are connected.
func (w *cmWorld) pair() (a, b *end, ca, cb *cm.Conn) {
	w.Helper()
	l, at := w.listen()
	defer l.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		var got []byte
		b, cb, got, err = w.accept(l, []byte("welcome"))
		if err != nil || !bytes.HasPrefix(got, []byte("hello\x00")) {
			w.Errorf("the passive side: got %q, %v", got, err)
		}
	})
	a, ca, got, err := w.dial(at, []byte("hello"))
	wg.Wait()
	if err != nil || !bytes.HasPrefix(got, []byte("welcome\x00")) {
		w.Fatalf("the active side: got %q, %v", got, err)
	}
	if w.Failed() {
		w.FailNow()
	}
	return a, b, ca, cb
}

// ended waits for the end of a connection.
func (w *cmWorld) ended(c *cm.Conn, want error) {
	w.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		w.Fatal("the connection has not ended")
	}
	if err := c.Err(); !errors.Is(err, want) {
		w.Errorf("the connection has ended with %v, want %v", err, want)
	}
}

func (w *cmWorld) connects() {
	a, b, ca, cb := w.pair()
	if ca.RemoteAddr().Addr() != w.addr || cb.LocalAddr().Addr() != w.addr {
		w.Errorf("addresses: got %v and %v, want %v", ca.RemoteAddr(), cb.LocalAddr(), w.addr)
	}
	for _, x := range [][2]*end{{a, b}, {b, a}} {
		from, to := x[0], x[1]
		want := from.fill(0, 5000, 3)
		to.recv(1, 0, 5000)
		from.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: from.mr.SGE(0, 5000)})
		from.ok(2)
		to.ok(1)
		w.same(to.mr.Bytes()[:5000], want)
		from.post(verbs.SendWR{ID: 3, Opcode: verbs.Read, Local: from.mr.SGE(9000, 100), Remote: to.remote(0)})
		from.ok(3)
		w.same(from.mr.Bytes()[9000:9100], want[:100])
	}
	w.must(ca.Close())
	w.ended(ca, syscall.ECONNABORTED)
	w.ended(cb, cm.ErrDisconnected)
	w.must(cb.Close())
	w.must(cb.Close())
}

func (w *cmWorld) rejects() {
	l, at := w.listen()
	defer l.Close()
	go func() {
		if r, err := l.Accept(w.ctx()); err == nil {
			r.Reject([]byte("not now"))
		}
	}()
	_, c, _, err := w.dial(at, nil)
	var refused *cm.RefusedError
	if !errors.As(err, &refused) || refused.Reason != 28 || !bytes.HasPrefix(refused.Data, []byte("not now\x00")) || !errors.Is(err, syscall.ECONNREFUSED) {
		w.Errorf("got %v, want a refusal with its data", err)
	}
	w.must(c.Close())
}

func (w *cmWorld) nobody() {
	_, c, _, err := w.dial(netip.AddrPortFrom(w.addr, 9), nil)
	var refused *cm.RefusedError
	if !errors.As(err, &refused) || refused.Reason != 8 {
		w.Errorf("got %v, want a refusal: nothing listens", err)
	}
	w.must(c.Close())
}

func (w *cmWorld) disconnects() {
	for i := range 2 {
		_, _, ca, cb := w.pair()
		c := []*cm.Conn{ca, cb}
		w.must(c[i].Disconnect())
		w.ended(c[1-i], cm.ErrDisconnected)
		w.ended(c[i], cm.ErrDisconnected)
		w.must(ca.Close())
		w.must(cb.Close())
	}
}

func (w *cmWorld) many() {
	const n = 20
	l, at := w.listen()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			e, c, _, err := w.accept(l, nil)
			if err != nil {
				w.Errorf("accept: %v", err)
				return
			}
			defer c.Close()
			e.recv(1, 0, 100)
			e.post(verbs.SendWR{ID: 2, Opcode: verbs.Send, Local: e.mr.SGE(200, 100)})
			<-c.Done()
		})
		wg.Go(func() {
			e, c, _, err := w.dial(at, nil)
			if err != nil {
				w.Errorf("connect: %v", err)
				return
			}
			defer c.Close()
			e.recv(1, 0, 100)
			var wc [4]verbs.WC
			if n, err := e.cq.Wait(e.ctx(), wc[:]); err != nil || n == 0 || wc[0].Status != verbs.Success {
				w.Errorf("receive: got %d, %v, %v", n, wc[0].Status, err)
			}
		})
	}
	wg.Wait()
	w.must(l.Close())
}

func (w *cmWorld) cancels() {
	l, _ := w.listen()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		w.Errorf("Accept: got %v, want %v", err, context.DeadlineExceeded)
	}
	done := make(chan error)
	go func() { done <- second(l.Accept(context.Background())) }()
	time.Sleep(2 * time.Millisecond)
	w.must(l.Close())
	w.must(l.Close())
	if err := <-done; !errors.Is(err, verbs.ErrClosed) {
		w.Errorf("Accept of a closed listener: got %v, want %v", err, verbs.ErrClosed)
	}
}

// closes: who waits returns when the manager is closed.
func (w *cmWorld) closes() {
	_, _, ca, _ := w.pair()
	l, _ := w.listen()
	done := make(chan error)
	go func() { done <- second(l.Accept(context.Background())) }()
	time.Sleep(2 * time.Millisecond)
	w.must(w.m.Close())
	select {
	case err := <-done:
		if err == nil {
			w.Error("Accept on a closed manager: got a request")
		}
	case <-time.After(patience):
		w.Fatal("Accept waits for a manager that is closed")
	}
	select {
	case <-ca.Done():
	case <-time.After(patience):
		w.Error("a connection outlives its manager")
	}
	if _, err := w.m.Listen(netip.AddrPortFrom(w.addr, 0), 0); err == nil {
		w.Error("Listen on a closed manager: got a listener")
	}
}

func (w *cmWorld) misuse() {
	l, at := w.listen()
	defer l.Close()
	if _, err := w.m.Listen(at, 0); !errors.Is(err, syscall.EADDRINUSE) {
		w.Errorf("a port that is taken: got %v, want EADDRINUSE", err)
	}
	if _, err := w.m.Listen(netip.MustParseAddrPort("192.0.2.1:0"), 0); err == nil {
		w.Error("an address of another host: got a listener")
	}
	if _, err := w.m.Resolve(w.ctx(), cm.Target{}); err == nil {
		w.Error("no address: got a connection")
	}
	c, err := w.m.Resolve(w.ctx(), cm.Target{Addr: at})
	w.must(err)
	e := w.end(verbs.QPInit{})
	w.must(c.Init(e.qp))
	if _, err := c.Connect(w.ctx(), e.qp, cm.Param{}, make([]byte, 57)); !errors.Is(err, syscall.EINVAL) {
		w.Errorf("57 bytes of private data: got %v, want EINVAL", err)
	}
	w.must(c.Close())
}
