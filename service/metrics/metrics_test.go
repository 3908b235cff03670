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
	"sync/atomic"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/quota"
	"verbena/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// source is a service with one device and two users.
type source struct {
	asked  atomic.Int64
	single atomic.Bool // it was asked for what a single user holds
}

func (s *source) Stats(string) ([]ctl.StatInfo, error) {
	s.asked.Add(1)
	return []ctl.StatInfo{{Dev: "rxe0", Counters: map[string]uint64{"sent_pkts": 1 << 53, "drop_icrc": 3, "event_port_err": 4}}}, nil
}

func (s *source) Devs(sees func(quota.ID) bool) []ctl.DevInfo {
	n := 0
	for _, uid := range []int{1000, 1001} {
		if sees(quota.ID{UID: uid}) {
			n++
		}
	}
	return []ctl.DevInfo{{Name: "rxe0", State: "running", Device: "active", Hardware: "running", Contexts: n, Resets: 2, Recovery: 1500 * time.Millisecond}}
}

func (s *source) Users(sees func(quota.ID) bool) (list []ctl.UserInfo) {
	s.single.Store(sees(quota.ID{UID: 1000}))
	for _, uid := range []int{1000, 1001, -1} {
		if sees(quota.ID{UID: uid}) {
			list = append(list, ctl.UserInfo{UID: uid, Holds: []ctl.UsageInfo{{Kind: "qps", Held: 7, Limit: 2000}}})
		}
	}
	return list
}

func (s *source) Links() ([]ctl.LinkInfo, error) {
	return []ctl.LinkInfo{{Name: "rxe0", State: "ACTIVE"}, {Name: "rxe1\"\n{}", State: "DOWN"}}, nil
}

func get(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

// TestMetrics: the metrics are those of the service, in Prometheus' format, and say nothing of single users.
func TestMetrics(t *testing.T) {
	s := &source{}
	h := Handler(s, "verbena 1.2.3", slog.New(slog.DiscardHandler))
	code, text := get(t, h, "GET", "/metrics")
	if code != 200 {
		t.Fatalf("got %d: %s", code, text)
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
			t.Errorf("there is no %s", want)
		}
	}
	if s.single.Load() || regexp.MustCompile(`\b100[01]\b`).MatchString(text) {
		t.Error("there is something of a single user in it")
	}
	line := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_:]+ .*|[a-z_:]+(\{.*\})? [-+0-9.eInfNa]+)$`)
	for s := range strings.Lines(text) {
		if s = strings.TrimRight(s, "\n"); !line.MatchString(s) {
			t.Errorf("malformed: %s", s)
		}
	}
}

// TestRequests: nothing else is answered.
func TestRequests(t *testing.T) {
	h := Handler(&source{}, "x", slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/", 200}, {"HEAD", "/metrics", 200}, {"POST", "/metrics", 405}, {"DELETE", "/metrics", 405}, {"GET", "/debug/pprof/", 404},
		{"GET", "/metrics/x", 404}, {"CONNECT", "/x", 404}, {"GET", "/../../etc/passwd", 404},
	} {
		code, _ := get(t, h, c.method, c.path)
		if code != c.want && !(c.want == 404 && code >= 300 && code < 500) {
			t.Errorf("%s %s: got %d, want %d", c.method, c.path, code, c.want)
		}
	}
}

// TestOften: who asks all the time does not make the service work all the time.
func TestOften(t *testing.T) {
	s := &source{}
	h := Handler(s, "x", slog.New(slog.DiscardHandler))
	began := time.Now()
	for range 100 {
		get(t, h, "GET", "/metrics")
	}
	if n, most := s.asked.Load(), int64(time.Since(began)/fresh)+1; n > most {
		t.Errorf("the service was asked %d times, want at most %d", n, most)
	}
}

func serve(t *testing.T) net.Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- Serve(l, &source{}, "x", slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestHostileClients: clients that send nothing, or too much, end; those that come too many at a time wait.
func TestHostileClients(t *testing.T) {
	l := serve(t)
	huge := dial(t, l)
	go func() { // until the server has enough
		io.WriteString(huge, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
		for range 1 << 16 {
			if _, err := io.WriteString(huge, "X: "+strings.Repeat("y", 100)+"\r\n"); err != nil {
				return
			}
		}
	}()
	huge.SetReadDeadline(time.Now().Add(timeout))
	if line, err := bufio.NewReader(huge).ReadString('\n'); err == nil && !strings.Contains(line, "431") {
		t.Errorf("endless headers: got %q", line)
	}
	huge.Close()
	var idle []net.Conn
	for range maxConnections {
		idle = append(idle, dial(t, l))
	}
	time.Sleep(50 * time.Millisecond) // they are accepted
	late := dial(t, l)
	io.WriteString(late, "GET /metrics HTTP/1.0\r\n\r\n")
	late.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := late.Read(make([]byte, 1)); err == nil {
		t.Errorf("one connection too many: got %d bytes", n)
	}
	idle[0].Close()
	late.SetReadDeadline(time.Now().Add(timeout))
	b, err := io.ReadAll(late)
	if err != nil || !strings.Contains(string(b), "verbena_device_info") {
		t.Errorf("when there is room: got %d bytes, %v", len(b), err)
	}
	for _, c := range idle {
		c.Close()
	}
}

// TestEndsWhileFull: Serve ends with its listener, and closes its connections, also while there are as many as there may be.
func TestEndsWhileFull(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(l, &source{}, "x", slog.New(slog.DiscardHandler)) }()
	for range maxConnections { // answered once, and kept
		c := dial(t, l)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Serve: got %v, want none", err)
		}
	case <-time.After(timeout / 2): // when idle connections end
		t.Error("Serve has not returned")
	}
}

// TestListen: addresses that cannot be had are named.
func TestListen(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for addr, want := range map[string]string{
		"9401": "write HOST:PORT", l.Addr().String(): "choose another port", "192.0.2.77:1": "listen on 192.0.2.77", "127.0.0.1:x": "listen on",
	} {
		if _, err := Listen(addr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", addr, err, want)
		}
	}
}
