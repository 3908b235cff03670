package roce

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// The ICRC (IBA 7.8.1, A17.3.3) is the CRC-32 of Ethernet over
//
//	8 bytes of ones      in place of the InfiniBand local header
//	IP header            fields that routers change as ones: type of service,
//	                     time to live, checksum; traffic class, flow label, hop
//	                     limit
//	UDP header           checksum as ones
//	BTH                  the byte with FECN and BECN as ones
//	the rest             up to the ICRC
//
// and is stored with its least significant byte first.
//
// In the following, "state" is the shift register of the CRC. The state is the complement of the crc of hash/crc32. The
// register is linear. A table contains the contribution of a byte of the message to the final state. The indices are
// the value of the byte and the number of bytes after it. XOR adds contributions. A Flow stores the state after its
// headers, computed with zeros in the variable fields. The Flow adds the variable fields for each packet. The headers
// therefore need not pass through hash/crc32, where every argument escapes to the heap.

// Flow is one direction between two UDP endpoints. A Flow contains the part of the ICRC that depends on the endpoints.
// A Flow is a small value. The program creates it with [NewFlow] and stores it with the queue pair or address handle.
type Flow struct {
	state uint32 // state after the UDP header, with lengths and identification as 0
	ipv6  bool
}

// The next constants are offsets into the headers below IPv4 or IPv6, and lengths of these headers.
const (
	ip4Len  = 20
	ip6Len  = 40
	udpLen  = 8
	ip4DF   = 0x4000 // do not fragment
	maxIP   = 0xffff
	protUDP = 17
	bthHead = 8 // length of the part of the BTH before the PSN

	// stateOnes is the state after 8 bytes of ones.
	stateOnes = 0xdebb20e3
)

// NewFlow returns the flow of packets from src to dst. Both must be IPv4 addresses (or IPv4 mapped to IPv6), or both
// must be IPv6 addresses. Zones are ignored. The port of dst is [UDPPort], except in a private network.
func NewFlow(src, dst netip.AddrPort) Flow {
	var h [ip6Len + udpLen]byte
	var f Flow
	s, d := src.Addr().Unmap(), dst.Addr().Unmap()
	n := ip4Len
	if s.Is4() && d.Is4() {
		h[0], h[1] = 0x45, 0xff
		h[6] = ip4DF >> 8
		h[8], h[9] = 0xff, protUDP
		h[10], h[11] = 0xff, 0xff
		s4, d4 := s.As4(), d.As4()
		copy(h[12:], s4[:])
		copy(h[16:], d4[:])
	} else {
		n, f.ipv6 = ip6Len, true
		h[0], h[1], h[2], h[3] = 0x6f, 0xff, 0xff, 0xff
		h[6], h[7] = protUDP, 0xff
		s16, d16 := src.Addr().As16(), dst.Addr().As16()
		copy(h[8:], s16[:])
		copy(h[24:], d16[:])
	}
	binary.BigEndian.PutUint16(h[n:], src.Port())
	binary.BigEndian.PutUint16(h[n+2:], dst.Port())
	h[n+6], h[n+7] = 0xff, 0xff
	f.state = updateCRC(stateOnes, h[:n+udpLen])
	return f
}

// MaxPacket returns the length in bytes of the largest packet that fits in an IP
// packet of the flow.
func (f Flow) MaxPacket() int {
	if f.ipv6 {
		return maxIP - udpLen
	}
	return maxIP - ip4Len - udpLen
}

// ICRC returns the ICRC of a packet. pkt contains the bytes from the BTH to the ICRC. ICRC does not use the last four
// bytes of pkt. ICRC panics unless the length of pkt is between BTHLen+ICRCLen and [Flow.MaxPacket].
//
// id is the identification in the IPv4 header. id is ignored over IPv6. ICRC assumes that the don't fragment bit is
// set. An unconnected Linux UDP socket with IP_PMTUDISC_DO sends 0. Segmentation offload increments it from 0 within a
// batch.
func (f Flow) ICRC(id uint16, pkt []byte) uint32 {
	if len(pkt) < BTHLen+ICRCLen || len(pkt) > f.MaxPacket() {
		panic("roce: ICRC of a packet of impossible length")
	}
	s := f.state
	n := uint16(udpLen + len(pkt))
	if f.ipv6 {
		s ^= crcTables.len6[0][n>>8] ^ crcTables.len6[1][n&0xff]
	} else {
		t := n + ip4Len
		s ^= crcTables.len4[0][t>>8] ^ crcTables.len4[1][t&0xff] ^
			crcTables.shift[3][n>>8] ^ crcTables.shift[2][n&0xff] ^
			crcTables.id4[0][id>>8] ^ crcTables.id4[1][id&0xff]
	}
	s = crcStep8(s, binary.LittleEndian.Uint32(pkt), binary.LittleEndian.Uint32(pkt[4:])|0xff)
	return crc32.Update(^s, crc32.IEEETable, pkt[bthHead:len(pkt)-ICRCLen])
}

// Seal computes the ICRC of pkt and stores the ICRC in the last four bytes of pkt; see [Flow.ICRC].
func (f Flow) Seal(id uint16, pkt []byte) {
	binary.LittleEndian.PutUint32(pkt[len(pkt)-ICRCLen:], f.ICRC(id, pkt))
}

// Verify checks the ICRC of a received packet. pkt contains the bytes from the BTH to the ICRC. f is the flow from the
// sender to this end. A packet of impossible length is invalid.
//
// Over IPv6, the check is exact. Over IPv4, it is exact if the identification equals guess. Otherwise Verify computes
// the identification. The ICRC is linear in the identification, and exactly one 32-bit value makes the ICRC valid. If
// this value fits in 16 bits, Verify returns it as the identification. In this case a damaged packet is accepted with
// probability 2^-16. If the sender increments its identification, like Linux, the caller should pass the last
// identification plus one as guess. The caller should distrust a result that is far from guess.
//
// The receiver of a datagram does not receive the don't fragment bit. Verify assumes that this bit is set, because
// Linux's rxe and hardware set it. A packet without this bit is invalid.
func (f Flow) Verify(guess uint16, pkt []byte) (id uint16, ok bool) {
	if len(pkt) < BTHLen+ICRCLen || len(pkt) > f.MaxPacket() {
		return 0, false
	}
	got := binary.LittleEndian.Uint32(pkt[len(pkt)-ICRCLen:])
	diff := got ^ f.ICRC(guess, pkt)
	if diff == 0 {
		return guess, true
	}
	if f.ipv6 {
		return 0, false
	}
	d := undoZeroBytes(diff, ip4Len+udpLen-ipv4IDOffset+len(pkt)-ICRCLen)
	if d>>16 != 0 {
		return 0, false
	}
	return guess ^ uint16(d<<8|d>>8), true
}

// CheckIP checks the ICRC of a raw IPv4 or IPv6 packet, for example from a capture. Bytes after the end of the IP
// packet, such as Ethernet padding, are ignored.
//
// isRoCE reports whether the packet is a UDP packet to [UDPPort]. isRoCE is false for fragments and for IPv6 packets
// with extension headers. If the packet is truncated after its UDP header, or its lengths are inconsistent, isRoCE is
// true and ok is false.
func CheckIP(p []byte) (ok, isRoCE bool) {
	var buf [60 + udpLen + bthHead]byte // space for the largest IPv4 header, UDP, and the BTH head
	var ipLen, total int
	switch {
	case len(p) >= ip4Len+udpLen && p[0]>>4 == 4:
		ipLen, total = int(p[0]&0xf)*4, int(binary.BigEndian.Uint16(p[2:]))
		fragment := binary.BigEndian.Uint16(p[6:])&0x3fff != 0
		if ipLen < ip4Len || p[9] != protUDP || fragment || len(p) < ipLen+udpLen {
			return false, false
		}
	case len(p) >= ip6Len+udpLen && p[0]>>4 == 6:
		ipLen, total = ip6Len, ip6Len+int(binary.BigEndian.Uint16(p[4:]))
		if p[6] != protUDP {
			return false, false
		}
	default:
		return false, false
	}
	start := ipLen + udpLen
	udp := p[ipLen:start]
	if binary.BigEndian.Uint16(udp[2:]) != UDPPort {
		return false, false
	}
	end := ipLen + int(binary.BigEndian.Uint16(udp[4:]))
	if end < start+BTHLen+ICRCLen || end > total || total > len(p) {
		return false, true
	}

	h := buf[:start+bthHead]
	copy(h, p)
	if p[0]>>4 == 4 {
		h[1], h[8], h[10], h[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		h[0], h[1], h[2], h[3], h[7] = 0x6f, 0xff, 0xff, 0xff, 0xff
	}
	h[ipLen+6], h[ipLen+7] = 0xff, 0xff
	h[start+bthQPN] = 0xff
	crc := crc32.Update(^updateCRC(stateOnes, h), crc32.IEEETable, p[start+bthHead:end-ICRCLen])
	return crc == binary.LittleEndian.Uint32(p[end-ICRCLen:]), true
}
