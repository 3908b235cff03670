package roce

import "encoding/binary"

// GRHLen is the length in bytes of a [GRH]. The GRH precedes the payload in each receive buffer of a datagram queue
// pair.
const GRHLen = 40

// GRH is the global routing header of a received datagram (IBA A17.4.5.2). A GRH consists of the IPv6 header of the
// packet, or of 20 undefined bytes followed by the IPv4 header. Each accessor requires at least [GRHLen] bytes. The
// accessors distinguish the two formats that [GRH.Encode] writes.
type GRH []byte

// GRHFields are the fields of a [GRH]. The header is an IPv4 header if both GIDs are IPv4 addresses.
type GRHFields struct {
	TrafficClass uint8  // IPv4: type of service
	FlowLabel    uint32 // 20 bits; only for IPv6
	HopLimit     uint8  // IPv4: time to live
	ID           uint16 // identification; IPv4 only
	PacketLen    int    // number of bytes from the BTH to the ICRC, at most 65507 (IPv6: 65527)
	SGID, DGID   GID
}

// Encode writes all 40 bytes. The IPv4 header has a valid checksum. ibv_init_ah_from_wc uses the checksum to
// distinguish the header from a part of an IPv6 header.
func (h GRH) Encode(f *GRHFields) {
	_ = h[GRHLen-1]
	udp := udpLen + f.PacketLen
	if !f.SGID.Is4() || !f.DGID.Is4() {
		tcFlow := uint32(f.TrafficClass)<<20 | f.FlowLabel&flowLabelMask
		binary.BigEndian.PutUint32(h, 6<<28|tcFlow)
		binary.BigEndian.PutUint16(h[4:], uint16(udp))
		h[6], h[7] = protUDP, f.HopLimit
		copy(h[8:24], f.SGID[:])
		copy(h[24:40], f.DGID[:])
		return
	}
	clear(h[:GRHLen-ip4Len])
	ip := h[GRHLen-ip4Len : GRHLen]
	ip[0], ip[1] = 0x45, f.TrafficClass
	binary.BigEndian.PutUint16(ip[2:], uint16(ip4Len+udp))
	binary.BigEndian.PutUint16(ip[ipv4IDOffset:], f.ID)
	binary.BigEndian.PutUint16(ip[6:], ip4DF)
	ip[8], ip[9] = f.HopLimit, protUDP
	ip[10], ip[11] = 0, 0
	copy(ip[12:16], f.SGID[12:])
	copy(ip[16:20], f.DGID[12:])
	binary.BigEndian.PutUint16(ip[10:], ^ip4Checksum(ip))
}

// ip4Checksum returns the one's complement sum of the 16-bit words of an IPv4 header.
func ip4Checksum(h []byte) uint16 {
	var s uint32
	for i := 0; i < ip4Len; i += 2 {
		s += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// Version returns 6 or 4. Version returns 0 if h is neither an IPv6 nor an IPv4 header.
func (h GRH) Version() int {
	switch {
	case h[0]>>4 == 6:
		return 6
	case h[GRHLen-ip4Len]>>4 == 4:
		return 4
	}
	return 0
}

// TrafficClass returns the traffic class (IPv6) or the type of service (IPv4).
func (h GRH) TrafficClass() uint8 {
	if h.Version() == 6 {
		return uint8(binary.BigEndian.Uint16(h) >> 4)
	}
	return h[GRHLen-ip4Len+1]
}

// FlowLabel returns the flow label. FlowLabel returns 0 for IPv4.
func (h GRH) FlowLabel() uint32 {
	if h.Version() == 6 {
		return binary.BigEndian.Uint32(h) & flowLabelMask
	}
	return 0
}

// HopLimit returns the hop limit (IPv6) or the time to live (IPv4).
func (h GRH) HopLimit() uint8 {
	if h.Version() == 6 {
		return h[7]
	}
	return h[GRHLen-ip4Len+8]
}

// SGID returns the address of the sender.
func (h GRH) SGID() GID {
	if h.Version() == 6 {
		return GID(h[8:24])
	}
	return gidFromIPv4(h[32:36])
}

// DGID returns the destination address of the datagram.
func (h GRH) DGID() GID {
	if h.Version() == 6 {
		return GID(h[24:40])
	}
	return gidFromIPv4(h[36:40])
}

func gidFromIPv4(a []byte) GID {
	g := GID{10: 0xff, 11: 0xff}
	copy(g[12:], a)
	return g
}
