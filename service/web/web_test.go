package web

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/internal/leaktest"
	"verbena/internal/qpinfo"
	"verbena/scenario"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var update = flag.Bool("update", false, "write testdata/commands.txt anew")

const testToken = "0123456789abcdef0123456789abcdef"

// fakeSource is a fake service. It records requests other than those for a state.
type fakeSource struct {
	mu     sync.Mutex
	states int // number of states
	asked  []ctl.Request
	err    error // answer to recorded requests
	name   string
}

func (s *fakeSource) Do(r *ctl.Request) (*ctl.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Op {
	case ctl.OpDevShow:
		s.states++
		return &ctl.Response{Devs: []ctl.DevInfo{{Name: "rxe0", State: "running", Device: "active",
			Hardware: "running"}}}, nil
	case ctl.OpLinkShow, ctl.OpStatShow:
		return &ctl.Response{}, nil
	case ctl.OpResShow:
		return &ctl.Response{Contexts: []ctl.ContextInfo{{Device: "rxe0", PID: 42, Process: s.name,
			QPs: []ctl.QPInfo{{Num: 17}}}, {Device: "rxe0", PID: 41, Zombie: true, QPs: []ctl.QPInfo{{Num: 17}}}}}, nil
	case ctl.OpQPShow:
		return &ctl.Response{QPs: []ctl.QPStatusInfo{{Device: "rxe0", Status: qpinfo.Status{Num: 17, Type: "RC"}}}}, nil
	case ctl.OpFaultShow:
		return &ctl.Response{Faults: []ctl.FaultRuleState{{ID: 3, Dev: "rxe0", Rule: fault.Rule{Drop: 0.5}},
			{ID: 4, Verb: &fault.VerbRule{Verb: "create_cq", Errno: "ENOMEM", Process: s.name}}}}, nil
	}
	s.asked = append(s.asked, *r)
	resp := &ctl.Response{ID: 7}
	if r.Op == ctl.OpQPTrace {
		resp.Trace = &ctl.QPTraceInfo{Device: "rxe0", Num: r.Trace.Num, Began: !r.Trace.End}
	}
	return resp, s.err
}

func (s *fakeSource) requests() []ctl.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func newTestPage(s Source) *page {
	return newPage(testToken, &Options{Source: s, Version: "verbena test", Log: slog.New(slog.DiscardHandler)})
}

// request is a request to a page, with the headers of a browser unless changed.
type request struct {
	method, path, host, origin, site, contentType, body string
}

func (r request) do(p http.Handler) *httptest.ResponseRecorder {
	x := httptest.NewRequest(r.method, "/", strings.NewReader(r.body))
	x.URL.Path, x.Host = r.path, r.host
	for name, v := range map[string]string{"Origin": r.origin, "Sec-Fetch-Site": r.site, "Content-Type": r.contentType} {
		if v != "" {
			x.Header.Set(name, v)
		}
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, x)
	return w
}

func getRequest(path string) request {
	return request{method: "GET", path: "/" + testToken + path, host: "127.0.0.1:9402"}
}

func postRequest(body string) request {
	return request{method: "POST", path: "/" + testToken + "/do", host: "127.0.0.1:9402", origin: "http://127.0.0.1:9402",
		site: "same-origin", contentType: "application/json", body: body}
}

// TestHostileRequestsGetAnError tests that requests without the token, from other pages, or with malformed content get
// an error, and do not reach the service.
func TestHostileRequestsGetAnError(t *testing.T) {
	reset := `{"action":"reset","args":{"name":"rxe0"}}`
	get := func(change func(*request)) request { r := getRequest("/"); change(&r); return r }
	post := func(change func(*request)) request { r := postRequest(reset); change(&r); return r }
	body := func(text string) request { return post(func(r *request) { r.body = text }) }
	action := func(name, args string) request { return body(`{"action":"` + name + `","args":{` + args + `}}`) }
	for name, c := range map[string]struct {
		request
		want int
	}{
		"no token":                   {get(func(r *request) { r.path = "/" }), 403},
		"empty token":                {get(func(r *request) { r.path = "//" }), 403},
		"wrong token":                {get(func(r *request) { r.path = "/" + strings.Repeat("0", 32) + "/" }), 403},
		"beginning of the token":     {get(func(r *request) { r.path = "/" + testToken[:31] + "/" }), 403},
		"token and more":             {get(func(r *request) { r.path = "/" + testToken + "0/" }), 403},
		"token in upper case":        {get(func(r *request) { r.path = "/" + strings.ToUpper(testToken) + "/" }), 403},
		"token as a parameter":       {get(func(r *request) { r.path = "/events?token=" + testToken }), 403},
		"file without a token":       {get(func(r *request) { r.path = "/app.js" }), 403},
		"action without a token":     {post(func(r *request) { r.path = "/do" }), 403},
		"other name (DNS rebinding)": {get(func(r *request) { r.host = "evil.example:9402" }), 403},
		"name like an address":       {get(func(r *request) { r.host = "127.0.0.1.evil.example" }), 403},
		"malformed host":             {get(func(r *request) { r.host = "127.0.0.1:9402/@evil.example" }), 403},
		"no host":                    {get(func(r *request) { r.host = "" }), 403},
		"other origin":               {post(func(r *request) { r.origin = "http://evil.example" }), 403},
		"origin of another port":     {post(func(r *request) { r.origin = "http://127.0.0.1:80" }), 403},
		"no origin":                  {post(func(r *request) { r.origin = "" }), 403},
		"null origin":                {post(func(r *request) { r.origin = "null" }), 403},
		"other site":                 {post(func(r *request) { r.site = "cross-site" }), 403},
		"other site reads":           {get(func(r *request) { r.site = "cross-site" }), 403},
		"action by GET":              {get(func(r *request) { r.path += "do" }), 405},
		"action by PUT":              {post(func(r *request) { r.method = "PUT" }), 405},
		"POST of a file":             {post(func(r *request) { r.path = "/" + testToken + "/" }), 405},
		"POST of the state":          {post(func(r *request) { r.path = "/" + testToken + "/events" }), 405},
		"path out of the files":      {get(func(r *request) { r.path += "../web.go" }), 404},
		"absolute path":              {get(func(r *request) { r.path += "/etc/passwd" }), 404},
		"folder":                     {get(func(r *request) { r.path += "assets" }), 404},
		"name with a NUL":            {get(func(r *request) { r.path += "app.js\x00" }), 404},
		"form":                       {post(func(r *request) { r.contentType = "text/plain" }), 415},
		"no content":                 {body(""), 400},
		"not JSON":                   {body("action=reset"), 400},
		"two actions":                {post(func(r *request) { r.body += reset }), 400},
		"unknown field":              {post(func(r *request) { r.body = `{"op":"stop"}` }), 400},
		"large content":              {action(strings.Repeat("x", maxBody), ""), 400},
		"deep content":               {body(strings.Repeat("[", 8000)), 400},
		"unknown action":             {action("stop", ""), 422},
		"argument of another action": {action("reset", `"name":"rxe0","drop":"1"`), 422},
		"flag as a value":            {action("reset", `"name":"--at-wr=1"`), 422},
		"control character":          {action("reset", `"name":"rxe0\u001b[2J"`), 422},
		"long value":                 {action("reset", `"name":"`+strings.Repeat("r", 200)+`"`), 422},
		"share above 1":              {action("fault", `"dev":"rxe0","drop":"200%"`), 422},
		"share that is no number":    {action("fault", `"dev":"rxe0","drop":"NaN"`), 422},
		"negative time":              {action("reset", `"name":"rxe0","unreachable":"0s"`), 422},
		"large number":               {action("clear", `"id":"99999999999999999999"`), 422},
		"no device":                  {action("unplug", ""), 422},
	} {
		s := &fakeSource{}
		w := c.request.do(newTestPage(s))
		if w.Code != c.want || len(s.requests()) > 0 || s.states > 0 {
			t.Errorf("%s: got status %d and %d requests to the service, want status %d and none", name, w.Code,
				len(s.requests())+s.states, c.want)
		}
		text := w.Body.String()
		if c.want == 403 && (strings.Contains(text, testToken) || strings.Contains(text, "<") || len(text) > 200) {
			t.Errorf("%s: got the answer %q, want one line", name, text)
		}
		if w.Header().Get("Content-Security-Policy") == "" || w.Header().Get("Set-Cookie") != "" {
			t.Errorf("%s: got headers %v, want a policy and no cookie", name, w.Header())
		}
	}
}

// TestPageServesItsFiles tests the files of the page, under each host that a user may write.
func TestPageServesItsFiles(t *testing.T) {
	p := newTestPage(&fakeSource{})
	for path, kind := range files {
		for _, host := range []string{"127.0.0.1:9402", "localhost:1234", "LOCALHOST", "[::1]:9402", "10.0.0.7"} {
			r := getRequest("/" + path)
			r.host = host
			w := r.do(p)
			if w.Code != 200 || w.Header().Get("Content-Type") != kind || w.Body.Len() < 100 {
				t.Errorf("%q of %s: got status %d, type %s and %d bytes, want a file of type %s", path, host, w.Code,
					w.Header().Get("Content-Type"), w.Body.Len(), kind)
			}
		}
	}
	if w := getRequest("").do(p); w.Code != 308 || w.Header().Get("Location") != "/"+testToken+"/" {
		t.Errorf("address without its last slash: got status %d to %q, want a redirection", w.Code,
			w.Header().Get("Location"))
	}
}

// TestFilesContainNoUnsafeCode tests that the page has no script or style in its markup, which its policy forbids, that
// its script never makes markup from text, and that no file refers to another server.
func TestFilesContainNoUnsafeCode(t *testing.T) {
	for name, words := range map[string][]string{
		"app.js": {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser",
			"createContextualFragment", "setAttribute(\"on", "</script"},
		"index.html": {"<style", " onclick", " onload", "javascript:", " style="},
		"style.css":  {"@import", "url(", "</style"},
	} {
		text := string(readAsset(name))
		for _, word := range append(words, "https://", "//cdn") {
			if strings.Contains(text, word) {
				t.Errorf("%s: got %q, want a file without", name, word)
			}
		}
		if n := strings.Count(text, "http://"); n > strings.Count(text, "http://www.w3.org/2000/svg") {
			t.Errorf("%s: got an address of another server", name)
		}
	}
}

// TestActionsShowAndSendTheirCommand tests that an action is checked without effect when dry, and otherwise becomes one
// request to the service. testdata/commands.txt has the commands with their requests. A test of cmd/verbena compares
// them with the requests of the command line.
func TestActionsShowAndSendTheirCommand(t *testing.T) {
	var lines strings.Builder
	for _, c := range []struct {
		action  string
		args    map[string]string
		command string
		want    ctl.Request
	}{
		{"link", map[string]string{"name": "rxe1", "state": "flap=2s"}, "verbena link set rxe1 flap=2s",
			ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: "rxe1", State: ctl.LinkFlap, Down: 2 * time.Second}}},
		{"link", map[string]string{"name": "rxe1", "rate": "10Gbit", "delay": "20us", "ecn-threshold": "64KB"},
			"verbena link set rxe1 --rate=10Gbit --delay=20us --ecn-threshold=64KB",
			ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: "rxe1",
				Shape: &fault.Shape{Rate: 10e9, Delay: 20 * time.Microsecond, ECN: 64 << 10}}}},
		{"link", map[string]string{"name": "rxe1", "delay": "0s"}, "verbena link set rxe1 --delay=0s",
			ctl.Request{Op: ctl.OpLinkSet, Set: &ctl.LinkSet{Name: "rxe1", Shape: &fault.Shape{}}}},
		{"reset", map[string]string{"name": "rxe0", "unreachable": "2s", "no-flush": "true"},
			"verbena dev reset rxe0 --unreachable=2s --no-flush",
			ctl.Request{Op: ctl.OpDevReset, Reset: &ctl.DevReset{Name: "rxe0", Unreachable: true, Outage: 2 * time.Second,
				NoFlush: true}}},
		{"unplug", map[string]string{"name": "rxe0"}, "verbena dev unplug rxe0",
			ctl.Request{Op: ctl.OpDevUnplug, Name: "rxe0"}},
		{"fault", map[string]string{"dev": "rxe0", "drop": "1%", "qp": "17", "peer": "10.0.0.2", "jitter": "1ms"},
			"verbena fault add --dev=rxe0 --peer=10.0.0.2 --qp=17 --drop=1% --jitter=1ms",
			ctl.Request{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{Drop: 0.01, QP: 17,
				Peer: netip.MustParseAddr("10.0.0.2"), Jitter: time.Millisecond}}}},
		{"fault", map[string]string{"dev": "rxe0", "stop": "true", "skip": ""}, "verbena fault add --dev=rxe0 --stop",
			ctl.Request{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Dev: "rxe0", Rule: fault.Rule{Stop: true}}}},
		{"verb", map[string]string{"verb": "create_cq", "errno": "ENOMEM", "nth": "2", "process": "it's"},
			`verbena fault add --verb=create_cq --errno=ENOMEM --process='it'\''s' --nth=2`,
			ctl.Request{Op: ctl.OpFaultAdd, Fault: &ctl.FaultRule{Verb: &fault.VerbRule{Verb: "create_cq", Errno: "ENOMEM",
				Process: "it's", Nth: 2, Times: 1}}}},
		{"clear", map[string]string{"id": "3"}, "verbena fault clear 3", ctl.Request{Op: ctl.OpFaultClear, ID: 3}},
		{"clear", map[string]string{"dev": "rxe0"}, "verbena fault clear --dev=rxe0",
			ctl.Request{Op: ctl.OpFaultClear, Name: "rxe0"}},
		{"plug", map[string]string{"name": "rxe0"}, "verbena dev plug rxe0", ctl.Request{Op: ctl.OpDevPlug, Name: "rxe0"}},
		{"hang", map[string]string{"name": "rxe0"}, "verbena dev hang rxe0", ctl.Request{Op: ctl.OpDevHang, Name: "rxe0"}},
	} {
		js, err := json.Marshal(&c.want)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%s\n%s\n", c.command, js)
		s := &fakeSource{}
		p := newTestPage(s)
		a := p.doAction(&actionRequest{Action: c.action, Args: c.args, Dry: true})
		if a.Command != c.command || a.Error != "" || len(s.requests()) > 0 {
			t.Errorf("%s %v, dry: got %+v and requests %v, want the command %s alone", c.action, c.args, a, s.requests(),
				c.command)
		}
		a = p.doAction(&actionRequest{Action: c.action, Args: c.args})
		if got := s.requests(); a.Error != "" || a.ID != 7 || len(got) != 1 || !reflect.DeepEqual(got[0], c.want) {
			t.Errorf("%s: got %+v and the requests %+v, want %s", c.command, a, got, js)
		}
	}
	const file = "testdata/commands.txt"
	if *update {
		if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || lines.String() != string(want) {
		t.Errorf("%s: got error %v and other commands than\n%s\n(go test ./service/web -update rewrites the file)", file, err,
			&lines)
	}
	s := &fakeSource{err: fmt.Errorf("dev reset rxe0: \u202etxet: %w", syscall.EBUSY)}
	w := postRequest(`{"action":"reset","args":{"name":"rxe0"}}`).do(newTestPage(s))
	if text := w.Body.String(); w.Code != 422 || !strings.Contains(text, "?txet") ||
		!strings.Contains(text, "verbena dev reset rxe0") {
		t.Errorf("refused action: got status %d and %s, want the reason and the command", w.Code, w.Body)
	}
}

// TestStateNamesOwners tests that a state names the program of each queue pair, and that names have only printable
// characters.
func TestStateNamesOwners(t *testing.T) {
	var s state
	p := newTestPage(&fakeSource{name: "a\u202eb\x1b<script>"})
	p.Causes = func() []Cause { return nil }
	if err := json.Unmarshal(p.takeState(), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.QPs) != 1 || s.QPs[0].PID != 42 || s.QPs[0].Program != "a?b?<script>" || s.Causes == nil {
		t.Errorf("state: got %+v, want QP 17 of process 42", s)
	}
	if len(s.Faults) != 2 || s.Faults[0].Text != "drop 0.5" ||
		!strings.Contains(s.Faults[1].Text, "process a?b?<script>") {
		t.Errorf("fault rules: got %+v, want a rule for packets and one for a verb", s.Faults)
	}
}

// TestStreamTakesStatesForOpenPages tests, on virtual time, that pages ask the service only while they are open, and
// once for all of them.
func TestStreamTakesStatesForOpenPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeSource{}
		p := newTestPage(s)
		states := func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.states }
		time.Sleep(time.Hour)
		if n := states(); n != 0 {
			t.Errorf("states without a page: got %d, want 0", n)
		}
		var leave []func()
		for i := range maxStreams {
			m, l, ok := p.stream.join()
			if !ok {
				t.Fatalf("page %d: got a refusal, want success", i)
			}
			leave = append(leave, l)
			if i == 0 {
				<-m
			}
		}
		if _, _, ok := p.stream.join(); ok {
			t.Error("page beyond the limit: got success, want a refusal")
		}
		time.Sleep(time.Second) // the other pages have joined
		before := states()
		time.Sleep(10 * time.Second)
		if n := states() - before; n < 9 || n > 11 {
			t.Errorf("states in 10 s with %d pages: got %d, want 10", maxStreams, n)
		}
		p.doAction(&actionRequest{Action: "trace", Args: map[string]string{"qpn": "17", "dev": "rxe0"}})
		time.Sleep(traceLease + 2*refreshInterval)
		last := s.requests()[len(s.requests())-1]
		if last.Op != ctl.OpQPTrace || *last.Trace != (ctl.QPTrace{Dev: "rxe0", Num: 17, End: true}) {
			t.Errorf("request after a trace is no longer read: got %+v, want the end of the trace", last)
		}
		p.doAction(&actionRequest{Action: "trace", Args: map[string]string{"qpn": "18", "dev": "rxe0"}})
		before = states()
		p.doAction(&actionRequest{Action: "plug", Args: map[string]string{"name": "rxe0"}})
		time.Sleep(2 * minRefresh)
		if n := states() - before; n != 1 {
			t.Errorf("states after an action: got %d, want 1", n)
		}
		for _, l := range leave {
			l()
		}
		synctest.Wait()
		before = states()
		time.Sleep(time.Hour)
		if n := states() - before; n != 0 {
			t.Errorf("states after the last page: got %d, want 0", n)
		}
		last = s.requests()[len(s.requests())-1]
		if last.Op != ctl.OpQPTrace || *last.Trace != (ctl.QPTrace{Dev: "rxe0", Num: 18, End: true}) {
			t.Errorf("last request: got %+v, want the end of the trace of QP 18", last)
		}
	})
}

// TestServeSendsEvents tests the messages of a stream over TCP, the limit of streams, and that Serve ends with its
// listener while streams are open.
func TestServeSendsEvents(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() || len(l.token) != 32 {
		t.Errorf("listener: got %s, want a local address and 32 digits", l.URL())
	}
	served := make(chan error, 1)
	go func() { served <- Serve(l, Options{Source: &fakeSource{}}) }()
	client := &http.Client{Timeout: 20 * time.Second}
	var streams []io.Closer
	for range maxStreams {
		r, err := client.Get(l.URL() + "events")
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, r.Body)
		in := bufio.NewScanner(r.Body)
		var data []string
		for len(data) < 2 && in.Scan() {
			if text, ok := strings.CutPrefix(in.Text(), "data: "); ok {
				data = append(data, text)
			}
		}
		if len(data) < 2 || !strings.Contains(data[0], `"fault add"`) || !strings.Contains(data[1], `"rxe0"`) {
			t.Fatalf("stream: got %q and error %v, want the actions and a state", data, in.Err())
		}
	}
	r, err := client.Get(l.URL() + "events")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("stream beyond the limit: got %s, want 503", r.Status)
	}
	l.Close()
	if err := <-served; err != nil {
		t.Errorf("Serve: got %v, want success", err)
	}
	for _, s := range streams {
		s.Close()
	}
	client.CloseIdleConnections()
}

// TestStreamsSurviveOtherConnections tests that connections without the token do not close the stream of a page.
func TestStreamsSurviveOtherConnections(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- Serve(l, Options{Source: &fakeSource{}}) }()
	defer func() { l.Close(); <-served }()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	r, err := client.Get(l.URL() + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	for range 200 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	in := bufio.NewScanner(r.Body)
	for n := 0; n < 3; {
		if !in.Scan() {
			t.Fatalf("stream after 200 connections: got its end and error %v, want states", in.Err())
		}
		if strings.HasPrefix(in.Text(), `data: {"time"`) {
			n++
		}
	}
}

// TestNotice tests the lines with the URL of a page, also if other machines can connect.
func TestNotice(t *testing.T) {
	const warning = "other machines can reach the web page, without encryption"
	for _, c := range []struct {
		addr, url string
		open      bool
	}{
		{"127.0.0.1:9402", "http://127.0.0.1:9402/t/", false}, {"localhost:9402", "http://127.0.0.1:9402/t/", false},
		{"[::1]:9402", "http://[::1]:9402/t/", false}, {"0.0.0.0:9402", "http://localhost:9402/t/", true},
		{":9402", "http://localhost:9402/t/", true}, {"192.0.2.1:9402", "http://192.0.2.1:9402/t/", true},
	} {
		got := Notice(c.addr, c.url)
		if !strings.HasPrefix(got, "web page: "+c.url+"\n") || strings.Contains(got, warning) != c.open {
			t.Errorf("notice for %s: got %q, want the URL and a warning: %t", c.addr, got, c.open)
		}
		if all := strings.Contains(c.url, "localhost:"); all {
			for _, a := range reachableAddrs(c.addr != ":9402") {
				if want := "http://" + net.JoinHostPort(a, "9402") + "/t/\n"; !strings.Contains(got, want) {
					t.Errorf("notice for %s: got %q, want %q in it", c.addr, got, want)
				}
			}
		} else if strings.Contains(got, "from other machines: ") {
			t.Errorf("notice for %s: got %q, want no other address", c.addr, got)
		}
	}
}

// TestListenErrorNamesFlag tests that the error of Listen names the flag and the form of an address.
func TestListenErrorNamesFlag(t *testing.T) {
	for _, addr := range []string{"", "9402"} {
		if _, err := Listen(addr); err == nil || !strings.HasPrefix(err.Error(), "web: ") ||
			!strings.Contains(err.Error(), "127.0.0.1:9402") {
			t.Errorf("Listen on %q: got %v, want the form of an address", addr, err)
		}
	}
	l, err := Listen("0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !strings.HasPrefix(l.URL(), "http://localhost:") {
		t.Errorf("address of all interfaces: got %s, want localhost", l.URL())
	}
	if o, err := Listen(l.Addr().String()); err == nil {
		o.Close()
		t.Error("Listen on an address in use: got success, want an error")
	}
}

// TestReportEscapesData tests that a report is one file, and that no text ends the element that contains it.
func TestReportEscapesData(t *testing.T) {
	hostile := `</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>`
	f := &scenario.File{Name: hostile, Seed: 7}
	var b bytes.Buffer
	if err := WriteReport(&b, scenario.NewFailedResult(f, errors.New(hostile))); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if n := strings.Count(text, "<script"); n != 3 || strings.Count(text, "</script>") != 3 {
		t.Errorf("scripts of the report: got %d, want the data, the timeline and the script", n)
	}
	for _, word := range []string{"alert(1)<", "<img src=x", `src="`, `href="`} {
		if strings.Contains(strings.Replace(text, `href="#main"`, "", 1), word) {
			t.Errorf("report: got %q, want no text as markup and no other file", word)
		}
	}
	for _, name := range []string{"app.js", "style.css"} {
		if !strings.Contains(text, hashSource(readAsset(name))) || !strings.Contains(text, string(readAsset(name))) {
			t.Errorf("report: got no %s with its digest, want both", name)
		}
	}
}
