package web

import (
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/httplisten"
)

// Source answers the requests of a page. A service.Service is a Source. Do may be called concurrently, and may sleep.
type Source interface {
	Do(r *ctl.Request) (*ctl.Response, error)
}

// Cause is the cause of a failure.
type Cause struct {
	Time   time.Time `json:"time"`
	Device string    `json:"device,omitempty"`
	QP     uint32    `json:"qp,omitempty"`
	Text   string    `json:"text"`
	Remedy string    `json:"remedy,omitempty"`
}

// Options configures a page.
type Options struct {
	Source  Source
	Version string // version of the service, for readers
	// Causes returns the causes of the latest failures, the latest first. The page has no such list if Causes is nil.
	Causes func() []Cause
	// Scenario is the scenario in progress, or nil for none.
	Scenario *Scenario
	Log      *slog.Logger
}

const (
	// requestTimeout limits the time to read a request, and to send an answer or one message of a stream.
	requestTimeout = 10 * time.Second
	// idleTimeout limits the time between two requests on a connection.
	idleTimeout = time.Minute
	maxBody     = 16 << 10 // bytes
	// maxActions limits the number of actions in progress. An action may take as long as a link is down.
	maxActions = 8
	tokenBytes = 16
)

// Listener is an address for a page, with the token of that page.
type Listener struct {
	net.Listener
	token string
}

// Listen listens on a TCP address, HOST:PORT, for a page with a new token.
func Listen(addr string) (*Listener, error) {
	l, err := httplisten.Listen("web", addr, "127.0.0.1:9402")
	if err != nil {
		return nil, err
	}
	var token [tokenBytes]byte
	rand.Read(token[:]) // never fails
	return &Listener{l, hex.EncodeToString(token[:])}, nil
}

// URL returns the address of the page with its token. The address is a secret of the user that may manage the service.
func (l *Listener) URL() string {
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	host := addr.Addr().Unmap().String()
	if addr.Addr().IsUnspecified() {
		host = "localhost"
	}
	return fmt.Sprintf("http://%s/%s/", net.JoinHostPort(host, fmt.Sprint(addr.Port())), l.token)
}

// maxShown is the number of addresses of this machine that Notice shows.
const maxShown = 4

// Notice returns the lines that show the URL of a page at addr, the address for Listen. If other machines can connect,
// they contain the URLs for these machines, and a warning. Each line ends in a newline.
func Notice(addr, url string) string {
	text := "web page: " + url + "\n"
	host, _, _ := net.SplitHostPort(addr)
	ip, _ := netip.ParseAddr(host)
	if host == "localhost" || ip.IsLoopback() {
		return text
	}
	if host == "" || ip.IsUnspecified() {
		_, rest, _ := strings.Cut(url, "://localhost:")
		port, path, _ := strings.Cut(rest, "/")
		for _, a := range reachableAddrs(ip.Is4()) {
			text += "from other machines: http://" + net.JoinHostPort(a, port) + "/" + path + "\n"
		}
	}
	return text + "other machines can reach the web page, without encryption: to prevent that, use 127.0.0.1 and a tunnel\n"
}

// reachableAddrs returns addresses of this machine that others may reach, at most maxShown.
func reachableAddrs(only4 bool) (list []string) {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if ok && n.IP.IsGlobalUnicast() && (!only4 || n.IP.To4() != nil) && len(list) < maxShown {
			list = append(list, n.IP.String())
		}
	}
	return list
}

// Serve answers requests on l until l is closed, and returns when all requests have ended. It may sleep.
func Serve(l *Listener, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := newPage(l.token, &o)
	open := httplisten.New(l.Listener)
	srv := &http.Server{
		Handler:     p,
		ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	open.Prepare(srv)
	err := srv.Serve(open)
	srv.Close() // closes the connections
	p.requests.Wait()
	if !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("web: %w", err)
	}
	return nil
}

//go:embed assets
var assets embed.FS

// files lists the files of the page with their types.
var files = map[string]string{
	"": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "style.css": "text/css; charset=utf-8",
	"icon.svg": "image/svg+xml",
}

// policy permits the page's own files and requests, and nothing else. (Content-Security-Policy)
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// page answers the requests of one page.
type page struct {
	*Options
	token    []byte
	stream   stream
	actions  chan struct{} // one element for each action in progress
	requests sync.WaitGroup
	traces   traces
}

func newPage(token string, o *Options) *page {
	p := &page{Options: o, token: []byte(token), actions: make(chan struct{}, maxActions)}
	p.stream = stream{take: p.takeState, ended: func() { p.endTraces(time.Now()) }, log: o.Log}
	return p
}

// ServeHTTP implements http.Handler. It does not use an http.ServeMux, which answers some requests before the check of
// the token.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.requests.Add(1)
	defer p.requests.Done()
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	token, rest, isFolder := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if subtle.ConstantTimeCompare([]byte(token), p.token) != 1 {
		http.Error(w, "the address of the page has a token: use the address that verbena has printed", http.StatusForbidden)
		return
	}
	if err := checkOrigin(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	httplisten.Keep(r.Context())
	if !isFolder && r.Method == http.MethodGet {
		h.Set("Location", "/"+token+"/")
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	method := http.MethodGet
	if rest == "do" {
		method = http.MethodPost
	}
	_, isFile := files[rest]
	switch {
	case !isFolder, !isFile && rest != "do" && rest != "events" && rest != "scenario.svg":
		http.Error(w, "there is no such file", http.StatusNotFound)
	case r.Method != method:
		h.Set("Allow", method)
		http.Error(w, "the only method here is "+method, http.StatusMethodNotAllowed)
	case rest == "do":
		p.serveAction(w, r)
	case rest == "events":
		p.serveStream(w, r)
	case rest == "scenario.svg":
		p.serveTimeline(w)
	default:
		serveFile(w, rest)
	}
}

// checkOrigin returns an error for a request that another web page may have caused.
func checkOrigin(r *http.Request) error {
	if err := httplisten.CheckHost(r); err != nil {
		return err
	}
	origins := r.Header.Values("Origin")
	switch {
	case len(origins) > 1, len(origins) == 1 && !strings.EqualFold(origins[0], "http://"+r.Host):
		return errors.New("the request comes from another page")
	case len(origins) == 0 && r.Method != http.MethodGet && r.Method != http.MethodHead:
		return errors.New("the request has no Origin")
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return nil
	}
	return errors.New("the request comes from another site")
}

func serveFile(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", files[name])
	if name == "" {
		name = "index.html"
	}
	w.Write(readAsset(name))
}

func readAsset(name string) []byte {
	b, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // the file is missing in the build
	}
	return b
}

// serveAction executes an action, or with dry set only checks it. The answer is an actionAnswer.
func (p *page) serveAction(w http.ResponseWriter, r *http.Request) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		http.Error(w, "the content must be application/json", http.StatusUnsupportedMediaType)
		return
	}
	var req actionRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil || d.More() {
		http.Error(w, "the content is not an action", http.StatusBadRequest)
		return
	}
	select {
	case p.actions <- struct{}{}:
		defer func() { <-p.actions }()
	default:
		http.Error(w, "too many actions are in progress", http.StatusTooManyRequests)
		return
	}
	// An action may take longer than any time limit for a request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	a := p.doAction(&req)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(requestTimeout))
	w.Header().Set("Content-Type", "application/json")
	if a.Error != "" {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}
	_ = json.NewEncoder(w).Encode(a) // an error means a disconnected client
}

// actionRequest is the content of a request for an action. Args has the values of the action's fields as users write
// them.
type actionRequest struct {
	Action string            `json:"action"`
	Args   map[string]string `json:"args"`
	Dry    bool              `json:"dry"` // checks the action, and does not execute it
}

// actionAnswer is the answer to an actionRequest.
type actionAnswer struct {
	Command string           `json:"command,omitempty"` // the equivalent command
	Error   string           `json:"error,omitempty"`
	ID      int              `json:"id,omitempty"` // number of the added fault rule
	Trace   *ctl.QPTraceInfo `json:"trace,omitempty"`
}

// doAction executes an action. It may sleep as long as the action takes.
func (p *page) doAction(req *actionRequest) (a actionAnswer) {
	act := findAction(req.Action)
	if act == nil {
		a.Error = "there is no such action"
		return a
	}
	r, command, err := act.parse(req.Args)
	a.Command = command
	if err != nil {
		a.Error = err.Error()
		return a
	}
	if req.Dry {
		return a
	}
	resp, err := p.Source.Do(r)
	if err != nil {
		a.Error = cleanText(err.Error())
	}
	if r.Op == ctl.OpQPTrace {
		if err == nil {
			a.Trace = resp.Trace
			p.traces.record(r.Trace, resp.Trace)
		}
		return a
	}
	p.Log.Info("changed on the web page", "command", command, "err", err)
	if err == nil {
		a.ID = resp.ID
	}
	p.stream.refresh()
	return a
}

// traceLease is the time after which a trace ends that a page has begun and no longer reads.
const traceLease = 4 * time.Second

// traces holds the traces that pages have begun, with the time of their last use.
type traces struct {
	mu    sync.Mutex
	begun map[ctl.QPTrace]time.Time
}

// record records the use of a trace. Traces that other clients have begun do not end with the page.
func (t *traces) record(r *ctl.QPTrace, info *ctl.QPTraceInfo) {
	if info == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := ctl.QPTrace{Dev: info.Device, Num: info.Num, End: true}
	_, begun := t.begun[key]
	switch {
	case r.End:
		delete(t.begun, key)
	case begun || info.Began:
		if t.begun == nil {
			t.begun = map[ctl.QPTrace]time.Time{}
		}
		t.begun[key] = time.Now()
	}
}

// takeUnused removes and returns the traces that were last used at a time or before.
func (t *traces) takeUnused(since time.Time) (list []ctl.QPTrace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r, used := range t.begun {
		if !used.After(since) {
			list = append(list, r)
			delete(t.begun, r)
		}
	}
	return list
}

func (p *page) endTraces(since time.Time) {
	for _, r := range p.traces.takeUnused(since) {
		if _, err := p.Source.Do(&ctl.Request{Op: ctl.OpQPTrace, Trace: &r}); err != nil &&
			!errors.Is(err, syscall.ENOENT) {
			p.Log.Debug("end a trace of the web page", "dev", r.Dev, "qp", r.Num, "err", err)
		}
	}
}
