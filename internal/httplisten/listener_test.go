package httplisten

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestConnectionToClose tests which connection is closed at the limit. The order is: the network with the most
// connections, a connection that has had an answer, a connection without progress.
func TestConnectionToClose(t *testing.T) {
	now := time.Now()
	here := networkOf(&net.TCPAddr{IP: net.IPv4(127, 9, 9, 9)})
	near, far := networkOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}),
		networkOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")})
	if near == far || near == here || networkOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}) == near {
		t.Fatal("networkOf of clients in different networks: got one network, want two")
	}
	if networkOf(&net.TCPAddr{IP: net.ParseIP("::1")}) != here ||
		networkOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::2")}) != far {
		t.Fatal("networkOf of clients in one network: got two networks, want one")
	}
	for name, c := range map[string]struct {
		open []connection
		want int
	}{
		"oldest": {[]connection{{since: now.Add(-2 * time.Millisecond)}, {since: now.Add(-3 * time.Millisecond)},
			{since: now}}, 1},
		"idle": {[]connection{{since: now.Add(-900 * time.Millisecond), busy: true},
			{since: now.Add(-200 * time.Millisecond)}}, 1},
		"young": {[]connection{{since: now.Add(-50 * time.Millisecond)},
			{since: now.Add(-90 * time.Millisecond), busy: true}}, 1},
		"slow": {[]connection{{since: now.Add(-50 * time.Millisecond)},
			{since: now.Add(-1200 * time.Millisecond), busy: true}}, 1},
		"answered": {[]connection{{since: now.Add(-900 * time.Millisecond)}, {since: now, busy: true, answered: true}}, 1},
		"kept": {[]connection{{since: now.Add(-time.Minute), network: near, busy: true, kept: true},
			{since: now.Add(-time.Second), network: near, busy: true, kept: true}, {since: now, network: far}}, 2},
		"network": {[]connection{{since: now.Add(-time.Minute), network: far}, {since: now, network: near},
			{since: now.Add(-time.Second), network: near}}, 2},
	} {
		l := Listener{open: map[net.Conn]*connection{}}
		for i := range c.open {
			l.open[&c.open[i]] = &c.open[i]
		}
		if got := l.connectionToClose(now); got != &c.open[c.want] {
			t.Errorf("%s: got %+v, want number %d", name, got, c.want)
		}
	}
}

// TestConnectionIsAnsweredAfterFirstAnswer tests that a connection counts as answered after its first answer, not after
// its first request.
func TestConnectionIsAnsweredAfterFirstAnswer(t *testing.T) {
	c := &connection{}
	l := Listener{open: map[net.Conn]*connection{c: c}}
	for _, tt := range []struct {
		state          http.ConnState
		busy, answered bool
	}{{http.StateNew, false, false}, {http.StateActive, true, false}, {http.StateIdle, false, true}, {http.StateActive,
		true, true}} {
		if l.recordConnState(c, tt.state); c.busy != tt.busy || c.answered != tt.answered {
			t.Errorf("state %v: got busy %v and answered %v, want %v and %v", tt.state, c.busy, c.answered, tt.busy, tt.answered)
		}
	}
}

// TestListenErrorNamesAddress tests that the error of Listen names the address.
func TestListenErrorNamesAddress(t *testing.T) {
	l, err := Listen("metrics", "127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for addr, want := range map[string]string{
		"9401": "write HOST:PORT", l.Addr().String(): "choose another port", "192.0.2.77:1": "listen on 192.0.2.77",
		"127.0.0.1:x": "listen on",
	} {
		if _, err := Listen("metrics", addr, "127.0.0.1:9401"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", addr, err, want)
		}
	}
}
