package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

var testGroups atomic.Uint32

// newGroup returns a group that no other test uses.
func newGroup(ip4 bool) netip.Addr {
	n := byte(testGroups.Add(1))
	host := loopback().As4()
	if ip4 {
		return netip.AddrFrom4([4]byte{239, host[1], host[2], n})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x0e, 12: 0x42, 13: host[1], 14: host[2], 15: n})
}

// first returns the addresses, the TOS and the TTL of the first packet.
func (c *collector) first() (src, dst netip.Addr, tos, ttl uint8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.srcs[0], c.dsts[0], c.tos[0], c.ttl[0]
}

// waitFor returns the packets once there are n, and fails after a timeout.
func (c *collector) waitFor(t *testing.T, n int) [][]byte {
	t.Helper()
	testutil.Eventually(t, fmt.Sprintf("%d packets to arrive", n), func() bool { return c.count() >= n })
	return c.wait(n)
}

// TestUDPMulticast: a packet to a group arrives once at every member endpoint, including the sender, and at no other
// endpoint. Linux has no multicast over IPv6 on the loopback interface; TestWireMulticast tests it.
func TestUDPMulticast(t *testing.T) {
	src, dst, group := loopback(), loopback(), newGroup(true)
	own, other := newCollector(), newCollector()
	n := NewFaults(UDP(UDPOptions{}), nil)
	ends := []Endpoint{listen(t, n, src, own), listen(t, n, dst, other)}
	tr := makeTrain(group, 5, 300, 300, 0)
	tr.TOS, tr.TTL, tr.SPort = 0x20, 5, 0xc123
	send := func() {
		t.Helper()
		if err := ends[0].Send(tr); err != nil {
			t.Fatal(err)
		}
	}
	send() // the group has no member
	for _, e := range ends {
		for range 2 {
			if err := Join(e, group); err != nil {
				t.Fatal(err)
			}
		}
		for _, g := range []netip.Addr{newGroup(false), src} {
			if err := Join(e, g); !errors.Is(err, unix.EINVAL) {
				t.Errorf("join %v: %v", g, err)
			}
		}
	}
	send()
	for i, c := range []*collector{own, other} {
		checkPackets(t, c.waitFor(t, 5), tr)
		if from, to, tos, ttl := c.first(); from != src || to != group || tos != 0x20 || ttl != 5 {
			t.Errorf("endpoint %d: from %v to %v, TOS %#x, TTL %d", i, from, to, tos, ttl)
		}
	}
	count := func(when string) {
		t.Helper()
		if s := stats(t, ends[0]); s.ReceivedPackets != 5 || s.ICRCErrors != 0 || own.count() != 5 {
			t.Errorf("%s: %d packets, counted %+v", when, own.count(), s)
		}
	}
	count("in the group")
	if err := Leave(ends[0], group); err != nil {
		t.Fatal(err)
	}
	send()
	other.waitFor(t, 10)
	count("after leaving")
	if err := ends[1].Close(); err != nil {
		t.Fatal(err)
	}
	if err := Join(ends[1], group); !errors.Is(err, ErrClosed) {
		t.Errorf("join by an endpoint that is closed: %v", err)
	}
}

// entries returns the number of entries in a directory of /proc/self.
func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/" + dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestGroupsShareThread: a group costs a descriptor and no thread, since users choose the number of groups.
func TestGroupsShareThread(t *testing.T) {
	const groups = 40
	addr, c := loopback(), newCollector()
	e := listen(t, UDP(UDPOptions{}), addr, c)
	if err := Join(e, newGroup(true)); err != nil {
		t.Fatal(err)
	}
	threads, fds := entries(t, "task"), entries(t, "fd")
	var joined []netip.Addr
	for range groups {
		g := newGroup(true)
		if err := Join(e, g); err != nil {
			t.Fatal(err)
		}
		joined = append(joined, g)
	}
	for i, g := range joined {
		tr := makeTrain(g, 1, 100+i, 100+i, 0)
		if err := e.Send(tr); err != nil {
			t.Fatal(err)
		}
		c.waitFor(t, i+1)
		c.mu.Lock()
		if dst := c.dsts[i]; dst != g {
			t.Errorf("packet to %v arrived for %v", g, dst)
		}
		c.mu.Unlock()
	}
	if n := entries(t, "fd") - fds; n != groups {
		t.Errorf("%d groups take %d descriptors, want one each", groups, n)
	}
	// The runtime can start a few threads meanwhile.
	if n := entries(t, "task") - threads; n > 8 {
		t.Errorf("%d groups started %d threads", groups, n)
	}
	for _, g := range joined {
		if err := Leave(e, g); err != nil {
			t.Fatal(err)
		}
	}
	if n := entries(t, "fd"); n != fds {
		t.Errorf("%d descriptors after leaving, want %d", n, fds)
	}
	if s := stats(t, e); s.ReceivedPackets != groups {
		t.Errorf("%d packets counted after leaving, want %d", s.ReceivedPackets, groups)
	}
}

// stuck is a Receiver that does not return until it is released.
type stuck struct {
	entered chan struct{}
	hold    chan struct{}
}

func (s *stuck) Receive(*Arrival) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.hold
}

// TestLeaveWhileStuck: a Receiver that does not return does not block Leave and Close.
func TestLeaveWhileStuck(t *testing.T) {
	for _, end := range []string{"leave", "leave another", "close"} {
		t.Run(end, func(t *testing.T) {
			s := &stuck{make(chan struct{}, 1), make(chan struct{})}
			defer close(s.hold)
			e, err := UDP(UDPOptions{}).Listen(loopback(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			group, another := newGroup(true), newGroup(true)
			for _, g := range []netip.Addr{group, another} {
				if err := Join(e, g); err != nil {
					t.Fatal(err)
				}
			}
			if err := e.Send(makeTrain(group, 1, 100, 100, 0)); err != nil {
				t.Fatal(err)
			}
			<-s.entered
			switch end {
			case "leave":
				err = Leave(e, group)
			case "leave another":
				err = Leave(e, another)
			case "close":
				err = e.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGroupFlood: a flood of packets to one group blocks neither other groups nor Leave.
func TestGroupFlood(t *testing.T) {
	group, another := newGroup(true), newGroup(true)
	c := newCollector()
	e := listen(t, UDP(UDPOptions{}), loopback(), receiverFunc(func(a *Arrival) {
		if a.Dst == another {
			c.Receive(a)
		}
	}))
	from := listen(t, UDP(UDPOptions{}), loopback(), newCollector())
	for _, g := range []netip.Addr{group, another} {
		if err := Join(e, g); err != nil {
			t.Fatal(err)
		}
	}
	end := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		tr := makeTrain(group, 40, 1000, 1000, 0)
		for {
			select {
			case <-end:
				return
			default:
				_ = from.Send(tr)
			}
		}
	})
	for range 20 {
		if err := e.Send(makeTrain(another, 1, 100, 100, 0)); err != nil {
			t.Error(err)
		}
	}
	c.waitFor(t, 20)
	if err := Leave(e, group); err != nil {
		t.Error(err)
	}
	close(end)
	flood.Wait()
}

// TestWireMulticast: groups of both families work over an interface, to and from another host.
func TestWireMulticast(t *testing.T) {
	if !netns(t) {
		return
	}
	w := newTUN(t)
	for _, x := range []struct{ addr, group, peer string }{
		{"10.9.0.1", "239.1.2.3", "10.9.0.7"},
		{"fd09::1", "ff0e::1234", "fd09::7"},
		{"fe80::9%tun0", "ff02::77", "fe80::7"},
	} {
		group, peer := netip.MustParseAddr(x.group), netip.MustParseAddr(x.peer)
		c := newCollector()
		e := listen(t, UDP(UDPOptions{}), netip.MustParseAddr(x.addr), c)
		if err := Join(e, group); err != nil {
			t.Fatal(err)
		}
		tr := makeTrain(group, 1, 300, 300, 0)
		tr.TTL, tr.SPort = 9, 0xd001
		if err := e.Send(tr); err != nil {
			t.Fatalf("%s: %v", x.group, err)
		}
		p := w.read()
		for p.dst.Port() != Port {
			p = w.read()
		}
		if p.dst.Addr() != group || p.src != netip.AddrPortFrom(e.Addr().WithZone(""), 0xd001) || p.ttl != 9 {
			t.Errorf("%s: from %v to %v, TTL %d", x.group, p.src, p.dst, p.ttl)
		}
		checkPackets(t, c.waitFor(t, 1), tr) // looped back by the kernel
		in := makeTrain(group, 1, 200, 200, 7)
		w.write(netip.AddrPortFrom(peer, 0xc456), netip.AddrPortFrom(group, Port), 0, in.Buf)
		checkPackets(t, c.waitFor(t, 2), tr, in)
		if got := c.sources()[1].WithZone(""); got != peer {
			t.Errorf("%s: from %v", x.group, got)
		}
	}
}
