// Package httplisten limits the connections of the HTTP servers of a service. Clients of any user may connect to these
// servers, and no client may lock another client out.
package httplisten

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Listen listens on a TCP address, HOST:PORT. An empty HOST stands for all addresses of the machine. Errors
// begin with what, the name of the server. The error about a malformed address contains example.
func Listen(what, addr, example string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %q is not an address: write HOST:PORT, such as %s", what, addr, example)
	}
	l, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %w; choose another port", what, err)
	case err != nil:
		return nil, fmt.Errorf("%s: listen on %s: %w", what, host, err)
	}
	return l, nil
}

// CheckHost returns an error for a request of a page under a foreign name that resolves to the address of the server
// (DNS rebinding). Such a page sends that name as the host, and cannot send an address or localhost.
func CheckHost(r *http.Request) error {
	u, err := url.Parse("http://" + r.Host)
	if err != nil || u.Host != r.Host {
		return errors.New("the request has a malformed Host")
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && !strings.EqualFold(u.Hostname(), "localhost") {
		return errors.New("the host of the request is neither an address nor localhost")
	}
	return nil
}

const (
	// HeaderTimeout limits the time that a client takes to send the headers of a request, which are a few hundred
	// bytes.
	HeaderTimeout = time.Second
	maxHeader     = 8 << 10 // bytes
)

// MaxConnections limits the number of open connections. At the limit, the listener accepts a new connection and
// closes another connection.
const MaxConnections = 64

// youngConnectionAge is the age up to which a connection may still be sending its request or receiving its answer.
const youngConnectionAge = 100 * time.Millisecond

// Listener is a listener with a limited number of open connections. Clients of any user may connect. If new
// connections had to wait at the limit, idle connections could lock Prometheus out. Accept therefore closes a
// connection of the client network that has the most connections. Listener prefers connections that have had an
// answer, then connections without progress, and the oldest of these. A client with many requests on one connection
// therefore loses that connection before a client that waits for its first answer. Accept closes connections marked by
// Keep last.
type Listener struct {
	net.Listener

	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is an open connection accepted by the listener.
type connection struct {
	net.Conn
	set     *Listener
	network netip.Prefix

	// Under set.mu.
	since    time.Time // time of the last change of state
	busy     bool      // the server is reading or answering a request
	answered bool      // the server has answered a request
	kept     bool      // marked by Keep
}

// New returns a listener that accepts the connections of l.
func New(l net.Listener) *Listener { return &Listener{Listener: l, open: map[net.Conn]*connection{}} }

// Prepare sets the fields of a server for requests on l: the state of connections, and the limits of headers.
func (l *Listener) Prepare(s *http.Server) {
	s.ConnState = l.recordConnState
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	s.ReadHeaderTimeout, s.MaxHeaderBytes = HeaderTimeout, maxHeader
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

// Keep marks the connection of a request from a client with the right to use the server. At the limit, connections
// without a mark are closed first. ctx is the context of the request, from a server that Prepare has prepared.
func Keep(ctx context.Context) {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		c.set.mu.Lock()
		c.kept = true
		c.set.mu.Unlock()
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &connection{Conn: c, set: l, network: networkOf(c.RemoteAddr()), since: time.Now()}
	var over *connection
	l.mu.Lock()
	if len(l.open) >= MaxConnections {
		over = l.connectionToClose(n.since)
		delete(l.open, over)
	}
	l.open[n] = n
	l.mu.Unlock()
	if over != nil {
		over.Conn.Close()
	}
	return n, nil
}

// connectionToClose returns the connection to close at the limit.
//
//verbena:held mu
func (l *Listener) connectionToClose(now time.Time) (best *connection) {
	held := map[netip.Prefix]int{}
	for _, c := range l.open {
		held[c.network]++
	}
	stale := func(c *connection) bool {
		if c.busy {
			return now.Sub(c.since) > HeaderTimeout
		}
		return now.Sub(c.since) > youngConnectionAge
	}
	for _, c := range l.open {
		switch {
		case best != nil && c.kept != best.kept:
			if c.kept {
				continue
			}
		case best == nil || held[c.network] > held[best.network]:
		case held[c.network] < held[best.network]:
			continue
		case c.answered != best.answered:
			if best.answered {
				continue
			}
		case stale(c) != stale(best):
			if stale(best) {
				continue
			}
		case !c.since.Before(best.since):
			continue
		}
		best = c
	}
	return best
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.set.mu.Lock()
	delete(c.set.open, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

// recordConnState is the ConnState function of the http.Server.
func (l *Listener) recordConnState(c net.Conn, s http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.open[c]; n != nil && (s == http.StateActive || s == http.StateIdle) {
		n.busy, n.since = s == http.StateActive, time.Now()
		n.answered = n.answered || s == http.StateIdle
	}
}

// networkOf returns the network that one client is assumed to own: an IPv4 address, a /64 of IPv6, or all of
// loopback.
func networkOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	addr := t.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	switch {
	case addr.IsLoopback():
		return netip.Prefix{}
	case addr.Is4():
		bits = 32
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
