package rdmacm

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/completion"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/rdmacm/msg"
)

// testQP is a consumer's queue pair with a page of memory.
type testQP struct {
	t   *testing.T
	pd  *ib.PD
	cq  *completion.CQ
	qp  *completion.QP
	mr  *ib.MR
	buf []byte
	in  chan ib.WC
}

func newTestQP(t *testing.T, dev *ib.Device) *testQP {
	t.Helper()
	e := &testQP{t: t, buf: make([]byte, 4096), in: make(chan ib.WC, 8)}
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e.pd, err = dev.AllocPD()
	must(err)
	e.cq, err = completion.New(dev, completion.Init{Entries: 16, Context: completion.Callback})
	must(err)
	e.qp, err = e.cq.CreateQP(e.pd, ib.QPInitAttr{Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	must(err)
	e.mr, err = e.pd.RegBytes(e.buf, ib.AccessLocalWrite|ib.AccessRemoteRead|ib.AccessRemoteWrite)
	must(err)
	return e
}

func (e *testQP) close() {
	e.t.Helper()
	if err := errors.Join(e.qp.Destroy(), e.cq.Destroy(), e.mr.Dereg(), e.pd.Dealloc()); err != nil {
		e.t.Error(err)
	}
}

func (e *testQP) newSGL(n int) []ib.SGE {
	return []ib.SGE{{Addr: e.mr.Addr(), Length: uint32(n), LKey: e.mr.LKey()}}
}

func (e *testQP) postRecv() error {
	return e.qp.PostRecv(ib.RecvWR{SGList: e.newSGL(len(e.buf))}, func(wc *ib.WC) { e.in <- *wc })
}

func (e *testQP) sendText(s string) {
	e.t.Helper()
	copy(e.buf, s)
	done := make(chan ib.WC, 1)
	if err := e.qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: e.newSGL(len(s))},
		func(wc *ib.WC) { done <- *wc }); err != nil {
		e.t.Fatal(err)
	}
	if wc := <-done; wc.Status != ib.WCSuccess {
		e.t.Fatalf("status of the send: got %v, want success", wc.Status)
	}
}

func (e *testQP) expectText(want string) {
	e.t.Helper()
	wc := <-e.in
	if got := string(e.buf[:wc.ByteLen]); wc.Status != ib.WCSuccess || got != want {
		e.t.Errorf("receive: got status %v and %q, want success and %q", wc.Status, got, want)
	}
}

func testAddrPortOf(h *testHost) netip.AddrPort { return netip.AddrPortFrom(h.addr, testPort) }

var anyAddrPort = netip.AddrPortFrom(netip.IPv6Unspecified(), testPort)

// TestDialExchangesMessages connects consumers, exchanges messages, and disconnects.
func TestDialExchangesMessages(t *testing.T) {
	for name, rules := range map[string][]link.Rule{
		"a good network": nil,
		// The manager retransmits lost messages. The RTU may be lost until data arrive.
		"a bad network": {{Drop: 0.3, QP: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			withTwoHosts(t, rules, func(t *testing.T, a, b *testHost) {
				ctx := context.Background()
				l, err := b.m.Listen(anyAddrPort, 0)
				b.must(err)
				defer l.Close()
				if l.Addr().Port() != testPort {
					t.Errorf("listener: got %v, want port %d", l.Addr(), testPort)
				}
				served := make(chan struct{})
				go func() {
					defer close(served)
					r, err := l.Accept(ctx)
					b.must(err)
					if want := (Param{QPN: r.Param.QPN, ResponderResources: 3, InitiatorDepth: 2, RetryCount: 7}); r.Param != want {
						t.Errorf("request: got %+v, want %+v", r.Param, want)
					}
					if !bytes.Equal(r.Data, padZeros("knock", msg.MaxREQData-msg.IPHeaderLen)) || r.RemoteAddr().Addr() != a.addr {
						t.Errorf("request: got data %q from %v, want \"knock\" with padding from %v", r.Data,
							r.RemoteAddr(), a.addr)
					}
					e := newTestQP(t, r.Device())
					defer e.close()
					b.must(r.Init(e.qp.QP))
					b.must(e.postRecv())
					c, err := r.Accept(e.qp.QP, Param{ResponderResources: 1, InitiatorDepth: 2}, []byte("come in"))
					b.must(err)
					defer c.Close()
					if q, _, err := e.qp.Query(ib.QPAttrState | ib.QPAttrMaxDestRdAtomic | ib.QPAttrMaxRdAtomic | ib.QPAttrTimeout); err != nil || q.MaxDestRdAtomic != 1 || q.MaxRdAtomic != 2 {
						t.Errorf("queue pair: got READs %d and %d and error %v, want 1 and 2", q.MaxDestRdAtomic,
							q.MaxRdAtomic, err)
					}
					e.expectText("hello")
					c.Establish()
					if err := c.AwaitEstablished(ctx); err != nil {
						t.Error(err)
					}
					b.must(e.postRecv())
					e.sendText("good day")
					<-c.Done()
					if !errors.Is(c.Err(), errDisconnected) {
						t.Errorf("reason of the end: got %v, want ErrDisconnected", c.Err())
					}
				}()
				c, err := a.m.Resolve(ctx, Target{Addr: testAddrPortOf(b)})
				a.must(err)
				e := newTestQP(t, c.Device())
				a.must(c.Init(e.qp.QP))
				a.must(e.postRecv())
				p, data, err := c.Connect(ctx, e.qp.QP, Param{ResponderResources: 2, InitiatorDepth: 3, RetryCount: 7},
					[]byte("knock"))
				a.must(err)
				if want := (Param{QPN: p.QPN, ResponderResources: 2, InitiatorDepth: 1}); p != want {
					t.Errorf("response: got %+v, want %+v", p, want)
				}
				if !bytes.Equal(data, padZeros("come in", msg.MaxREPData)) || c.AwaitEstablished(ctx) != nil {
					t.Errorf("answer: got %q, want \"come in\" with padding", data)
				}
				if c.RemoteAddr() != testAddrPortOf(b) || c.LocalAddr().Addr() != a.addr {
					t.Errorf("connection: got %v to %v, want %v to %v", c.LocalAddr(), c.RemoteAddr(), a.addr, testAddrPortOf(b))
				}
				e.sendText("hello")
				a.must(e.postRecv())
				e.expectText("good day")
				select {
				case <-c.Done():
					t.Errorf("connection: got the end with %v, want an open connection", c.Err())
				default:
				}
				a.must(c.Disconnect())
				<-c.Done()
				<-served
				e.close()
				c.Close()
				if !errors.Is(c.Err(), errDisconnected) {
					t.Errorf("reason of the end: got %v, want ErrDisconnected", c.Err())
				}
			})
		})
	}
}

// TestFailedDialReturnsError checks the errors of failing connections.
func TestFailedDialReturnsError(t *testing.T) {
	ctx := context.Background()
	// dial connects to b, with ctx.
	dial := func(t *testing.T, ctx context.Context, a *testHost, to netip.AddrPort) error {
		c, err := a.m.Resolve(ctx, Target{Addr: to})
		if err != nil {
			return err
		}
		defer c.Close()
		e := newTestQP(t, c.Device())
		defer e.close()
		a.must(c.Init(e.qp.QP))
		_, _, err = c.Connect(ctx, e.qp.QP, Param{}, nil)
		return err
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, a, b *testHost) error
		is   error
		says string
	}{
		{"no listener", func(t *testing.T, a, b *testHost) error { return dial(t, ctx, a, testAddrPortOf(b)) },
			syscall.ECONNREFUSED, "no listener on the port"},
		{"no host at the address", func(t *testing.T, a, b *testHost) error {
			return dial(t, ctx, a, netip.MustParseAddrPort("10.0.0.9:7471"))
		}, syscall.ETIMEDOUT, "does not respond"},
		{"no route", func(t *testing.T, a, b *testHost) error {
			return dial(t, ctx, a, netip.MustParseAddrPort("[fd00::1]:7471"))
		},
			syscall.ENETUNREACH, ""},
		{"refused", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(anyAddrPort, 0)
			b.must(err)
			defer l.Close()
			go func() {
				r, err := l.Accept(ctx)
				b.must(err)
				r.Reject(bytes.Repeat([]byte("no"), 100))
			}()
			err = dial(t, ctx, a, testAddrPortOf(b))
			var no *RefusedError
			if !errors.As(err, &no) || no.Reason != msg.ReasonConsumer ||
				!bytes.Equal(no.Data, bytes.Repeat([]byte("no"), msg.MaxREJData/2)) {
				t.Errorf("rejection: got %+v, want \"no\" repeated in its data", no)
			}
			return err
		}, syscall.ECONNREFUSED, "the peer rejected"},
		{"the listener is closed", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(anyAddrPort, 0)
			b.must(err)
			time.AfterFunc(time.Second, l.Close)
			return dial(t, ctx, a, testAddrPortOf(b))
		}, syscall.ECONNREFUSED, ""},
		{"the backlog is full", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(anyAddrPort, 1)
			b.must(err)
			defer l.Close()
			first := make(chan error)
			short, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			go func() { first <- dial(t, short, a, testAddrPortOf(b)) }()
			testutil.AdvanceTime(time.Second)
			err = dial(t, ctx, a, testAddrPortOf(b))
			cancel()
			if err := <-first; !errors.Is(err, context.Canceled) {
				t.Errorf("first Dial: got %v, want context.Canceled", err)
			}
			return err
		}, syscall.ECONNREFUSED, ""},
		{"the request takes too long", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(anyAddrPort, 0)
			b.must(err)
			defer l.Close()
			late, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			err = dial(t, late, a, testAddrPortOf(b))
			r, e := l.Accept(ctx)
			b.must(e)
			testutil.AdvanceTime(time.Second)
			end := newTestQP(t, r.Device())
			defer end.close()
			if err := r.Init(end.qp.QP); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("Init for a cancelled request: got %v, want EINVAL", err)
			}
			if c, err := r.Accept(end.qp.QP, Param{}, nil); err == nil {
				t.Error("Accept of a cancelled request: got success, want an error")
				c.Close()
			}
			return err
		}, context.DeadlineExceeded, ""},
		{"the device is removed", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(anyAddrPort, 0)
			b.must(err)
			defer l.Close()
			c, err := a.m.Resolve(ctx, Target{Addr: testAddrPortOf(b)})
			a.must(err)
			defer c.Close()
			e := newTestQP(t, c.Device())
			a.must(c.Init(e.qp.QP))
			gone := make(chan struct{})
			remove := &ib.Client{Name: "consumer", Add: func(*ib.Device) (any, error) { return nil, nil },
				Remove: func(*ib.Device, any) { <-gone }}
			a.must(a.core.RegisterClient(remove))
			defer a.core.UnregisterClient(remove)
			time.AfterFunc(time.Second, func() { a.must(a.slot.Unplug()) })
			time.AfterFunc(2*time.Second, func() {
				e.close()
				close(gone)
			})
			_, _, err = c.Connect(ctx, e.qp.QP, Param{}, nil)
			<-gone
			if c.Device() != nil && c.Err() == nil {
				t.Error("Device after the removal: got a device, want nil")
			}
			return err
		}, syscall.ENODEV, "the device was removed"},
		{"on a device of another core", func(t *testing.T, a, b *testHost) error {
			_, err := a.m.Resolve(ctx, Target{Addr: testAddrPortOf(b), Device: b.core.Devices()[0]})
			return err
		}, syscall.ENODEV, ""},
		{"on a device without an address of the family", func(t *testing.T, a, b *testHost) error {
			_, err := a.m.Resolve(ctx, Target{Addr: netip.MustParseAddrPort("[fd00::1]:7471"), Device: a.core.Devices()[0]})
			return err
		}, syscall.EADDRNOTAVAIL, "no address to reach"},
		{"from an address of another host", func(t *testing.T, a, b *testHost) error {
			_, err := a.m.Resolve(ctx, Target{Addr: testAddrPortOf(b), Source: testAddrPortOf(b)})
			return err
		}, syscall.EADDRNOTAVAIL, ""},
		{"the manager is closed", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(anyAddrPort, 0)
			b.must(err)
			time.AfterFunc(time.Second, b.m.Close)
			if _, err := l.Accept(ctx); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("Accept: got %v, want ENODEV", err)
			}
			if _, err := b.m.Listen(anyAddrPort, 0); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("Listen: got %v, want ENODEV", err)
			}
			time.AfterFunc(time.Second, a.m.Close)
			c, err := a.m.Resolve(ctx, Target{Addr: testAddrPortOf(b)})
			a.must(err)
			<-c.Done()
			return c.Err()
		}, syscall.ENODEV, "the connection manager was closed"},
		{"the port is in use", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(testAddrPortOf(b), 0)
			b.must(err)
			defer l.Close()
			_, err = b.m.Listen(testAddrPortOf(b), 0)
			return err
		}, syscall.EADDRINUSE, "listen on"},
		{"the listener's device is removed", func(t *testing.T, a, b *testHost) error {
			l, err := b.m.Listen(testAddrPortOf(b), 0)
			b.must(err)
			defer l.Close()
			time.AfterFunc(time.Second, func() { b.must(b.slot.Unplug()) })
			_, err = l.Accept(ctx)
			return err
		}, syscall.ENODEV, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
				err := c.run(t, a, b)
				if !errors.Is(err, c.is) || err == nil || !bytes.Contains([]byte(err.Error()), []byte(c.says)) {
					t.Errorf("got %v, want %v and %q", err, c.is, c.says)
				}
			})
		})
	}
}

// TestListenerOutlivesDevice checks that a listener at an unspecified address outlives its device, and that a manager
// can connect after a reset.
func TestListenerOutlivesDevice(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		ctx := context.Background()
		l, err := b.m.Listen(anyAddrPort, 0)
		b.must(err)
		served := make(chan int)
		go func() {
			n := 0
			defer func() { served <- n }()
			for {
				r, err := l.Accept(ctx)
				if err != nil {
					return
				}
				e := newTestQP(t, r.Device())
				b.must(r.Init(e.qp.QP))
				c, err := r.Accept(e.qp.QP, Param{}, nil)
				b.must(err)
				if c.AwaitEstablished(ctx) == nil {
					n++
				}
				<-c.Done()
				e.close()
				c.Close()
			}
		}()
		for range 3 {
			c, err := a.m.Resolve(ctx, Target{Addr: testAddrPortOf(b), Device: a.core.Devices()[0], ACKTimeout: 14})
			a.must(err)
			e := newTestQP(t, c.Device())
			a.must(c.Init(e.qp.QP))
			_, _, err = c.Connect(ctx, e.qp.QP, Param{}, nil)
			a.must(err)
			if q, _, err := e.qp.Query(ib.QPAttrState | ib.QPAttrMaxDestRdAtomic | ib.QPAttrMaxRdAtomic | ib.QPAttrTimeout); err != nil || q.Timeout != 14 {
				t.Errorf("timeout: got %d and error %v, want 14", q.Timeout, err)
			}
			e.close()
			c.Close()
			testutil.AdvanceTime(time.Second)
			a.must(a.slot.Reset(ctx))
			b.must(b.slot.Reset(ctx))
		}
		l.Close()
		if n := <-served; n != 3 {
			t.Errorf("connections: got %d, want 3", n)
		}
		synctest.Wait()
	})
}
