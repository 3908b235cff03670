package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
)

func ips(list ...string) (a []netip.Addr) {
	for _, s := range list {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

// iface returns an interface that is up.
func iface() netdev.Interface {
	return netdev.Interface{Name: "eth0", Index: 2, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MTU: 1500, Up: true,
		Running: true}
}

const eth0LinkLocal = "fe80::ff:fe00:1%eth0" // derived from the MAC address

// host is a device on an interface that can change.
type host struct {
	t      *testing.T
	net    *simnet.Net
	dev    *Device
	core   ib.Core
	mu     sync.Mutex
	events []string
	logged []string
}

func newHost(t *testing.T, addrs ...string) *host {
	t.Helper()
	h := &host{t: t, net: simnet.New(simnet.Config{})}
	var err error
	h.dev, err = New(Config{
		Layout: layout.Layout{}, Name: "rxe0", Addrs: ips(addrs...), Network: h.net, Netdev: iface(), Fabric: &Fabric{},
		Logf: func(f string, args ...any) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.logged = append(h.logged, fmt.Sprintf(f, args...))
		}})
	check(t, err)
	check(t, h.core.Register(h.dev.Handle()))
	h.dev.IB().OnEvent(func(e ib.Event) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, fmt.Sprintf("%v %d", e.Type, e.Port))
	})
	return h
}

func (h *host) close() {
	h.t.Helper()
	check(h.t, h.core.Unregister(h.dev.Handle()))
	check(h.t, h.dev.Close())
}

// happened returns the events since the last call.
func (h *host) happened() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.events
	h.events = nil
	return e
}

// gids returns the addresses in the table by index, "" for an empty entry.
func (h *host) gids() []string {
	h.t.Helper()
	var list []string
	port, err := h.dev.IB().QueryPort(1)
	check(h.t, err)
	for i := range port.GIDTableLen {
		g, err := h.dev.IB().QueryGID(1, i)
		check(h.t, err)
		if g.GID.IsZero() {
			list = append(list, "")
			continue
		}
		if g.Netdev != "eth0" || g.IfIndex != 2 || g.Type != ib.GIDTypeRoCEv2 {
			h.t.Errorf("entry %d is %+v", i, g)
		}
		list = append(list, g.GID.Addr().String())
	}
	for len(list) > 0 && list[len(list)-1] == "" {
		list = list[:len(list)-1]
	}
	return list
}

// TestSetInterface tests the GID table and the events, step by step.
func TestSetInterface(t *testing.T) {
	const def = "fe80::ff:fe00:1"
	type step struct {
		name   string
		change func(i *netdev.Interface)
		addrs  []string
		gids   []string
		events []string
	}
	gid := func(n int) []string { return slices.Repeat([]string{ib.EventGIDChange.String() + " 1"}, n) }
	up := func(i *netdev.Interface) {}
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, "10.0.0.1", "fd00::1", eth0LinkLocal)
		defer h.close()
		pd, err := h.dev.IB().AllocPD()
		check(t, err)
		cq, err := h.dev.IB().CreateCQ(ib.CQInit{Entries: 1})
		check(t, err)
		ud, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeUD, Cap: userCap})
		check(t, err)
		defer func() {
			check(t, ud.Destroy())
			check(t, cq.Destroy())
			check(t, pd.Dealloc())
		}()
		for _, s := range []step{
			{"as at first", up, []string{"10.0.0.1", "fd00::1", eth0LinkLocal}, []string{def, "10.0.0.1", "fd00::1"}, nil},
			{"one added", up, []string{"10.0.0.1", "10.0.0.2", "fd00::1", eth0LinkLocal}, []string{def, "10.0.0.1", "fd00::1",
				"10.0.0.2"}, gid(1)},
			{"one removed leaves a hole", up, []string{"10.0.0.2", "fd00::1", eth0LinkLocal}, []string{def, "", "fd00::1",
				"10.0.0.2"}, gid(1)},
			{"another fills it", up, []string{"10.0.0.2", "10.0.0.3", "fd00::1", eth0LinkLocal}, []string{def, "10.0.0.3",
				"fd00::1", "10.0.0.2"}, gid(1)},
			{"the first one returns", up, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", eth0LinkLocal},
				[]string{def, "10.0.0.3", "fd00::1", "10.0.0.2", "10.0.0.1"}, gid(1)},
			{"all but one removed", up, []string{"10.0.0.2"}, []string{def, "", "", "10.0.0.2"}, gid(3)},
			{"several return, IPv4 first", up, []string{"fd00::2", "10.0.0.2", "10.0.0.9", "fd00::1"}, []string{def,
				"10.0.0.9", "fd00::2", "10.0.0.2", "fd00::1"}, gid(3)},
			{"no carrier", func(i *netdev.Interface) { i.Running = false }, []string{"10.0.0.2", "10.0.0.9", "fd00::1",
				"fd00::2"},
				[]string{def, "10.0.0.9", "fd00::2", "10.0.0.2", "fd00::1"}, []string{"PORT_ERR 1"}},
			{"down, which costs IPv6", func(i *netdev.Interface) { i.Running, i.Up = false, false }, []string{"10.0.0.2",
				"10.0.0.9"},
				[]string{def, "10.0.0.9", "", "10.0.0.2"}, gid(2)},
			{"up", up, []string{"10.0.0.2", "10.0.0.9", "fd00::1"}, []string{def, "10.0.0.9", "fd00::1", "10.0.0.2"},
				append([]string{"PORT_ACTIVE 1"}, gid(1)...)},
			{"another MTU", func(i *netdev.Interface) { i.MTU = 9000 }, []string{"10.0.0.2", "10.0.0.9", "fd00::1"},
				[]string{def, "10.0.0.9", "fd00::1", "10.0.0.2"}, nil},
			{"another speed", func(i *netdev.Interface) { i.Speed = 100e9 }, []string{"10.0.0.2", "10.0.0.9", "fd00::1"},
				[]string{def, "10.0.0.9", "fd00::1", "10.0.0.2"}, []string{"SPEED_CHANGE 0"}},
			{"an unknown speed", up, []string{"10.0.0.2", "10.0.0.9", "fd00::1"},
				[]string{def, "10.0.0.9", "fd00::1", "10.0.0.2"}, []string{"SPEED_CHANGE 0"}},
			{"gone", func(i *netdev.Interface) { *i = netdev.Interface{Name: i.Name, Index: i.Index, MAC: i.MAC} }, nil,
				[]string{def}, append([]string{"PORT_ERR 1"}, gid(3)...)},
			{"back", up, []string{"10.0.0.1"}, []string{def, "10.0.0.1"}, append([]string{"PORT_ACTIVE 1"}, gid(1)...)},
			{"another MAC address", func(i *netdev.Interface) { i.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 2} },
				[]string{"10.0.0.1"},
				[]string{"fe80::ff:fe00:2", "10.0.0.1"}, gid(1)},
		} {
			i := iface()
			s.change(&i)
			changed := h.dev.SetInterface(i, ips(s.addrs...))
			events := h.happened()
			for n, e := range events {
				events[n] = strings.Replace(e, ib.EventPortErr.String(), "PORT_ERR", 1)
				events[n] = strings.Replace(events[n], ib.EventPortActive.String(), "PORT_ACTIVE", 1)
				events[n] = strings.Replace(events[n], ib.EventDeviceSpeedChange.String(), "SPEED_CHANGE", 1)
			}
			if got := h.gids(); !slices.Equal(got, s.gids) {
				t.Errorf("%s: GIDs %q, want %q", s.name, got, s.gids)
			}
			if !slices.Equal(events, s.events) {
				t.Errorf("%s: events %q, want %q", s.name, events, s.events)
			}
			if want := s.name != "as at first"; changed != want {
				t.Errorf("%s: reported as changed %v", s.name, changed)
			}
			port, err := h.dev.IB().QueryPort(1)
			check(t, err)
			state, phys := ib.PortActive, portPhysLinkUp
			if !i.Running {
				state, phys = ib.PortDown, portPhysPolling
			}
			if !i.Up {
				phys = portPhysDisabled
			}
			mtu := map[int]ib.MTU{0: ib.MTU256, 1500: ib.MTU1024, 9000: ib.MTU4096}[i.MTU]
			if port.State != state || int(port.PhysState) != phys || port.ActiveMTU != mtu {
				t.Errorf("%s: port state %v, %d, MTU %v", s.name, port.State, port.PhysState, port.ActiveMTU)
			}
			if a, _, err := ud.Query(ib.QPAttrPathMTU); err != nil || a.PathMTU != mtu {
				t.Errorf("%s: Query of a UD QP: got MTU %v and error %v, want %v and no error", s.name, a.PathMTU, err, mtu)
			}
		}
		if n := h.dev.Stats()["link_downed"]; n != 2 {
			t.Errorf("link_downed is %d", n)
		}
	})
}

// TestDefaultGIDs tests that the devices of a Fabric find one another by their default GIDs while other devices join,
// change and leave.
func TestDefaultGIDs(t *testing.T) {
	f := &Fabric{}
	b := newBench(t, setup{fabric: f})
	knows := func(when string, list ...*Device) {
		t.Helper()
		for _, d := range list {
			for _, peer := range list {
				if got := d.aliased(peer.at.Load().gids[0].GID); got != peer {
					t.Errorf("%s: device %s for the default GID of %s: got %v", when, d.name, peer.name, got)
				}
			}
		}
	}
	knows("two devices", b.a.dev, b.b.dev)
	addr := netip.MustParseAddr("10.0.0.3")
	cfg := Config{
		Layout: layout.Layout{}, Name: "rxe2", Addrs: []netip.Addr{addr}, Network: b.net, Fabric: f,
		Netdev: netdev.Interface{Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, 3}, MTU: 9000, Up: true, Running: true},
	}
	c, err := New(cfg)
	check(t, err)
	knows("a third one", b.a.dev, b.b.dev, c)
	b.a.dev.SetInterface(b.a.dev.at.Load().netdev, ips(addrA.String(), "10.0.0.4"))
	knows("a changed one", b.a.dev, b.b.dev, c)
	gid := c.at.Load().gids[0].GID
	check(t, c.Close())
	knows("two devices again", b.a.dev, b.b.dev)
	if got := b.a.dev.aliased(gid); got != nil {
		t.Errorf("default GID of the device that has left: got %s, want none", got.name)
	}
}

// TestSetInterfaceTaken tests an address that another program has bound: it is omitted, logged once, and used when
// free.
func TestSetInterfaceTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, "10.0.0.1")
		defer h.close()
		other, err := h.net.Listen(netip.MustParseAddr("10.0.0.2"), nil)
		check(t, err)
		for range 2 {
			if h.dev.SetInterface(iface(), ips("10.0.0.1", "10.0.0.2")) || len(h.gids()) != 2 {
				t.Errorf("GIDs are %q", h.gids())
			}
		}
		if len(h.logged) != 1 || !strings.Contains(h.logged[0], "10.0.0.2") {
			t.Errorf("logged: %q", h.logged)
		}
		check(t, other.Close())
		if !h.dev.SetInterface(iface(), ips("10.0.0.1", "10.0.0.2")) || len(h.gids()) != 3 {
			t.Errorf("GIDs are %q", h.gids())
		}
		// An address that the device has released is free.
		h.dev.SetInterface(iface(), ips("10.0.0.2"))
		again, err := h.net.Listen(netip.MustParseAddr("10.0.0.1"), nil)
		check(t, err)
		check(t, again.Close())
		// An empty entry is no valid source.
		gid := ib.GIDFromAddr(netip.MustParseAddr("10.0.0.7"))
		_, err = resolve(h.dev, &ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid, SGIDIndex: 1}})
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("an address vector with an empty source: %v", err)
		}
	})
}

// TestSetInterfaceRandom tests that the table matches the addresses after random changes, and that no entry ever
// moves.
func TestSetInterfaceRandom(t *testing.T) {
	n := 4
	if raceEnabled {
		n = 1
	}
	for _, seed := range seeds(n) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			h := newHost(t, "10.0.0.1")
			defer h.close()
			was := h.gids()
			for range 200 {
				var addrs []string
				for n := range 12 {
					if r.IntN(3) > 0 {
						addrs = append(addrs, []string{fmt.Sprintf("10.0.0.%d", n), fmt.Sprintf("fd00::%d", n)}[n%2])
					}
				}
				r.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
				h.dev.SetInterface(iface(), ips(addrs...))
				now := h.gids()
				differ := 0
				for i := 1; i < max(len(was), len(now)); i++ {
					at := func(l []string) string {
						if i < len(l) {
							return l[i]
						}
						return ""
					}
					if at(was) != at(now) {
						differ++
						if at(was) != "" && at(now) != "" {
							differ++ // one went, another took its place
						}
						if at(was) != "" && slices.Contains(addrs, at(was)) {
							t.Fatalf("entry %d, %s, moved: %q, then %q", i, at(was), was, now)
						}
					}
				}
				have := slices.DeleteFunc(slices.Clone(now[1:]), func(s string) bool { return s == "" })
				slices.Sort(have)
				slices.Sort(addrs)
				if !slices.Equal(have, addrs) {
					t.Fatalf("the table has %q, the interface %q", have, addrs)
				}
				if n := len(h.happened()); n != differ {
					t.Fatalf("%d entries changed, %d events", differ, n)
				}
				was = now
			}
		})
	}
}

// TestAddressLost tests that a connection fails if its address is missing for longer than the retries last, and
// survives a shorter absence.
func TestAddressLost(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		for _, end := range []string{"address of the sender", "address of the receiver", "link of the sender",
			"link of the receiver"} {
			t.Log(end)
			b := newBenchIn(t, s)
			b.connect(conn{timeout: 14, retry: 7})
			transfer(b, ib.WRSend, 3000, 1)
			n, addr := b.a, addrA
			if strings.HasSuffix(end, "receiver") {
				n, addr = b.b, addrB
			}
			ifi := n.dev.at.Load().netdev
			lose := func() {
				if strings.HasPrefix(end, "link") {
					down := ifi
					down.Running = false
					n.dev.SetInterface(down, []netip.Addr{addr})
				} else {
					n.dev.SetInterface(ifi, nil)
				}
			}
			back := func() { n.dev.SetInterface(ifi, []netip.Addr{addr}) }
			send := func() {
				b.b.recv(1, 0, 3000)
				b.a.send(ib.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 3000)})
			}
			lose()
			send()
			testutil.AdvanceTime(100 * time.Millisecond)
			b.a.none()
			b.b.none()
			back()
			b.a.expect(ib.WC{ID: 2, Opcode: ib.WCSend})
			b.b.expect(ib.WC{ID: 1, Opcode: ib.WCRecv, ByteLen: 3000})
			transfer(b, ib.WRRDMARead, 3000, 2)
			lose()
			send()
			b.a.expect(ib.WC{ID: 2, Status: ib.WCRetryExcErr})
			b.b.none()
			back()
			b.close()
		}
	})
}

// slowNetwork delays Listen at one address.
type slowNetwork struct {
	*simnet.Net
	at      netip.Addr
	entered chan int
	release chan int
}

func (n *slowNetwork) Listen(addr netip.Addr, r link.Receiver) (link.Endpoint, error) {
	if addr == n.at {
		n.entered <- 1
		<-n.release
	}
	return n.Net.Listen(addr, r)
}

// TestCloseDuringChange closes a device during a change of its addresses. The next device can use the addresses.
func TestCloseDuringChange(t *testing.T) {
	network := &slowNetwork{Net: simnet.New(simnet.Config{}), at: ips("10.0.0.2")[0], entered: make(chan int),
		release: make(chan int)}
	cfg := Config{
		Layout: layout.Layout{}, Name: "rxe0", Addrs: ips("10.0.0.1"), Network: network, Netdev: iface(), Fabric: &Fabric{}}
	d, err := New(cfg)
	check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { d.SetInterface(iface(), ips("10.0.0.1", "10.0.0.2")) })
	<-network.entered
	closed := make(chan error, 1)
	testutil.WaitBlocked(t, func() { closed <- d.Close() }) // Close must not leave the Fabric before the end of the change
	close(network.release)
	wg.Wait()
	check(t, <-closed)
	next, err := New(cfg)
	check(t, err)
	check(t, next.Close())
}
