package service

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/internal/ctl"
	"verbena/netdev"
)

func parseAddrs(list ...string) (a []netip.Addr) {
	for _, s := range list {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

// TestLinkCurrentInterface tests which interface and addresses a link selects from a list of interfaces.
func TestLinkCurrentInterface(t *testing.T) {
	eth := netdev.Interface{Name: "eth0", Index: 2, MTU: 1500, Up: true, Running: true,
		MAC:   net.HardwareAddr{2, 0, 0, 0, 0, 1},
		Addrs: parseAddrs("10.0.0.1", "10.0.0.2", "fe80::1%eth0")}
	lo := netdev.Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true, Loopback: true,
		Addrs: parseAddrs("127.0.0.1")}
	with := func(i netdev.Interface, f func(i *netdev.Interface)) netdev.Interface {
		f(&i)
		return i
	}
	for _, c := range []struct {
		name  string
		host  netdev.Interface
		fixed []netip.Addr
		list  []netdev.Interface
		want  []netip.Addr
		up    bool
		index int
	}{
		{"all", eth, nil, []netdev.Interface{lo, eth}, eth.Addrs, true, 2},
		{"fixed", eth, parseAddrs("fe80::1%eth0", "10.0.0.2"), []netdev.Interface{lo, eth}, parseAddrs("fe80::1%eth0",
			"10.0.0.2"),
			true, 2},
		{"fixed, one gone", eth, parseAddrs("10.0.0.9", "10.0.0.2"), []netdev.Interface{lo, eth}, parseAddrs("10.0.0.2"),
			true, 2},
		{"down", eth, nil, []netdev.Interface{lo, with(eth, func(i *netdev.Interface) {
			i.Up, i.Running, i.Addrs = false, false, parseAddrs("10.0.0.1")
		})},
			parseAddrs("10.0.0.1"), false, 2},
		{"gone", eth, nil, []netdev.Interface{lo}, nil, false, 2},
		{"gone, fixed", eth, parseAddrs("10.0.0.1"), nil, nil, false, 2},
		{"made again", eth, nil, []netdev.Interface{lo, with(eth, func(i *netdev.Interface) {
			i.Index = 7
		})}, eth.Addrs, true, 7},
		{"renamed", eth, nil, []netdev.Interface{with(eth, func(i *netdev.Interface) {
			i.Name = "lan0"
		})}, eth.Addrs, true, 2},
		{"any loopback address", lo, parseAddrs("127.5.5.5"), []netdev.Interface{lo, eth}, parseAddrs("127.5.5.5"), true, 1},
	} {
		l := &rdmaLink{host: &c.host, addrs: c.fixed}
		host, got := l.currentInterface(c.list)
		if !slices.Equal(got, c.want) || host.Index != c.index || (host.Up && host.Running) != c.up ||
			host.MAC.String() != c.host.MAC.String() {
			t.Errorf("%s: got %+v with %v, want %v", c.name, host, got, c.want)
		}
	}
}

// fakeInterfaces is a list of interfaces that the test changes.
type fakeInterfaces struct {
	list    []netdev.Interface // the test must not change the list while the service may read it
	changes chan []netdev.Interface
	closed  chan struct{}
	waiting chan struct{} // the service has read all interfaces
}

func (f *fakeInterfaces) All() ([]netdev.Interface, error) { return f.list, nil }

func (f *fakeInterfaces) Wait() error {
	select {
	case f.waiting <- struct{}{}:
	case <-f.closed:
		return os.ErrClosed
	}
	select {
	case f.list = <-f.changes:
		return nil
	case <-f.closed:
		return os.ErrClosed
	}
}

func (f *fakeInterfaces) Close() error {
	close(f.closed)
	return nil
}

// TestDeviceFollowsInterface tests that the port, the GID table, and the files shown to programs follow the interfaces.
func TestDeviceFollowsInterface(t *testing.T) {
	all, err := netdev.All()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(i netdev.Interface) bool { return i.Loopback })
	if i < 0 {
		t.Skip("no loopback interface")
	}
	lo := all[i]
	f := &fakeInterfaces{list: all, changes: make(chan []netdev.Interface), closed: make(chan struct{}),
		waiting: make(chan struct{})}
	s, err := newService(Options{
		Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.7.1", "127.91.7.2"}},
			{Name: "rxe1", Addrs: []string{"127.91.7.3"}}},
		Interfaces: f,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	wait := func() {
		t.Helper()
		select {
		case <-f.waiting:
		case <-time.After(20 * time.Second):
			t.Fatal("read of the interfaces by the service: got none in time, want one")
		}
	}
	wait()
	events := make(chan ib.EventType, 100)
	s.links.list[0].dev.Handle().Device().OnEvent(func(e ib.Event) { events <- e.Type })
	step := func(i netdev.Interface, want ...ib.EventType) {
		t.Helper()
		f.changes <- []netdev.Interface{i}
		wait()
		for _, w := range want {
			select {
			case e := <-events:
				if e != w {
					t.Errorf("event: got %v, want %v", e, w)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("event %v: got none in 20 s, want one", w)
			}
		}
		if len(events) > 0 {
			t.Errorf("got event %v, want no more", <-events)
		}
	}
	file := func(name, want string) { t.Helper(); wantPortFile(t, s, name, want) } // the files that programs see
	gid2 := func(want string) {
		t.Helper()
		g, err := s.links.list[0].dev.Handle().Device().QueryGID(1, 2)
		if err != nil || g.GID != ib.GIDFromAddr(netip.MustParseAddr(want)) {
			t.Errorf("GID: got %v (%v), want %v", g, err, want)
		}
	}
	gid2("127.91.7.2")
	file("state", "4: ACTIVE\n")
	step(lo)

	down := lo
	down.Up, down.Running = false, false
	down.Addrs = parseAddrs("127.91.7.1") // a loopback interface with other addresses does not imply 127.91.7.2
	step(down, ib.EventPortErr, ib.EventGIDChange)
	file("state", "1: DOWN\n")
	gid2("::")
	if links, err := s.Links(); err != nil || links[0].State != "DOWN" || len(links[0].GIDs) != 2 ||
		len(links[1].GIDs) != 1 {
		t.Errorf("link show: got %+v and error %v, want the changed links", links, err)
	}
	step(lo, ib.EventPortActive, ib.EventGIDChange)
	file("state", "4: ACTIVE\n")
	gid2("127.91.7.2")

	err = s.links.createLink(ctl.LinkSpec{Name: "rxe2", Addrs: []string{"127.91.7.2"}})
	if !errors.Is(err, syscall.EADDRINUSE) ||
		!strings.Contains(err.Error(), "127.91.7.2 is an address of link rxe0") {
		t.Errorf("second link with the same address: got %v, want EADDRINUSE", err)
	}
}

// TestChangeOfReplacedDeviceMayComeLate tests that changes for a replaced device may be processed after the changes for
// its successor, when resets follow each other closely.
func TestChangeOfReplacedDeviceMayComeLate(t *testing.T) {
	s, err := newService(Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.7.4"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := s.links.list[0]
	first := l.hw.Device()
	if err := l.slot.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := l.hw.Device()
	s.links.recordDevice(l, second)
	s.links.recordDevice(l, first)
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	if l.dev != second {
		t.Error("interface change: got an update of a removed device, want none")
	}
}
