package netdev

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func parseAddrs(list ...string) []netip.Addr {
	var a []netip.Addr
	for _, s := range list {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

func newLoopbackInterface() Interface {
	return Interface{Name: "lo", Index: 1, MTU: 65536, Up: true, Running: true, Loopback: true,
		Addrs: parseAddrs("127.0.0.1", "::1")}
}

func newEthernetInterface(name string, index int, up, running bool, a ...string) Interface {
	return Interface{Name: name, Index: index, MTU: 1500, Up: up, Running: running, Addrs: parseAddrs(a...)}
}

func TestFirstUsablePrefersIPv4(t *testing.T) {
	for _, test := range []struct {
		name string
		list []Interface
		want string // empty: error
	}{
		{"first with IPv4", []Interface{newLoopbackInterface(), newEthernetInterface("eth0", 2, true, true, "10.0.0.1"),
			newEthernetInterface("eth1", 3, true, true, "10.0.1.1")},
			"eth0"},
		{"IPv4 before IPv6", []Interface{newLoopbackInterface(), newEthernetInterface("eth0", 2, true, true, "2001:db8::1"),
			newEthernetInterface("eth1", 3, true, true, "10.0.1.1")}, "eth1"},
		{"IPv6 alone", []Interface{newLoopbackInterface(), newEthernetInterface("eth0", 2, true, true, "2001:db8::1")},
			"eth0"},
		{"skips an interface that is down",
			[]Interface{newLoopbackInterface(), newEthernetInterface("eth0", 2, false, false, "10.0.0.1"),
				newEthernetInterface("eth1", 3, true, true, "10.0.1.1")},
			"eth1"},
		{"skips a bridge without carrier", []Interface{newLoopbackInterface(), newEthernetInterface("docker0", 2, true,
			false, "172.17.0.1"),
			newEthernetInterface("eth1", 3, true, true, "10.0.1.1")}, "eth1"},
		{"skips an interface with link-local addresses only",
			[]Interface{newLoopbackInterface(), newEthernetInterface("eth0", 2, true, true, "fe80::1%eth0",
				"169.254.1.1")}, "lo"},
		{"skips an interface without address", []Interface{newLoopbackInterface(), newEthernetInterface("eth0", 2, true,
			true)}, "lo"},
		{"loopback alone", []Interface{newLoopbackInterface()}, "lo"},
		{"loopback is down", []Interface{{Name: "lo", Index: 1, Loopback: true}}, ""},
		{"none", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := firstUsable(test.list)
			switch {
			case test.want == "" && !errors.Is(err, syscall.ENODEV):
				t.Errorf("got %v, %v; want ENODEV", got, err)
			case test.want != "" && (err != nil || got.Name != test.want):
				t.Errorf("got %v, %v; want %s", got, err, test.want)
			}
		})
	}
}

func TestByAddrFindsInterface(t *testing.T) {
	list := []Interface{
		newLoopbackInterface(),
		newEthernetInterface("eth0", 2, true, true, "10.0.0.1", "2001:db8::1", "fe80::1%eth0"),
		newEthernetInterface("eth1", 3, true, true, "10.0.1.1", "fe80::1%eth1", "fe80::2%eth1"),
	}
	for _, test := range []struct {
		addr string
		want string // name of the interface, or "!" followed by a part of the error
	}{
		{"10.0.0.1", "eth0"},
		{"::ffff:10.0.0.1", "eth0"},
		{"2001:db8::1", "eth0"},
		{"127.0.0.1", "lo"},
		{"127.9.8.7", "lo"},
		{"::1", "lo"},
		{"fe80::2", "eth1"},
		{"fe80::1%eth0", "eth0"},
		{"fe80::1%3", "eth1"},
		{"fe80::1", "!fe80::1%eth0"},
		{"fe80::2%eth0", "!fe80::2%eth0"},
		{"10.0.0.2", "!10.0.0.2"},
		{"10.0.0.2", "!eth1 10.0.1.1"},
	} {
		got, err := findByAddr(list, netip.MustParseAddr(test.addr))
		if mention, isErr := strings.CutPrefix(test.want, "!"); isErr {
			if !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), mention) {
				t.Errorf("%s: got %v, %v, want EADDRNOTAVAIL and a text with %q", test.addr, got, err, mention)
			}
		} else if err != nil || got.Name != test.want {
			t.Errorf("%s: got %v, %v; want %s", test.addr, got, err, test.want)
		}
	}
}

func TestByNameFindsInterface(t *testing.T) {
	list := []Interface{newLoopbackInterface(), newEthernetInterface("eth0", 2, false, false, "10.0.0.1"),
		newEthernetInterface("eth1", 3, true, false)}
	if got, err := findByName(list, "eth0"); err != nil || got.Index != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	_, err := findByName(list, "eth9")
	if want := `no network interface is called "eth9" (there are lo 127.0.0.1 ::1, eth0 (down) 10.0.0.1, eth1 (no carrier)): no such device`; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if !errors.Is(err, syscall.ENODEV) {
		t.Errorf("error: got %v, want ENODEV", err)
	}
}

func TestMakeInterfaceSortsAddrs(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	var list []net.Addr
	for _, s := range []string{"fe80::5/64", "2001:db8::2/64", "10.0.0.2/24", "fd00::1/64", "10.0.0.1/24"} {
		ip, ipnet, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &net.IPNet{IP: ip, Mask: ipnet.Mask})
	}
	i := makeInterface(net.Interface{Index: 7, MTU: 4200, Name: "eth3", HardwareAddr: mac,
		Flags: net.FlagUp | net.FlagRunning}, list)
	if want := parseAddrs("10.0.0.2", "10.0.0.1", "2001:db8::2", "fd00::1", "fe80::5%eth3"); !slices.Equal(i.Addrs, want) {
		t.Errorf("addresses %v, want %v", i.Addrs, want)
	}
	if i.Name != "eth3" || i.Index != 7 || i.MTU != 4200 || i.MAC.String() != mac.String() || !i.Up || !i.Running ||
		i.Loopback {
		t.Errorf("got %+v", i)
	}
}

// TestHostInterfacesAreConsistent checks the interfaces of this host.
func TestHostInterfacesAreConsistent(t *testing.T) {
	list, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if got, err := ByName(i.Name); err != nil || got.Index != i.Index {
			t.Errorf("ByName(%s): %v, %v", i.Name, got, err)
		}
		for _, a := range i.Addrs {
			if got, err := ByAddr(a); err != nil || !slices.Contains(got.Addrs, a) {
				t.Errorf("ByAddr(%v): %v, %v", a, got, err)
			}
		}
	}
	if i, err := FirstUsable(); err == nil && (!i.Up || len(i.Addrs) == 0) {
		t.Errorf("FirstUsable: %+v", i)
	}
}

// TestUnusableAddrsAreFound checks addresses to which no socket can be bound. Such addresses are tentative or
// duplicate.
func TestUnusableAddrsAreFound(t *testing.T) {
	const table = `fe800000000000002c2d35fffe4ea3f0 02 40 20 c0    veth0
fd770000000000000000000000000001 02 40 00 80    veth0
fe800000000000002c2d35fffe4ea3f0 0b 40 20 80    veth1
fd770000000000000000000000000002 0b 40 00 c8    veth1
fd770000000000000000000000000003 0b 40 00 44    veth1
00000000000000000000000000000001 01 80 10 80       lo
no address
`
	want := map[interfaceAddr]bool{
		{2, netip.MustParseAddr("fe80::2c2d:35ff:fe4e:a3f0")}: true, // tentative
		{11, netip.MustParseAddr("fd77::2")}:                  true, // a duplicate
	}
	if got := unusableAddrs(table); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
