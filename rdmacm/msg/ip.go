package msg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// PortSpace is a port space of RDMA IP CM services (IBA annex A11, enum rdma_ucm_port_space).
type PortSpace uint16

const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106
	PortSpaceUDP   PortSpace = 0x0111
	PortSpaceIB    PortSpace = 0x013f
)

func (p PortSpace) String() string {
	switch p {
	case PortSpaceIPoIB:
		return "IPoIB"
	case PortSpaceTCP:
		return "TCP"
	case PortSpaceUDP:
		return "UDP"
	case PortSpaceIB:
		return "IB"
	}
	return fmt.Sprintf("port space %#04x", uint16(p))
}

// ServiceID identifies a service on a host (IBA 12.7.3).
type ServiceID uint64

// MakeServiceID returns the service ID of a port (IBA A11.3.3.1).
func MakeServiceID(space PortSpace, port uint16) ServiceID {
	return ServiceID(space)<<16 | ServiceID(port)
}

// Port returns the port space and port. It returns false if annex A11 does not define the service ID.
func (s ServiceID) Port() (space PortSpace, port uint16, ok bool) {
	return PortSpace(s >> 16), uint16(s), s>>32 == 0 && s>>16 != 0
}

func (s ServiceID) String() string {
	if space, port, ok := s.Port(); ok {
		return fmt.Sprintf("%v port %d", space, port)
	}
	return fmt.Sprintf("service ID %#016x", uint64(s))
}

// IPHeaderLen is the length of an [IPHeader] in bytes. The header reduces the private data of the user.
const IPHeaderLen = 36

// IPHeader is the start of the private data of REQ and SIDR_REQ for the port spaces TCP, UDP and IPoIB (IBA A11.4,
// struct cma_hdr).
type IPHeader struct {
	SrcPort  uint16
	Src, Dst netip.Addr // addresses of the same family; IPv4 addresses are not mapped to IPv6
}

// Errors of ParseIPHeader.
var (
	errIPHeader  = errors.New("private data too short for the addresses of a connection")
	errIPVersion = errors.New("unknown version")
)

// AppendIPHeader appends the header. Both addresses must be valid, and of the same family.
func AppendIPHeader(b []byte, h IPHeader) []byte {
	if !h.Src.IsValid() || h.Src.Is4() != h.Dst.Is4() || h.Src.Is4In6() || h.Dst.Is4In6() || !h.Dst.IsValid() {
		panic(fmt.Sprintf("msg: addresses %v and %v", h.Src, h.Dst))
	}
	version := byte(6)
	if h.Src.Is4() {
		version = 4
	}
	b = append(b, 0, version<<4)
	b = binary.BigEndian.AppendUint16(b, h.SrcPort)
	for _, a := range []netip.Addr{h.Src, h.Dst} {
		var x [16]byte
		if a.Is4() {
			v := a.As4()
			copy(x[12:], v[:])
		} else {
			x = a.As16()
		}
		b = append(b, x[:]...)
	}
	return b
}

// ParseIPHeader decodes the header at the start of private data. The rest of the private data belongs to the user.
func ParseIPHeader(b []byte) (h IPHeader, err error) {
	if len(b) < IPHeaderLen {
		return h, fmt.Errorf("%d bytes: %w", len(b), errIPHeader)
	}
	if b[0] != 0 {
		return h, fmt.Errorf("%w %d of the header", errIPVersion, b[0])
	}
	address := func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }
	switch version := b[1] >> 4; version {
	case 4:
		address = func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b[12:])) }
	case 6:
	default:
		return h, fmt.Errorf("%w %d of the addresses", errIPVersion, version)
	}
	return IPHeader{SrcPort: binary.BigEndian.Uint16(b[2:]), Src: address(b[4:20]), Dst: address(b[20:36])}, nil
}
