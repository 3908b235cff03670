package capture

import (
	"encoding/binary"
	"net/netip"

	"verbena/link"
	"verbena/roce"
)

const (
	ip4Len  = 20
	ip6Len  = 40
	udpLen  = 8
	protUDP = 17
)

// appendFrame appends the bytes that a packet has on the wire, from the IP header on.
func appendFrame(b []byte, p *link.Tapped) []byte {
	udp := udpLen + len(p.Data)
	src, dst := p.Src.Addr().Unmap().WithZone(""), p.Dst.Addr().Unmap().WithZone("")
	var pseudo uint32 // sum of the pseudo header
	if src.Is4() && dst.Is4() {
		var h [ip4Len]byte
		h[0], h[1] = 4<<4|ip4Len/4, p.TOS
		binary.BigEndian.PutUint16(h[2:], uint16(ip4Len+udp))
		binary.BigEndian.PutUint16(h[4:], p.ID)
		h[6] = 0x40 // do not fragment
		h[8], h[9] = p.TTL, protUDP
		s, d := src.As4(), dst.As4()
		copy(h[12:], s[:])
		copy(h[16:], d[:])
		binary.BigEndian.PutUint16(h[10:], ^foldChecksum(addChecksum(0, h[:])))
		pseudo = addChecksum(0, h[12:])
		b = append(b, h[:]...)
	} else {
		var h [ip6Len]byte
		h[0], h[1] = 6<<4|p.TOS>>4, p.TOS<<4
		binary.BigEndian.PutUint16(h[4:], uint16(udp))
		h[6], h[7] = protUDP, p.TTL
		s, d := src.As16(), dst.As16()
		copy(h[8:], s[:])
		copy(h[24:], d[:])
		pseudo = addChecksum(0, h[8:])
		b = append(b, h[:]...)
	}
	u := len(b)
	b = binary.BigEndian.AppendUint16(b, p.Src.Port())
	b = binary.BigEndian.AppendUint16(b, p.Dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(udp))
	b = append(b, 0, 0)
	b = append(b, p.Data...)
	if data := b[u+udpLen:]; p.Unsealed && len(data) >= roce.BTHLen+roce.ICRCLen {
		flow := roce.NewFlow(netip.AddrPortFrom(src, p.Src.Port()), netip.AddrPortFrom(dst, p.Dst.Port()))
		flow.Seal(p.ID, data)
	}
	check := ^foldChecksum(addChecksum(pseudo+protUDP+uint32(udp), b[u:]))
	if check == 0 {
		check = 0xffff // 0 means no checksum
	}
	binary.BigEndian.PutUint16(b[u+6:], check)
	return b
}

// addChecksum adds 16-bit words for a checksum (RFC 1071).
func addChecksum(s uint32, b []byte) uint32 {
	n := uint64(s)
	for ; len(b) >= 2; b = b[2:] {
		n += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		n += uint64(b[0]) << 8
	}
	for n>>32 != 0 {
		n = n&0xffffffff + n>>32
	}
	return uint32(n)
}

func foldChecksum(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
