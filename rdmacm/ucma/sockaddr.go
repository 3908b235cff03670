package ucma

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"verbena/ib"
)

// The following constants are the sizes of addresses, by family.
const (
	afIB         = 27
	sizeofInet   = 16
	sizeofInet6  = 28
	sizeofIB     = 48
	sizeofIBAddr = 8 // offset of the GID
)

// programSockaddr is an address from a program.
type programSockaddr struct {
	family uint16
	size   int // 0 for an unknown family
	ip     netip.AddrPort
	gid    ib.GID
}

// parseSockaddr decodes an address of at least sizeofInet6 bytes. parseSockaddr truncates an InfiniBand address after
// its GID. (rdma_addr_size)
func parseSockaddr(b []byte) (a programSockaddr) {
	a.family = binary.NativeEndian.Uint16(b)
	port := binary.BigEndian.Uint16(b[2:])
	switch a.family {
	case syscall.AF_INET:
		a.size = sizeofInet
		a.ip = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case syscall.AF_INET6:
		a.size = sizeofInet6
		ip := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(fmt.Sprint(scope))
		}
		a.ip = netip.AddrPortFrom(ip, port)
	case afIB:
		a.size = sizeofIB
		a.gid = ib.GID(b[sizeofIBAddr:24])
	}
	return a
}

// putSockaddr encodes an address and returns its size, or 0 for an unknown address.
func putSockaddr(b []byte, a netip.AddrPort) int {
	clear(b)
	switch ip := a.Addr(); {
	case ip.Is4():
		binary.NativeEndian.PutUint16(b, syscall.AF_INET)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		v := ip.As4()
		copy(b[4:], v[:])
		return sizeofInet
	case ip.Is6():
		binary.NativeEndian.PutUint16(b, syscall.AF_INET6)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		v := ip.As16()
		copy(b[8:], v[:])
		var scope uint32
		_, _ = fmt.Sscan(ip.Zone(), &scope)
		binary.NativeEndian.PutUint32(b[24:], scope)
		return sizeofInet6
	}
	return 0
}

var errUnknownFamily = fmt.Errorf("address of an unknown family: %w", syscall.EAFNOSUPPORT)
