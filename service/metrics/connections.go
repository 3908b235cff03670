package metrics

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// maxConnections limits the number of open connections. At the limit, the listener accepts a new connection and
// closes another connection.
const maxConnections = 64

// youngConnectionAge is the age up to which a connection may still be sending its request or receiving its answer.
const youngConnectionAge = 100 * time.Millisecond

// limitedListener is a listener with a limited number of open connections. Clients of any user may connect. If new
// connections had to wait at the limit, idle connections could lock Prometheus out. Accept therefore closes a
// connection of the client network that has the most connections. limitedListener prefers connections that have had an
// answer, then connections without progress, and the oldest of these. A client with many requests on one connection
// therefore loses that connection before a client that waits for its first answer.
type limitedListener struct {
	net.Listener

	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is an open connection accepted by the listener.
type connection struct {
	net.Conn
	set     *limitedListener
	network netip.Prefix

	// Under set.mu.
	since    time.Time // time of the last change of state
	busy     bool      // the server is reading or answering a request
	answered bool      // the server has answered a request
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &connection{Conn: c, set: l, network: networkOf(c.RemoteAddr()), since: time.Now()}
	var over *connection
	l.mu.Lock()
	if len(l.open) >= maxConnections {
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
func (l *limitedListener) connectionToClose(now time.Time) (best *connection) {
	held := map[netip.Prefix]int{}
	for _, c := range l.open {
		held[c.network]++
	}
	stale := func(c *connection) bool {
		if c.busy {
			return now.Sub(c.since) > headerTime
		}
		return now.Sub(c.since) > youngConnectionAge
	}
	for _, c := range l.open {
		switch {
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
func (l *limitedListener) recordConnState(c net.Conn, s http.ConnState) {
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
