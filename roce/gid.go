package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// GID is a global identifier, the address of an RDMA port. On RoCEv2 it is an IPv6 address, or an IPv4 address in the
// mapped form ::ffff:a.b.c.d. The zero GID is an empty entry of a GID table.
type GID [16]byte

// GIDFromAddr returns the GID of an IP address. A zone is ignored. The GID of the zero Addr is zero.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return GID(a.As16())
}

// LinkLocalGID returns the default GID of a port with Ethernet address mac. The GID is fe80::/64 with the modified
// EUI-64 of mac.
func LinkLocalGID(mac [6]byte) GID {
	g := GID{0: 0xfe, 1: 0x80}
	id := EUI64(mac)
	copy(g[8:], id[:])
	return g
}

// EUI64 returns the modified EUI-64 of an Ethernet address (RFC 4291, appendix A). The EUI-64 is also the node GUID of
// a software device (addrconf_addr_eui48 of Linux).
func EUI64(mac [6]byte) [8]byte {
	return [8]byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}

// ParseGID parses a GID in any notation of an IPv6 address, including the format of [GID.String].
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is6() || a.Zone() != "" {
		return GID{}, fmt.Errorf("parse GID %q: not an IPv6 address without zone", s)
	}
	return GID(a.As16()), nil
}

// Addr returns the IP address of the GID. The result is an IPv4 address if the GID is mapped, otherwise an IPv6 address
// without zone.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether g is an empty entry.
func (g GID) IsZero() bool { return g == GID{} }

// Is4 reports whether g is a mapped IPv4 address.
func (g GID) Is4() bool { return netip.AddrFrom16(g).Is4In6() }

// IsLinkLocal reports whether g is in fe80::/10.
func (g GID) IsLinkLocal() bool { return g[0] == 0xfe && g[1]&0xc0 == 0x80 }

// IsMulticast reports whether g is a multicast address of IPv6 or IPv4
// (rdma_is_multicast_addr of Linux).
func (g GID) IsMulticast() bool { return g[0] == 0xff || g.Is4() && g[12]&0xf0 == 0xe0 }

// String returns g in the format of Linux's sysfs: eight groups of four hexadecimal digits.
func (g GID) String() string {
	const digits = "0123456789abcdef"
	var s [39]byte
	for i := range 8 {
		v := binary.BigEndian.Uint16(g[2*i:])
		for j := range 4 {
			s[5*i+j] = digits[v>>(12-4*j)&15]
		}
		if i < 7 {
			s[5*i+4] = ':'
		}
	}
	return string(s[:])
}
