package rdmacm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/check"
	ibslot "verbena/ib/slot"
	"verbena/internal/leaktest"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/rdmacm/msg"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// testHost is a core with a device and a connection manager.
type testHost struct {
	t    *testing.T
	net  *simnet.Net
	addr netip.Addr
	core ib.Core
	slot *ibslot.Slot
	m    *Manager
}

func newHost(t *testing.T, network *simnet.Net, addr string, cfg Config) *testHost {
	h := &testHost{t: t, net: network, addr: netip.MustParseAddr(addr)}
	check.On(&h.core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
	h.plugAndOpenManager(cfg)
	return h
}

// plugAndOpenManager creates the device and the manager.
func (h *testHost) plugAndOpenManager(cfg Config) {
	rcfg := rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{h.addr}, Network: h.net, Fabric: &rxe.Fabric{},
		Rand: rand.New(rand.NewPCG(7, uint64(h.addr.As16()[15]))),
		Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true,
			MAC: []byte{2, 0, 0, 0, 0, h.addr.As16()[15]}},
	}
	h.slot = ibslot.New(&h.core, "rxe0", rxe.NewHardware(rcfg), nil)
	h.must(h.slot.Plug())
	cfg.Source = func(dst netip.Addr) (netip.Addr, error) {
		if dst.Is4() != h.addr.Is4() {
			return netip.Addr{}, syscall.ENETUNREACH
		}
		return h.addr, nil
	}
	var err error
	h.m, err = New(&h.core, cfg)
	h.must(err)
}

// entries returns the number of entries of all maps.
func (t *connectionTable) entries() int { return len(t.local) + len(t.byPeer) + len(t.byPeerQP) }

func (h *testHost) close() {
	h.m.Close()
	h.must(h.slot.Close())
	if n := len(h.m.ids) + h.m.conns.entries() + len(h.m.sidr) + len(h.m.services) + len(h.m.ports); n > 0 {
		h.t.Errorf("%v: got %d remaining entries, want 0: %+v", h.addr, n, h.m)
	}
}

func (h *testHost) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// withTwoHosts runs a test with two hosts in a bubble with virtual time.
func withTwoHosts(t *testing.T, rules []link.Rule, f func(t *testing.T, a, b *testHost)) {
	synctest.Test(t, func(t *testing.T) {
		network := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
		for _, r := range rules {
			if err := network.Faults().Add(r); err != nil {
				t.Fatal(err)
			}
		}
		a, b := newHost(t, network, "10.0.0.1", Config{}), newHost(t, network, "10.0.0.2", Config{})
		defer b.close()
		defer a.close()
		f(t, a, b)
	})
}

// eventLog collects the events of IDs.
type eventLog struct {
	mu     sync.Mutex
	events []Event
}

func (l *eventLog) recordEvent(_ *ID, e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.New != nil {
		e.New.SetEventFunc(l.recordEvent)
	}
	l.events = append(l.events, e)
}

// waitEvents waits for d, and returns the events.
func (l *eventLog) waitEvents(d time.Duration) []Event {
	testutil.AdvanceTime(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.events
	l.events = nil
	return e
}

func eventTypes(events []Event) string {
	var s []string
	for _, e := range events {
		x := e.Type.String()
		if e.Status != 0 {
			x += fmt.Sprintf(" %d", e.Status)
		}
		s = append(s, x)
	}
	return fmt.Sprint(s)
}

// eventTimeout is the virtual time that messages and their events take, also on the slowest device.
const eventTimeout = 5 * time.Millisecond

func (l *eventLog) expectEvents(t *testing.T, d time.Duration, want ...EventType) []Event {
	t.Helper()
	got := l.waitEvents(d)
	ok := len(got) == len(want)
	for i := range want {
		ok = ok && got[i].Type == want[i]
	}
	if !ok {
		t.Fatalf("events: got %v, want %v", eventTypes(got), want)
	}
	return got
}

func (h *testHost) newTestID(space msg.PortSpace, l *eventLog) *ID {
	h.t.Helper()
	id, err := h.m.NewID(Options{Space: space, Type: ib.QPTypeRC, Event: l.recordEvent})
	h.must(err)
	return id
}

// newListener returns a listener at a port.
func (h *testHost) newListener(space msg.PortSpace, port uint16, l *eventLog) *ID {
	h.t.Helper()
	id := h.newTestID(space, l)
	h.must(id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), port)))
	h.must(id.Listen(0))
	return id
}

// newResolvedID returns an ID with a route.
func (h *testHost) newResolvedID(space msg.PortSpace, to *testHost, port uint16, l *eventLog) *ID {
	h.t.Helper()
	id := h.newTestID(space, l)
	h.must(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(to.addr, port)))
	l.expectEvents(h.t, time.Millisecond, AddrResolved)
	h.must(id.ResolveRoute())
	l.expectEvents(h.t, time.Millisecond, RouteResolved)
	return id
}

const testPort = 7471

func padZeros(s string, n int) []byte { return append([]byte(s), make([]byte, n-len(s))...) }

// TestConnectReportsEventsOnBothSides follows a connection between two hosts from both sides.
func TestConnectReportsEventsOnBothSides(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		l := b.newListener(msg.PortSpaceTCP, testPort, &lb)
		c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
		if v := c.View(); v.Src.Addr() != a.addr || v.Src.Port() < 32768 || v.Dst != netip.AddrPortFrom(b.addr, testPort) ||
			v.SGID != ib.GIDFromAddr(a.addr) || v.DGID != ib.GIDFromAddr(b.addr) || !v.Routed || v.GUID == 0 {
			t.Errorf("ID: got %+v, want the addresses of both devices and a route", v)
		}
		a.must(c.Connect(Param{QPN: 0x123456, ResponderResources: 3, InitiatorDepth: 4, RetryCount: 5, RNRRetryCount: 6,
			SRQ: true}, []byte("hello")))
		_, sent, err := msg.Parse(c.conn.last.mad[:])
		a.must(err)
		req := lb.expectEvents(t, eventTimeout, ConnectRequest)[0]
		if want := (Param{QPN: 0x123456, ResponderResources: 4, InitiatorDepth: 3, RetryCount: 5, RNRRetryCount: 6,
			SRQ: true}); req.Param != want {
			t.Errorf("request: got %+v, want %+v", req.Param, want)
		}
		if !bytes.Equal(req.Data, padZeros("hello", msg.MaxREQData-msg.IPHeaderLen)) {
			t.Errorf("private data of the request: got %q, want \"hello\" with padding", req.Data)
		}
		s := req.New
		if v, w := s.View(), c.View(); v.Src != w.Dst || v.Dst != w.Src || v.SGID != w.DGID || v.DGID != w.SGID ||
			v.FlowLabel != w.FlowLabel {
			t.Errorf("sides: got\n%+v and\n%+v, want equal values", v, w)
		}
		b.must(s.Accept(Param{QPN: 0x654321, ResponderResources: 1, InitiatorDepth: 2, RNRRetryCount: 7}, []byte("welcome")))
		rep := la.expectEvents(t, eventTimeout, ConnectResponse)[0]
		if want := (Param{QPN: 0x654321, ResponderResources: 2, InitiatorDepth: 1, RNRRetryCount: 7}); rep.Param != want {
			t.Errorf("response: got %+v, want %+v", rep.Param, want)
		}
		if !bytes.Equal(rep.Data, padZeros("welcome", msg.MaxREPData)) {
			t.Errorf("private data of the response: got %q, want \"welcome\" with padding", rep.Data)
		}
		checkQPAttrs(t, c, s)
		// The starting PSN is the PSN of the packets that the sender of the message receives (IBA 12.7.31). Two
		// sides that both used it for sent packets would match each other, but not other implementations.
		if rtr, _, _ := c.QPAttr(ib.QPRTR); sent.(*msg.REQ).StartingPSN != rtr.RQPSN {
			t.Errorf("starting PSN: got %#x, want %#x", sent.(*msg.REQ).StartingPSN, rtr.RQPSN)
		}
		a.must(c.Complete())
		lb.expectEvents(t, eventTimeout, Established)
		la.expectEvents(t, time.Second)
		a.must(c.Disconnect())
		lb.expectEvents(t, eventTimeout, Disconnected)
		b.must(s.Disconnect())
		la.expectEvents(t, eventTimeout, Disconnected)
		la.expectEvents(t, 5*time.Second, TimewaitExit)
		lb.expectEvents(t, 0, TimewaitExit)
		for _, id := range []*ID{c, s, l} {
			id.Destroy()
		}
	})
}

// checkQPAttrs checks that the attributes of both sides connect their queue pairs to each other.
func checkQPAttrs(t *testing.T, c, s *ID) {
	t.Helper()
	var a, b [8]ib.QPAttr
	for _, to := range []ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS} {
		var ma, mb ib.QPAttrMask
		var err1, err2 error
		a[to], ma, err1 = c.QPAttr(to)
		b[to], mb, err2 = s.QPAttr(to)
		if err1 != nil || err2 != nil || ma != mb {
			t.Fatal(to, err1, err2, ma, mb)
		}
	}
	if a[ib.QPInit].AccessFlags&ib.AccessRemoteRead == 0 || a[ib.QPInit].Port != 1 {
		t.Errorf("attributes for INIT: got %+v, want remote read and port 1", a[ib.QPInit])
	}
	ra, rb := a[ib.QPRTR], b[ib.QPRTR]
	if ra.DestQPN != 0x654321 || rb.DestQPN != 0x123456 || ra.PathMTU != rb.PathMTU || ra.MaxDestRdAtomic != 2 ||
		rb.MaxDestRdAtomic != 1 {
		t.Errorf("attributes for RTR: got %+v and\n%+v, want the values of the request", ra, rb)
	}
	sa, sb := a[ib.QPRTS], b[ib.QPRTS]
	if ra.RQPSN != sb.SQPSN || rb.RQPSN != sa.SQPSN || sa.MaxRdAtomic != 1 || sb.MaxRdAtomic != 2 || sa.RetryCnt != 5 ||
		sb.RetryCnt != 5 ||
		sa.RNRRetry != 7 || sb.RNRRetry != 6 || sa.Timeout == 0 || sa.Timeout != sb.Timeout {
		t.Errorf("attributes for RTS: got %+v and\n%+v, want the values of the request", sa, sb)
	}
}

// TestRequestWaitsForNextListener checks that a request that arrives between two listeners of a program is passed to
// the second listener, unless the program ends before.
func TestRequestWaitsForNextListener(t *testing.T) {
	for _, c := range []struct {
		name               string
		lives              time.Duration // lifetime of the program
		asked, next, waits time.Duration // times after the end of the first listener
		want               EventType     // event on the active side
	}{
		{"soon", time.Hour, 0, 300 * time.Millisecond, 320 * time.Millisecond, ConnectResponse},
		{"on a busy machine", time.Hour, 1500 * time.Millisecond, 3 * time.Second, 3020 * time.Millisecond, ConnectResponse},
		{"never", time.Hour, time.Second, time.Hour, 4100 * time.Millisecond, Rejected},
		{"long after", time.Hour, 5 * time.Second, time.Hour, 5 * time.Second, Rejected},
		{"its program has ended", 0, 0, time.Hour, 0, Rejected},
		{"its program ends", 2 * time.Second, time.Second, time.Hour, 2 * time.Second, Rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
				var la, lb eventLog
				l := b.newListener(msg.PortSpaceTCP, testPort, &lb)
				id := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
				began := time.Now()
				l.opts.Listens = func() bool { return time.Since(began) < c.lives }
				l.Destroy()
				testutil.AdvanceTime(c.asked)
				a.must(id.Connect(Param{QPN: 1}, nil))
				var s *ID
				if c.next < time.Hour {
					testutil.AdvanceTime(c.next - c.asked)
					l = b.newListener(msg.PortSpaceTCP, testPort, &lb)
					s = lb.expectEvents(t, 50*time.Millisecond, ConnectRequest)[0].New
					b.must(s.Accept(Param{QPN: 2}, nil))
				}
				var got []Event
				for len(got) == 0 && time.Since(began) < 10*time.Second {
					got = la.waitEvents(time.Millisecond)
				}
				if d := time.Since(began); len(got) != 1 || got[0].Type != c.want || d > c.waits+100*time.Millisecond {
					t.Errorf("events: got %v after %v, want %v within %v", eventTypes(got), d, c.want, c.waits)
				}
				for _, id := range []*ID{id, s, l} {
					if id != nil {
						id.Destroy()
					}
				}
				testutil.AdvanceTime(time.Minute)
			})
		})
	}
}

// TestListenOnLoopbackListensEverywhere checks that an ID bound to 127.0.0.1, if no device has that address, listens on
// every address, as on Linux. Without NoLoopback the ID is bound to the first active device, and reports that device's
// address.
func TestListenOnLoopbackListensEverywhere(t *testing.T) {
	for _, c := range []struct {
		noLoopback bool
		want       string
	}{{false, "10.0.0.2:7471"}, {true, "127.0.0.1:7471"}} {
		t.Run(fmt.Sprintf("NoLoopback=%v", c.noLoopback), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
				a, b := newHost(t, network, "10.0.0.1", Config{}), newHost(t, network, "10.0.0.2", Config{NoLoopback: c.noLoopback})
				defer b.close()
				defer a.close()
				var la, lb eventLog
				l := b.newTestID(msg.PortSpaceTCP, &lb)
				b.must(l.Bind(netip.AddrPortFrom(localhostIPv4, testPort)))
				b.must(l.Listen(0))
				if got := l.View().Src.String(); got != c.want {
					t.Errorf("bound address: got %v, want %v", got, c.want)
				}
				if bound := l.Device() != nil; bound == c.noLoopback {
					t.Errorf("bound to a device: got %v, want %v", bound, !c.noLoopback)
				}
				other := b.newTestID(msg.PortSpaceTCP, &lb)
				if err := other.Bind(netip.AddrPortFrom(b.addr, testPort)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
					t.Errorf("bind the port of another address: got %v, want EADDRNOTAVAIL", err)
				}
				other.Destroy()
				id := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
				a.must(id.Connect(Param{QPN: 1}, nil))
				lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New.Destroy()
				la.expectEvents(t, eventTimeout, Rejected)
				id.Destroy()
				l.Destroy()
				testutil.AdvanceTime(time.Minute)
			})
		})
	}
}

// TestRefusedRequestReportsEvents checks the events of the active side for requests that fail.
func TestRefusedRequestReportsEvents(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		logAndRun(t, "nothing listens", func(t *testing.T) {
			c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
			a.must(c.Connect(Param{QPN: 1}, nil))
			if e := la.expectEvents(t, eventTimeout, Rejected)[0]; e.Status != int32(msg.ReasonInvalidServiceID) {
				t.Errorf("rejection: got %+v, want invalid service ID", e)
			}
			c.Destroy()
		})
		l := b.newListener(msg.PortSpaceTCP, testPort, &lb)
		logAndRun(t, "the listener rejects", func(t *testing.T) {
			c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
			a.must(c.Connect(Param{QPN: 1}, nil))
			s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
			b.must(s.Reject(msg.ReasonConsumer, []byte("no")))
			if e := la.expectEvents(t, eventTimeout, Rejected)[0]; e.Status != 28 || !bytes.Equal(e.Data, padZeros("no",
				msg.MaxREJData)) {
				t.Errorf("rejection: got %+v, want status 28 with \"no\" and padding", e)
			}
			s.Destroy()
			c.Destroy()
		})
		logAndRun(t, "the active side rejects the response", func(t *testing.T) {
			c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
			a.must(c.Connect(Param{QPN: 1}, nil))
			s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
			b.must(s.Accept(Param{QPN: 2}, nil))
			la.expectEvents(t, eventTimeout, ConnectResponse)
			a.must(c.Reject(msg.ReasonConsumer, nil))
			lb.expectEvents(t, eventTimeout, Rejected)
			s.Destroy()
			c.Destroy()
		})
		logAndRun(t, "the peer was removed", func(t *testing.T) {
			c := a.newResolvedID(msg.PortSpaceTCP, &testHost{addr: netip.MustParseAddr("10.0.0.9")}, testPort, &la)
			a.must(c.Connect(Param{QPN: 1}, nil))
			la.expectEvents(t, 60*time.Second)
			if e := la.expectEvents(t, 10*time.Second, Unreachable)[0]; e.Status != -int32(syscall.ETIMEDOUT) {
				t.Errorf("event: got %+v, want status ETIMEDOUT", e)
			}
			c.Destroy()
		})
		logAndRun(t, "the ID is destroyed", func(t *testing.T) {
			c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
			a.must(c.Connect(Param{QPN: 1}, nil))
			s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
			c.Destroy()
			lb.expectEvents(t, eventTimeout, Rejected)
			s.Destroy()
			c = a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
			a.must(c.Connect(Param{QPN: 1}, nil))
			s = lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
			asked := s.conn
			s.Destroy()
			la.expectEvents(t, eventTimeout, Rejected)
			_, sent, err := msg.Parse(asked.last.mad[:])
			a.must(err)
			// A kernel would not find the message that another REJ refers to.
			if rej := sent.(*msg.REJ); rej.Of != msg.OfREQ {
				t.Errorf("REJ: got %+v, want the rejection of a REQ", rej)
			}
			c.Destroy()
		})
		logAndRun(t, "the backlog is full", func(t *testing.T) {
			l.Destroy()
			l = b.newTestID(msg.PortSpaceTCP, &lb)
			b.must(l.Bind(netip.AddrPortFrom(b.addr, testPort)))
			b.must(l.Listen(1))
			c, d := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la), a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
			a.must(c.Connect(Param{QPN: 1}, nil))
			a.must(d.Connect(Param{QPN: 2}, nil))
			s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
			la.expectEvents(t, eventTimeout, Rejected)
			b.must(s.Accept(Param{QPN: 3}, nil))
			la.expectEvents(t, eventTimeout, ConnectResponse)
			for _, id := range []*ID{c, d, s} {
				id.Destroy()
			}
		})
		l.Destroy()
	})
}

// TestDatagramServiceReturnsQP checks that a request finds the queue pair of a datagram service.
func TestDatagramServiceReturnsQP(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		l := b.newListener(msg.PortSpaceUDP, testPort, &lb)
		c := a.newResolvedID(msg.PortSpaceUDP, b, testPort, &la)
		a.must(c.Connect(Param{}, []byte("who")))
		e := lb.expectEvents(t, eventTimeout, ConnectRequest)[0]
		if !bytes.Equal(e.Data, padZeros("who", 180)) {
			t.Errorf("private data: got %q, want \"who\" with padding", e.Data)
		}
		b.must(e.New.Accept(Param{QPN: 77}, []byte("me")))
		r := la.expectEvents(t, eventTimeout, Established)[0]
		if r.Param.QPN != 77 || r.Param.QKey != udpQKey || r.AH.GRH.DGID != ib.GIDFromAddr(b.addr) ||
			!bytes.Equal(r.Data, padZeros("me", msg.MaxSIDRREPData)) {
			t.Errorf("SIDR reply: got %+v, want \"me\" with padding", r)
		}
		d := a.newResolvedID(msg.PortSpaceUDP, b, testPort, &la)
		a.must(d.Connect(Param{}, nil))
		s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
		b.must(s.Reject(msg.ReasonConsumer, nil))
		if e := la.expectEvents(t, eventTimeout, Unreachable)[0]; e.Status != int32(msg.SIDRRejected) {
			t.Errorf("event: got %+v, want status SIDRRejected", e)
		}
		n := a.newResolvedID(msg.PortSpaceUDP, b, testPort+1, &la)
		a.must(n.Connect(Param{}, nil))
		if e := la.expectEvents(t, eventTimeout, Unreachable)[0]; e.Status != int32(msg.SIDRUnsupported) {
			t.Errorf("event: got %+v, want status SIDRUnsupported", e)
		}
		for _, id := range []*ID{c, d, n, s, e.New, l} {
			id.Destroy()
		}
	})
}

// respondingPeer replies at once, like a program.
type respondingPeer struct {
	eventLog
	t *testing.T
}

func (p *respondingPeer) respondToEvent(id *ID, e Event) {
	switch e.Type {
	case ConnectRequest:
		e.New.SetEventFunc(p.respondToEvent)
		if err := e.New.Accept(Param{QPN: e.Param.QPN}, nil); err != nil {
			p.t.Error(err)
		}
	case ConnectResponse:
		if err := id.Complete(); err != nil {
			p.t.Error(err)
		}
	case Disconnected:
		if err := id.Disconnect(); err != nil {
			p.t.Error(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

func (p *respondingPeer) expectCounts(want map[EventType]int) {
	p.t.Helper()
	got := map[EventType]int{}
	for _, e := range p.waitEvents(0) {
		got[e.Type]++
	}
	if !maps.Equal(got, want) {
		p.t.Fatalf("events: got %v, want %v", got, want)
	}
}

// TestConnectSurvivesPacketLoss makes and ends connections over a network that drops, duplicates and reorders messages.
func TestConnectSurvivesPacketLoss(t *testing.T) {
	withTwoHosts(t, []link.Rule{{Drop: 0.15, Duplicate: 0.1, Jitter: time.Second, Delay: time.Millisecond}},
		func(t *testing.T, a, b *testHost) {
			pa, pb := &respondingPeer{t: t}, &respondingPeer{t: t}
			l, err := b.m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, Event: pb.respondToEvent})
			b.must(err)
			b.must(l.Bind(netip.AddrPortFrom(b.addr, testPort)))
			b.must(l.Listen(0))
			n := testutil.FewerIfShort(500, 100)
			// An MRA answers a retransmitted REP while the program processes the first REP. If the RTU is lost, the
			// MRA makes the peer wait for over a minute.
			const enough = 20 * time.Minute
			var ids []*ID
			for i := range n {
				c, err := a.m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, Event: pa.respondToEvent})
				a.must(err)
				a.must(c.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(b.addr, testPort)))
				synctest.Wait()
				a.must(c.ResolveRoute())
				a.must(c.Connect(Param{QPN: uint32(i + 1)}, nil))
				ids = append(ids, c)
			}
			testutil.AdvanceTime(enough)
			passive := map[int]*ID{} // by the queue pair of the other side
			for _, e := range pb.events {
				if e.New != nil {
					passive[int(e.Param.QPN)] = e.New
					ids = append(ids, e.New)
				}
			}
			pa.expectCounts(map[EventType]int{AddrResolved: n, RouteResolved: n, ConnectResponse: n})
			pb.expectCounts(map[EventType]int{ConnectRequest: n, Established: n})
			for i, id := range ids[:n] {
				if i%2 == 0 {
					id = passive[i+1]
				}
				a.must(id.Disconnect())
			}
			testutil.AdvanceTime(enough)
			pa.expectCounts(map[EventType]int{Disconnected: n, TimewaitExit: n})
			pb.expectCounts(map[EventType]int{Disconnected: n, TimewaitExit: n})
			for _, id := range append(ids, l) {
				id.Destroy()
			}
		})
}

// logAndRun runs a part of a test in a bubble, in which subtests are not allowed.
func logAndRun(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Log(name)
	f(t)
}

// TestOwnerCannotExtendEndedConnection checks that the owner of an ended connection cannot determine how long it is
// kept, and that the number of kept connections is limited.
func TestOwnerCannotExtendEndedConnection(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var la, lb eventLog
		b.newListener(msg.PortSpaceTCP, testPort, &lb)
		over := func() {
			c := a.newResolvedID(msg.PortSpaceTCP, b, testPort, &la)
			a.must(c.SetOption(ACKTimeout, 31)) // 2.4 hours
			a.must(c.Connect(Param{QPN: 0x123456}, nil))
			s := lb.expectEvents(t, eventTimeout, ConnectRequest)[0].New
			b.must(s.Accept(Param{QPN: 0x654321}, nil))
			la.expectEvents(t, eventTimeout, ConnectResponse)
			a.must(c.Complete())
			lb.expectEvents(t, eventTimeout, Established)
			c.Destroy()
			lb.expectEvents(t, eventTimeout, Disconnected)
			b.must(s.Disconnect())
			s.Destroy()
			testutil.AdvanceTime(time.Millisecond)
		}
		remembered := func(what string, want int) {
			t.Helper()
			for _, h := range []*testHost{a, b} {
				h.m.mu.Lock()
				if n := len(h.m.conns.local); n != want {
					t.Errorf("%v: remembered connections: got %d %s, want %d", h.addr, n, what, want)
				}
				h.m.mu.Unlock()
			}
		}
		over()
		remembered("at first", 1)
		testutil.AdvanceTime(10 * time.Second)
		remembered("after ten seconds", 0)
		for _, h := range []*testHost{a, b} {
			h.m.mu.Lock()
			for i := range uint32(maxRemembered) {
				h.m.conns.local[i+1] = &connection{}
			}
			h.m.mu.Unlock()
		}
		over()
		remembered("with more than the limit", maxRemembered)
		for _, h := range []*testHost{a, b} {
			h.m.mu.Lock()
			clear(h.m.conns.local)
			h.m.mu.Unlock()
		}
	})
}

// TestRemovalIsReportedInCreationOrder checks that the removal of a device is reported to its IDs in creation order.
func TestRemovalIsReportedInCreationOrder(t *testing.T) {
	withTwoHosts(t, nil, func(t *testing.T, a, b *testHost) {
		var l eventLog
		var heard []*ID
		var ids []*ID
		for range 12 {
			id, err := a.m.NewID(Options{Space: msg.PortSpaceTCP, Type: ib.QPTypeRC, Event: func(id *ID, e Event) {
				if e.Type == DeviceRemoval {
					heard = append(heard, id)
				}
			}})
			a.must(err)
			a.must(id.Bind(netip.AddrPortFrom(a.addr, 0)))
			ids = append(ids, id)
		}
		a.must(a.slot.Unplug())
		l.waitEvents(time.Millisecond)
		if !slices.Equal(heard, ids) {
			t.Errorf("IDs with an event, in order: got %d, want %d", len(heard), len(ids))
		}
		for _, id := range ids {
			id.Destroy()
		}
	})
}
