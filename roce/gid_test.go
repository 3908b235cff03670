package roce_test

import (
	"net/netip"
	"testing"

	"verbena/roce"
)

func TestGIDOfAddress(t *testing.T) {
	for _, c := range []struct {
		addr, gid                 string
		is4, linkLocal, multicast bool
	}{
		{"10.77.0.2", "0000:0000:0000:0000:0000:ffff:0a4d:0002", true, false, false},
		{"127.0.0.1", "0000:0000:0000:0000:0000:ffff:7f00:0001", true, false, false},
		{"224.0.0.1", "0000:0000:0000:0000:0000:ffff:e000:0001", true, false, true},
		{"239.255.0.9", "0000:0000:0000:0000:0000:ffff:efff:0009", true, false, true},
		{"240.0.0.1", "0000:0000:0000:0000:0000:ffff:f000:0001", true, false, false},
		{"::1", "0000:0000:0000:0000:0000:0000:0000:0001", false, false, false},
		{"2001:db8::e0", "2001:0db8:0000:0000:0000:0000:0000:00e0", false, false, false},
		{"fe80::5054:ff:fe12:3456", "fe80:0000:0000:0000:5054:00ff:fe12:3456", false, true, false},
		{"ff12::1", "ff12:0000:0000:0000:0000:0000:0000:0001", false, false, true},
	} {
		addr := netip.MustParseAddr(c.addr)
		g := roce.GIDFromAddr(addr)
		if g.String() != c.gid {
			t.Errorf("GID of %v: got %v, want %s", addr, g, c.gid)
		}
		if g.Addr() != addr {
			t.Errorf("address of GID %v: got %v, want %v", g, g.Addr(), addr)
		}
		if g.Is4() != c.is4 || g.IsLinkLocal() != c.linkLocal || g.IsMulticast() != c.multicast || g.IsZero() {
			t.Errorf(
				"%v: v4 %t, link-local %t, multicast %t, zero %t",
				addr,
				g.Is4(),
				g.IsLinkLocal(),
				g.IsMulticast(),
				g.IsZero(),
			)
		}
		if p, err := roce.ParseGID(c.gid); err != nil || p != g {
			t.Errorf("ParseGID(%q) = %v, %v", c.gid, p, err)
		}
	}
	if g := roce.GIDFromAddr(netip.MustParseAddr("fe80::1%eth0")); g.Addr() != netip.MustParseAddr("fe80::1") {
		t.Errorf("GIDFromAddr with a zone: got %v, want fe80::1", g.Addr())
	}
	if g := roce.GIDFromAddr(netip.Addr{}); !g.IsZero() {
		t.Errorf("GIDFromAddr of the zero Addr: got %v, want the zero GID", g)
	}
}

func TestParseGIDRefusesInvalidText(t *testing.T) {
	for _, s := range []string{"", "10.0.0.1", "fe80::1%eth0", "0000:0000", "x"} {
		if g, err := roce.ParseGID(s); err == nil {
			t.Errorf("ParseGID(%q) = %v", s, g)
		}
	}
}

func TestLinkLocalGID(t *testing.T) {
	mac := [6]byte{0x52, 0x54, 0x00, 0x12, 0x34, 0x56}
	if got, want := roce.LinkLocalGID(mac).String(), "fe80:0000:0000:0000:5054:00ff:fe12:3456"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := roce.EUI64(mac), ([8]byte{0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56}); got != want {
		t.Errorf("EUI-64 %x, want %x", got, want)
	}
}
