package metrics

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/httplisten"
	"verbena/internal/leaktest"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeSource is a fake service with one device and two users.
type fakeSource struct {
	asked  atomic.Int64
	single atomic.Bool // set when a caller requests the resources of a single user
}

func (s *fakeSource) Stats(string) ([]ctl.StatInfo, error) {
	s.asked.Add(1)
	return []ctl.StatInfo{{Dev: "rxe0", Counters: map[string]uint64{"sent_pkts": 1 << 53, "drop_icrc": 3,
		"event_port_err": 4}}}, nil
}

func (s *fakeSource) Devs(sees func(quota.ID) bool) []ctl.DevInfo {
	n := 0
	for _, uid := range []int{1000, 1001} {
		if sees(quota.ID{UID: uid}) {
			n++
		}
	}
	return []ctl.DevInfo{{Name: "rxe0", State: "running", Device: "active", Hardware: "running", Contexts: n, Resets: 2,
		Recovery: 1500 * time.Millisecond}}
}

func (s *fakeSource) Users(sees func(quota.ID) bool) (list []ctl.UserInfo) {
	s.single.Store(sees(quota.ID{UID: 1000}))
	for _, uid := range []int{1000, 1001, -1} {
		if sees(quota.ID{UID: uid}) {
			list = append(list, ctl.UserInfo{UID: uid, Holds: []ctl.UsageInfo{{Kind: "qps", Held: 7, Limit: 2000}}})
		}
	}
	return list
}

func (s *fakeSource) Links() ([]ctl.LinkInfo, error) {
	return []ctl.LinkInfo{{Name: "rxe0", State: "ACTIVE"}, {Name: "rxe1\"\n{}", State: "DOWN"}}, nil
}

func serveRequest(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

// TestMetricsHideSingleUsers tests that the metrics are those of the service, in the exposition format of Prometheus,
// and reveal nothing about single users.
func TestMetricsHideSingleUsers(t *testing.T) {
	s := &fakeSource{}
	h := metricsHandler(s, "verbena 1.2.3", slog.New(slog.DiscardHandler))
	code, text := serveRequest(t, h, "GET", "/metrics")
	if code != 200 {
		t.Fatalf("GET /metrics: got status %d: %s", code, text)
	}
	for _, want := range []string{
		`verbena_build_info{version="verbena 1.2.3"} 1`,
		`verbena_device_info{device="rxe0",hardware="running",slot="running",state="active"} 1`,
		`verbena_device_sent_pkts_total{device="rxe0"} 9.007199254740992e+15`,
		`verbena_device_dropped_packets_total{device="rxe0",reason="icrc"} 3`,
		`verbena_device_events_total{device="rxe0",event="port_err"} 4`,
		`verbena_device_contexts{device="rxe0"} 2`,
		`verbena_device_resets_total{device="rxe0"} 2`,
		`verbena_device_recovery_seconds{device="rxe0"} 1.5`,
		`verbena_device_port_up{device="rxe0"} 1`,
		`verbena_device_port_up{device="rxe1\"\n{}"} 0`,
		`verbena_held{kind="qps"} 7`,
		`verbena_held_limit{kind="qps"} 2000`,
		`process_open_fds `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics: got no %s, want one", want)
		}
	}
	// The metrics of the runtime, such as allocations, may have any value.
	if s.single.Load() || regexp.MustCompile(`(?m)^verbena_.*\b100[01]\b`).MatchString(text) {
		t.Error("metrics: got data of a single user, want totals only")
	}
	line := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_:]+ .*|[a-z_:]+(\{.*\})? [-+0-9.eInfNa]+)$`)
	for s := range strings.Lines(text) {
		if s = strings.TrimRight(s, "\n"); !line.MatchString(s) {
			t.Errorf("line: got %s, want the form of the exposition format", s)
		}
	}
}

// TestHandlerRefusesOtherRequests tests that the handler refuses all requests other than GET and HEAD of /metrics.
func TestHandlerRefusesOtherRequests(t *testing.T) {
	h := metricsHandler(&fakeSource{}, "x", slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/", 200}, {"HEAD", "/metrics", 200}, {"POST", "/metrics", 405}, {"DELETE", "/metrics", 405}, {"GET",
			"/debug/pprof/", 404},
		{"GET", "/metrics/x", 404}, {"CONNECT", "/x", 404}, {"GET", "/../../etc/passwd", 404},
	} {
		code, _ := serveRequest(t, h, c.method, c.path)
		if code != c.want && !(c.want == 404 && code >= 300 && code < 500) {
			t.Errorf("%s %s: got %d, want %d", c.method, c.path, code, c.want)
		}
	}
}

// TestMetricsAreCached tests that frequent requests do not make the service gather its metrics each time.
func TestMetricsAreCached(t *testing.T) {
	s := &fakeSource{}
	h := metricsHandler(s, "x", slog.New(slog.DiscardHandler))
	began := time.Now()
	for range 100 {
		serveRequest(t, h, "GET", "/metrics")
	}
	if n, most := s.asked.Load(), int64(time.Since(began)/metricsCacheTime)+1; n > most {
		t.Errorf("computed answers: got %d, want at most %d", n, most)
	}
}

// TestForeignHostIsRefused tests that a page under a foreign name that resolves to this machine cannot read metrics,
// and that a server on the network answers under any name.
func TestForeignHostIsRefused(t *testing.T) {
	for _, c := range []struct {
		addr, host string
		status     int
	}{
		{"127.0.0.1:0", "127.0.0.1:9401", http.StatusOK}, {"127.0.0.1:0", "localhost", http.StatusOK},
		{"127.0.0.1:0", "[::1]:9401", http.StatusOK}, {"127.0.0.1:0", "evil.example", http.StatusForbidden},
		{"127.0.0.1:0", "a b", http.StatusForbidden}, {":0", "node1.example:9401", http.StatusOK},
	} {
		l, err := Listen(c.addr)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		checkHost(l, metricsHandler(&fakeSource{}, "x", slog.New(slog.DiscardHandler))).ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("server at %s asked as %s: got status %d, want %d", c.addr, c.host, w.Code, c.status)
		}
		l.Close()
	}
}

func startServer(t *testing.T) net.Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- Serve(l, &fakeSource{}, "x", slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v, want success", err)
		}
	})
	return l
}

func dialServer(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestHostileClientsAreDisconnected tests that the server closes the connection of a client that sends too much or too
// little.
func TestHostileClientsAreDisconnected(t *testing.T) {
	l := startServer(t)
	huge := dialServer(t, l)
	go func() { // until the server closes the connection
		io.WriteString(huge, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
		for range 1 << 16 {
			if _, err := io.WriteString(huge, "X: "+strings.Repeat("y", 100)+"\r\n"); err != nil {
				return
			}
		}
	}()
	huge.SetReadDeadline(time.Now().Add(timeout))
	if line, err := bufio.NewReader(huge).ReadString('\n'); err == nil && !strings.Contains(line, "431") {
		t.Errorf("endless headers: got %q, want status 431", line)
	}
	huge.Close()
	idle := dialServer(t, l)
	io.WriteString(idle, "GET /metrics HTTP/1.1\r\nHost:")
	began := time.Now()
	idle.SetReadDeadline(began.Add(timeout))
	if _, err := io.ReadAll(idle); err != nil || time.Since(began) > 2*httplisten.HeaderTimeout {
		t.Errorf("half a request: got %v after %v, want the end of the connection after %v", err, time.Since(began),
			httplisten.HeaderTimeout)
	}
}

// TestScrapeSucceedsUnderLoad tests that clients that hold and renew connections do not make a Prometheus scrape fail.
func TestScrapeSucceedsUnderLoad(t *testing.T) {
	for name, send := range map[string]func(net.Conn){
		"idle":         func(net.Conn) {},
		"half request": func(c net.Conn) { io.WriteString(c, "GET /metrics HTTP/1.1\r\nX:") },
		"slow reader": func(c net.Conn) {
			io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200))
		},
		"kept": func(c net.Conn) {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			c.Read(make([]byte, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := startServer(t)
			var connected atomic.Int64
			stop := make(chan struct{})
			var attackers sync.WaitGroup
			defer attackers.Wait()
			defer close(stop)
			for range httplisten.MaxConnections {
				attackers.Go(func() {
					for {
						c, err := net.Dial("tcp", l.Addr().String())
						if err != nil {
							return
						}
						connected.Add(1)
						send(c)
						ended := make(chan struct{})
						go func() { // until the server closes the connection
							defer close(ended)
							if name != "slow reader" {
								io.Copy(io.Discard, c)
								return
							}
							for range time.Tick(5 * time.Millisecond) {
								if _, err := c.Read(make([]byte, 1)); err != nil {
									return
								}
							}
						}()
						select {
						case <-ended:
						case <-stop:
						}
						c.Close()
						<-ended
						select {
						case <-stop:
							return
						case <-time.After(5 * time.Millisecond):
						}
					}
				})
			}
			testutil.Eventually(t, "the attackers to hold all connections", func() bool {
				return connected.Load() >= httplisten.MaxConnections
			})
			client := http.Client{Timeout: 2 * time.Second}
			defer client.CloseIdleConnections()
			for i := range 10 {
				r, err := client.Get("http://" + l.Addr().String() + "/metrics")
				if err != nil {
					t.Fatalf("scrape %d: got %v, want success", i, err)
				}
				b, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err != nil || r.StatusCode != 200 || !strings.Contains(string(b), "verbena_device_info") {
					t.Fatalf("scrape %d: got %s, %d bytes and error %v, want the metrics", i, r.Status, len(b), err)
				}
				client.CloseIdleConnections() // forces a new connection for the next scrape
			}
		})
	}
}

// TestServeEndsAtConnectionLimit tests that Serve ends with its listener and closes its connections, also at the limit
// of connections.
func TestServeEndsAtConnectionLimit(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(l, &fakeSource{}, "x", slog.New(slog.DiscardHandler)) }()
	for range httplisten.MaxConnections { // answered once and kept open
		c := dialServer(t, l)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Serve: got %v, want success", err)
		}
	case <-time.After(timeout / 2): // idle connections end after this time
		t.Error("Serve after the end of its listener: got no return, want one")
	}
}
