package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"verbena/internal/leaktest"
	"verbena/verbs"
	"verbena/verbs/embed"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// openDevice opens a software device in this process.
func openDevice(t *testing.T) *verbs.Device {
	t.Helper()
	s, err := embed.NewSoftware()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	d, err := s.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// runBothSides runs a client and a server on one device, and returns the results of both sides.
func runBothSides(t *testing.T, d *verbs.Device, l LocalParams, client func(net.Conn) (*Result, error)) (c, s *Result,
	clientErr,
	serverErr error) {
	t.Helper()
	here, there := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, serverErr = Serve(t.Context(), d, there, l)
	}()
	c, clientErr = client(here)
	<-done
	return c, s, clientErr, serverErr
}

// TestExchangedMessagesArrive tests that the messages of each operation of each service arrive, are counted, and take a
// measurable time.
func TestExchangedMessagesArrive(t *testing.T) {
	d := openDevice(t)
	for name, x := range transportOps {
		for _, op := range x.ops {
			for _, events := range []bool{false, true} {
				if !events && op != Send { // the other operations share this polling code, and poll slowly in parallel tests
					continue
				}
				l := LocalParams{GIDIndex: -1, Events: events}
				p := Params{Type: name, Op: op, Size: 1000, Iters: 20}
				t.Run(fmt.Sprintf("pingpong/%s/%s/events=%v", name, op, events), func(t *testing.T) {
					c, s, err, serr := runBothSides(t, d, l, func(conn net.Conn) (*Result, error) {
						return PingPong(t.Context(), d, conn, p, l)
					})
					if err != nil || serr != nil {
						t.Fatalf("client: %v; server: %v", err, serr)
					}
					if r := c.RoundTrip; r.Messages != 20 || r.Times.Min <= 0 || r.Times.Max < r.Times.P50 ||
						countBucketEntries(r) != 20 {
						t.Errorf("RoundTrip: got %+v, want 20 messages with times", r)
					}
					if want := map[bool]int64{true: 20, false: -1}[p.consumesReceive(true)]; s.Received != want {
						t.Errorf("messages received by the server: got %d, want %d", s.Received, want)
					}
				})
				t.Run(fmt.Sprintf("perf/%s/%s/events=%v", name, op, events), func(t *testing.T) {
					p.QPs, p.Depth = 3, 8
					c, _, err, serr := runBothSides(t, d, l, func(conn net.Conn) (*Result, error) {
						return Perf(t.Context(), d, conn, p, both, l)
					})
					if err != nil || serr != nil {
						t.Fatalf("client: %v; server: %v", err, serr)
					}
					for _, r := range []*Phase{c.Latency, c.Bandwidth} {
						if r.Messages != 20 || r.MessagesPerSecond <= 0 || countBucketEntries(r) != 20 {
							t.Errorf("phase: got %+v, want 20 messages with times", r)
						}
					}
					switch {
					case op != Send && c.Received != -1:
						t.Errorf("messages received by the server: got %d, want -1", c.Received)
					case op == Send && name == "rc" && c.Received != 60: // warm-up, latency and bandwidth phases
						t.Errorf("messages received by the server: got %d, want 60", c.Received)
					}
				})
			}
		}
	}
}

func countBucketEntries(p *Phase) (n int64) {
	for _, b := range p.Times.Buckets {
		n += b.Count
	}
	return n
}

// TestPhaseLastsForDuration tests that a phase without a number of messages lasts for Params.Duration.
func TestPhaseLastsForDuration(t *testing.T) {
	d := openDevice(t)
	l := LocalParams{GIDIndex: -1}
	p := Params{Type: "rc", Op: Write, Size: 64, Duration: 30 * time.Millisecond, QPs: 2, Depth: 4}
	c, _, err, serr := runBothSides(t, d, l, func(conn net.Conn) (*Result, error) {
		return Perf(t.Context(), d, conn, p, bandwidth, l)
	})
	if err != nil || serr != nil {
		t.Fatalf("client: %v; server: %v", err, serr)
	}
	if c.Latency != nil || c.Bandwidth.Elapsed < p.Duration || c.Bandwidth.Messages < 8 {
		t.Errorf("Bandwidth: got %+v, want at least 8 messages in the whole duration", c.Bandwidth)
	}
	var b bytes.Buffer
	c.Bandwidth.Times.WriteHistogram(&b)
	if !strings.Contains(b.String(), "####") {
		t.Errorf("WriteHistogram: got %q, want bars", b.String())
	}
}

// TestCompatSidesExchangeMessages tests the protocol of rdma-core's programs between two sides of this package.
func TestCompatSidesExchangeMessages(t *testing.T) {
	d := openDevice(t)
	l := LocalParams{GIDIndex: -1}
	for _, name := range []string{"rc", "uc", "ud"} {
		p := Params{Type: name, Op: Send, Size: 1000, Iters: 20, MTU: 1024}
		here, there := net.Pipe()
		done := make(chan error, 1)
		go func() {
			r, err := CompatPingPong(t.Context(), d, there, false, p, l)
			if err == nil && r.Received != 20 {
				err = fmt.Errorf("received %d messages, want 20", r.Received)
			}
			done <- err
		}()
		r, err := CompatPingPong(t.Context(), d, here, true, p, l)
		if serr := <-done; err != nil || serr != nil || r.RoundTrip.Messages != 20 {
			t.Errorf("%s: client: %v; server: %v", name, err, serr)
		}
	}
}

// TestCompatAddressFormat tests that the text of an address has the format of rdma-core's programs.
func TestCompatAddressFormat(t *testing.T) {
	e := verbs.Endpoint{QPN: 0x11, PSN: 0xabcdef, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 127, 15: 1}}
	const want = "0000:000011:abcdef:00000000000000000000ffff7f000001\x00"
	if got := formatCompatAddress(e); string(got) != want || len(got) != compatSize {
		t.Errorf("formatCompatAddress: got %q, want %q", got, want)
	}
	e.QKey = verbs.DefaultQKey
	if got, err := parseCompatAddress([]byte(want)); err != nil || got != e {
		t.Errorf("parseCompatAddress: got %+v, %v, want %+v", got, err, e)
	}
	for _, bad := range []string{
		strings.Replace(want, "ffff7f000001", "000000000000", 1), strings.Replace(want, "ffff", "fxff",
			1), strings.Repeat("x", compatSize),
	} {
		if _, err := parseCompatAddress([]byte(bad)); err == nil {
			t.Errorf("%q: got success, want an error", bad)
		}
	}
}

// TestInvalidParamsAreRefused tests that parameters that are invalid or exceed the device's limits are refused, and
// that the error names the value.
func TestInvalidParamsAreRefused(t *testing.T) {
	d := openDevice(t)
	l := LocalParams{GIDIndex: -1}
	good := Params{Type: "rc", Op: Send, Size: 64, Iters: 1, QPs: 1, Depth: 1}
	for want, change := range map[string]func(*Params){
		`type "xc" is not rc`:             func(p *Params) { p.Type = "xc" },
		`type uc has no operation "read"`: func(p *Params) { p.Type, p.Op = "uc", Read },
		"size 0 ":                         func(p *Params) { p.Size = 0 },
		"qps 0 ":                          func(p *Params) { p.QPs = 0 },
		"depth 5000 ":                     func(p *Params) { p.Depth = 5000 },
		"exceeds the MTU of 4096 bytes":   func(p *Params) { p.Type, p.Size = "ud", 5000 },
		"mtu 1000 is not 256":             func(p *Params) { p.MTU = 1000 },
		"iters and duration are both 0":   func(p *Params) { p.Iters = 0 },
	} {
		p := good
		change(&p)
		_, _, err, _ := runBothSides(t, d, l,
			func(conn net.Conn) (*Result, error) { return Perf(t.Context(), d, conn, p, both, l) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("client: got %v, want %q in it", err, want)
		}
		// The server validates the parameters of its client.
		here, there := net.Pipe()
		go func() {
			defer here.Close()
			_ = json.NewEncoder(here).Encode(helloMessage{Protocol: protocolVersion, Kind: perf, Params: p,
				Ends: make([]verbs.Endpoint, max(p.QPs, 0))})
			_ = json.NewDecoder(here).Decode(&helloMessage{})
		}()
		if _, err := Serve(t.Context(), d, there, l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("server: got %v, want %q in it", err, want)
		}
	}
}

// TestExchangeEndsWhenPeerEnds tests that an end returns if its peer ends early or its own context ends.
func TestExchangeEndsWhenPeerEnds(t *testing.T) {
	d := openDevice(t)
	for _, events := range []bool{false, true} {
		l := LocalParams{GIDIndex: -1, Events: events}
		ctx, cancel := context.WithCancel(t.Context())
		p := Params{Type: "rc", Op: Send, Size: 64, Duration: time.Hour, QPs: 1, Depth: 4}
		time.AfterFunc(30*time.Millisecond, cancel)
		_, _, err, serr := runBothSides(t, d, l, func(conn net.Conn) (*Result, error) {
			return Perf(ctx, d, conn, p,
				latency, l)
		})
		if err == nil || serr == nil {
			t.Errorf("client: got %v; server: got %v, want errors", err, serr)
		}
		// The client closes the connection after it has connected.
		here, there := net.Pipe()
		go func() {
			s := newSession(t.Context(), here)
			if _, err := s.negotiateAsClient(d, perf, p, l); err != nil {
				t.Error(err)
			}
			s.notes = false
			if err := s.close(errPeerGone); !errors.Is(err, errPeerGone) {
				t.Error(err)
			}
		}()
		if _, err := Serve(t.Context(), d, there, l); !errors.Is(err, errPeerGone) {
			t.Errorf("server: got %v, want %v", err, errPeerGone)
		}
	}
}

// TestPeerReceivesReason tests that an end receives the reason for which its peer failed.
func TestPeerReceivesReason(t *testing.T) {
	d := openDevice(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	l := LocalParams{GIDIndex: -1, Progress: func(phase string, _ int64, _ time.Duration) {
		if phase == "latency" { // both ends begin to watch the stream only at this point
			cancel(errors.New("a reason\x1b[31m"))
		}
	}}
	p := Params{Type: "rc", Op: Write, Size: 64, Duration: time.Hour, QPs: 1, Depth: 4}
	_, _, err, serr := runBothSides(t, d, l, func(conn net.Conn) (*Result, error) {
		return Perf(ctx, d, conn, p, latency,
			l)
	})
	if errors.Is(err, ErrPeer) || !strings.Contains(fmt.Sprint(err), "a reason") {
		t.Errorf("client: got %v", err)
	}
	if !errors.Is(serr, ErrPeer) || !strings.HasSuffix(serr.Error(), ": a reason?[31m") {
		t.Errorf("server: got %q", serr)
	}
}

// firstReadHookConn calls first after the first read of the stream. A server that has answered is connected.
type firstReadHookConn struct {
	net.Conn
	first func()
}

func (a *firstReadHookConn) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	a.first()
	return n, err
}

// TestDeviceRemovalEndsExchange tests that each end returns soon after the removal of the server's device, even if no
// completion reports the removal.
func TestDeviceRemovalEndsExchange(t *testing.T) {
	open := func(addr string) (*embed.Stack, *verbs.Device) {
		s, err := embed.NewSoftware(embed.Software{Addr: netip.MustParseAddr(addr)})
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Open("")
		if err != nil {
			t.Fatal(err)
		}
		return s, d
	}
	stack, d := open("127.0.0.141")
	defer stack.Close()
	defer d.Close()
	for _, p := range []Params{
		{Type: "rc", Op: Send, Size: 64, Duration: time.Hour, QPs: 2, Depth: 4}, {Type: "uc", Op: Write, Size: 64,
			Duration: time.Hour, QPs: 2, Depth: 4},
		{Type: "ud", Op: Send, Size: 64, Duration: time.Hour, QPs: 1, Depth: 4},
	} {
		t.Run(p.Type, func(t *testing.T) {
			remote, far := open("127.0.0.142")
			defer far.Close()
			l := LocalParams{GIDIndex: -1}
			here, there := net.Pipe()
			server := make(chan error, 1)
			go func() {
				_, err := Serve(t.Context(), far, there, l)
				server <- err
			}()
			connected, removed := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(removed)
				<-connected
				time.Sleep(20 * time.Millisecond) // remove the device during the phase, or shortly before it
				remote.Close()
			}()
			_, err := Perf(t.Context(), d, &firstReadHookConn{Conn: here, first: sync.OnceFunc(func() {
				close(connected)
			})}, p, latency, l)
			<-removed
			if serr := <-server; serr == nil || !strings.Contains(serr.Error(), "rxe0 was reset or removed") {
				t.Errorf("server: got %v", serr)
			}
			if err == nil {
				t.Errorf("client: got success, want an error")
			}
		})
	}
}

// TestRdmaCorePeerErrorNamesRemedy tests that the error names the remedy if the peer is one of rdma-core's programs.
func TestRdmaCorePeerErrorNamesRemedy(t *testing.T) {
	d := openDevice(t)
	l := LocalParams{GIDIndex: -1}
	here, there := net.Pipe()
	go func() {
		defer here.Close()
		_, _ = here.Write(formatCompatAddress(verbs.Endpoint{QPN: 1}))
	}()
	if _, err := Serve(t.Context(), d, there, l); !errors.Is(err, errForeign) ||
		!strings.Contains(err.Error(), "--compat") {
		t.Errorf("Serve: got %v, want %v and the remedy", err, errForeign)
	}
}
