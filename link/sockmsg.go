package link

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sockaddr mirrors struct sockaddr_in and sockaddr_in6 of ip(7) and ipv6(7). The layout is written and read byte by
// byte, as only the family and the scope are in native byte order.
type sockaddr [unix.SizeofSockaddrInet6]byte

// Offsets of both layouts.
const (
	saPort  = 2
	saAddr4 = 4
	saAddr6 = 8
	saScope = 24
)

// makeSockaddr returns the socket address of a and its length.
func makeSockaddr(a netip.AddrPort, scope uint32) (sa sockaddr, n uint32) {
	binary.BigEndian.PutUint16(sa[saPort:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(sa[:], unix.AF_INET)
		b := a.Addr().As4()
		copy(sa[saAddr4:], b[:])
		return sa, unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(sa[:], unix.AF_INET6)
	b := a.Addr().As16()
	copy(sa[saAddr6:], b[:])
	binary.NativeEndian.PutUint32(sa[saScope:], scope)
	return sa, unix.SizeofSockaddrInet6
}

// source identifies the sender of a packet. The address is in 16-byte form, with IPv4 mapped to IPv6.
type source struct {
	addr [16]byte
	port uint16
}

// source parses the address of a sender that the kernel wrote, n bytes long. It omits the scope: any sender on a link
// is on the link of the endpoint.
func (sa *sockaddr) source(n uint32) (s source, ok bool) {
	s.port = binary.BigEndian.Uint16(sa[saPort:])
	switch family := binary.NativeEndian.Uint16(sa[:]); {
	case family == unix.AF_INET && n >= unix.SizeofSockaddrInet4:
		s.addr[10], s.addr[11] = 0xff, 0xff
		copy(s.addr[12:], sa[saAddr4:saAddr4+4])
	case family == unix.AF_INET6 && n >= unix.SizeofSockaddrInet6:
		copy(s.addr[:], sa[saAddr6:saAddr6+16])
	default:
		return s, false
	}
	return s, true
}

// hash returns a hash for direct-mapped tables. It distributes neighbouring addresses well, and an adversary can only
// cause misses.
func (s source) hash() uint32 { return hashAddr(&s.addr) ^ uint32(s.port)*0x9e3779b1>>12 }

func hashAddr(a *[16]byte) uint32 {
	h := binary.LittleEndian.Uint64(a[:])*0x9e3779b97f4a7c15 ^ binary.LittleEndian.Uint64(a[8:])
	h *= 0xd6e8feb86659fd93
	return uint32(h >> 40)
}

// controls holds control messages (cmsg(3), 64-bit layout) for a send.
type controls struct {
	buf [3 * cmsgSpace]byte
	n   int
}

const (
	cmsgHdr   = 16 // struct cmsghdr: size_t len, int level, int type
	cmsgSpace = cmsgHdr + 8
)

// add appends a message with a value of size 2 or 4 bytes.
func (c *controls) add(level, typ, size int, v uint32) {
	b := c.buf[c.n : c.n+cmsgSpace]
	binary.NativeEndian.PutUint64(b, uint64(cmsgHdr+size))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(typ))
	if size == 2 {
		binary.NativeEndian.PutUint16(b[cmsgHdr:], uint16(v))
	} else {
		binary.NativeEndian.PutUint32(b[cmsgHdr:], v)
	}
	c.n += cmsgSpace
}

// received holds the control messages of a received message.
type received struct {
	size     int // size of the packets in the message (UDP_GRO); 0: one packet
	tos, ttl uint8
}

// parseControls parses control messages.
func parseControls(b []byte) received {
	r := received{ttl: defaultTTL}
	for len(b) >= cmsgHdr {
		n := binary.NativeEndian.Uint64(b)
		if n < cmsgHdr || n > uint64(len(b)) {
			break
		}
		v := b[cmsgHdr:n]
		switch level, typ := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:]); {
		case level == unix.SOL_IP && typ == unix.IP_TOS && len(v) >= 1:
			r.tos = v[0] // the only option that is not an int
		case len(v) < 4:
		case level == unix.SOL_UDP && typ == unix.UDP_GRO:
			r.size = max(0, int(int32(binary.NativeEndian.Uint32(v))))
		case level == unix.SOL_IPV6 && typ == unix.IPV6_TCLASS:
			r.tos = uint8(binary.NativeEndian.Uint32(v))
		case level == unix.SOL_IP && typ == unix.IP_TTL, level == unix.SOL_IPV6 && typ == unix.IPV6_HOPLIMIT:
			r.ttl = uint8(binary.NativeEndian.Uint32(v))
		}
		b = b[min((n+7)&^7, uint64(len(b))):]
	}
	return r
}
