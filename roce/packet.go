package roce

import "encoding/binary"

// Packet is a RoCEv2 packet in a buffer of the caller, from the BTH to the ICRC. A Packet provides views of the
// packet's parts. A Packet is valid only as long as the buffer, because nothing is copied.
type Packet struct {
	Opcode Opcode
	Flags  Flags  // properties of the opcode
	Data   []byte // the whole UDP payload, from the BTH to the ICRC
	// Payload excludes padding and ICRC. Payload is empty for a CNP.
	Payload []byte
}

// DropReason is an error of [ParsePacket] and [ParseBody]. The receiver drops a packet with such an error without a
// response. The values are small and dense. A driver can therefore count them in an array of [NumDropReasons] elements.
type DropReason uint8

// The reasons. The parsers do not return DropICRC. Callers of [Flow.Verify] use it.
const (
	DropTooShort   DropReason = iota // shorter than a BTH and an ICRC
	DropVersion                      // the transport header version is not 0
	DropOpcode                       // opcode not known
	DropHeaders                      // shorter than the headers of the opcode
	DropUnaligned                    // the length is not a multiple of 4
	DropPad                          // more padding than payload
	DropPayload                      // has a payload although the opcode has none
	DropICRC                         // wrong ICRC
	NumDropReasons = int(iota)
)

// Error returns a description of the reason.
func (r DropReason) Error() string {
	switch r {
	case DropTooShort:
		return "RoCEv2 packet shorter than BTH and ICRC"
	case DropVersion:
		return "RoCEv2 packet of unknown transport header version"
	case DropOpcode:
		return "RoCEv2 packet with unknown opcode"
	case DropHeaders:
		return "RoCEv2 packet shorter than the headers of its opcode"
	case DropUnaligned:
		return "RoCEv2 packet whose length is no multiple of 4"
	case DropPad:
		return "RoCEv2 packet with more padding than payload"
	case DropPayload:
		return "RoCEv2 packet with a payload that its opcode does not allow"
	case DropICRC:
		return "RoCEv2 packet with a wrong ICRC"
	}
	return "RoCEv2 packet dropped"
}

// ParsePacket checks the format of a UDP payload b and returns views of the packet's parts. ParsePacket does not check
// the ICRC; see [Flow.Verify]. The error is a [DropReason].
func ParsePacket(b []byte) (Packet, error) {
	if len(b) < BTHLen+ICRCLen {
		return Packet{}, DropTooShort
	}
	p, err := ParseBody(b[:len(b)-ICRCLen])
	if err != nil {
		return Packet{}, err
	}
	p.Data = b
	return p, nil
}

// ParseBody checks the format of a packet without its ICRC and returns views of the packet's parts. The caller has
// already verified the ICRC. In the result, Data is b, and Packet.ICRC must not be called. The error is a [DropReason].
// ParseBody does not check values that depend on a queue pair. These values are path MTU, P_Key, Q_Key, PSN, and the 8
// bytes of an ATOMIC WRITE.
func ParseBody(b []byte) (Packet, error) {
	if len(b) < BTHLen {
		return Packet{}, DropTooShort
	}
	h := BTH(b)
	if h.TVer() != 0 {
		return Packet{}, DropVersion
	}
	op := h.Opcode()
	info := &opcodes[op]
	start := int(info.len)
	if start == 0 {
		return Packet{}, DropOpcode
	}
	n := len(b) - start // payload and padding
	pad := h.PadCount()
	switch {
	case n < 0:
		return Packet{}, DropHeaders
	case len(b)&3 != 0:
		return Packet{}, DropUnaligned
	case pad > n:
		return Packet{}, DropPad
	case n > 0 && info.flags&FlagPayload == 0:
		return Packet{}, DropPayload
	}
	end := start + n - pad
	return Packet{Opcode: op, Flags: info.flags, Data: b, Payload: b[start:end:end]}, nil
}

// NewPacket lays out a packet with n bytes of payload at the start of buf, whose capacity must be at least
// [Opcode.PacketLen]. NewPacket writes the BTH from f, but computes the pad count from n. NewPacket also zeroes the
// padding. NewPacket panics if the capacity is too small, the opcode is unknown or n is negative. NewPacket also panics
// if n > 0 and the opcode has no payload.
//
// The caller must encode every extended header of the opcode, because buf is not cleared. The caller then fills Payload
// and calls [Flow.Seal] on Data.
func NewPacket(buf []byte, f *BTHFields, n int) Packet {
	info := &opcodes[f.Opcode]
	start := int(info.len)
	if start == 0 || n < 0 || n > 0 && info.flags&FlagPayload == 0 {
		panic("roce: NewPacket: no " + f.Opcode.String() + " with such a payload")
	}
	end := start + n
	pad := PadCount(n)
	size := end + pad + ICRCLen
	b := buf[:size:size]
	h := BTH(b)
	h.Encode(f)
	h.SetPadCount(pad)
	clear(b[end : end+pad])
	return Packet{Opcode: f.Opcode, Flags: info.flags, Data: b, Payload: b[start:end:end]}
}

// PadCount returns the number of padding bytes after a payload of n bytes.
func PadCount(n int) int { return -n & 3 }

// PacketLen returns the length in bytes of a packet with n bytes of payload. The length includes all headers, payload,
// padding and ICRC. The result is the length of the UDP payload.
func (op Opcode) PacketLen(n int) int {
	return int(opcodes[op].len) + (n+3)&^3 + ICRCLen
}

// BTH returns the base transport header.
func (p *Packet) BTH() BTH { return BTH(p.Data[:BTHLen:BTHLen]) }

// RETH returns the RDMA extended header, or nil if the opcode has none. The methods for other headers work in the same
// way. [Packet.Flags] shows which headers exist.
func (p *Packet) RETH() RETH { return headerView(p.Data, opcodes[p.Opcode].reth, RETHLen) }

// AETH returns the acknowledgement extended header, or nil.
func (p *Packet) AETH() AETH { return headerView(p.Data, opcodes[p.Opcode].aeth, AETHLen) }

// ImmDt returns the immediate data header, or nil.
func (p *Packet) ImmDt() ImmDt { return headerView(p.Data, opcodes[p.Opcode].immdt, ImmDtLen) }

// IETH returns the invalidate extended header, or nil.
func (p *Packet) IETH() IETH { return headerView(p.Data, opcodes[p.Opcode].ieth, IETHLen) }

// DETH returns the datagram extended header, or nil.
func (p *Packet) DETH() DETH { return headerView(p.Data, opcodes[p.Opcode].deth, DETHLen) }

// SRDETH returns the SRD extended header, or nil.
func (p *Packet) SRDETH() SRDETH { return headerView(p.Data, opcodes[p.Opcode].srdeth, SRDETHLen) }

// AtomicETH returns the atomic extended header, or nil.
func (p *Packet) AtomicETH() AtomicETH {
	return headerView(p.Data, opcodes[p.Opcode].atomiceth, AtomicETHLen)
}

// AtomicAckETH returns the atomic acknowledgement extended header, or nil.
func (p *Packet) AtomicAckETH() AtomicAckETH {
	return headerView(p.Data, opcodes[p.Opcode].atomicacketh, AtomicAckETHLen)
}

// XRCETH returns the XRC extended header, or nil.
func (p *Packet) XRCETH() XRCETH { return headerView(p.Data, opcodes[p.Opcode].xrceth, XRCETHLen) }

// FETH returns the FLUSH extended header, or nil.
func (p *Packet) FETH() FETH { return headerView(p.Data, opcodes[p.Opcode].feth, FETHLen) }

// ICRC returns the invariant CRC in the packet, even if it is invalid.
func (p *Packet) ICRC() uint32 { return binary.LittleEndian.Uint32(p.Data[len(p.Data)-ICRCLen:]) }

func headerView(b []byte, off uint8, n int) []byte {
	if off == 0 {
		return nil
	}
	return b[off : int(off)+n : int(off)+n]
}
