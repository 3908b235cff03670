package roce

import "encoding/binary"

// UDPPort is the UDP destination port of RoCEv2.
const UDPPort = 4791

const (
	// BTHLen is the length of a [BTH] in bytes.
	BTHLen = 12
	// ICRCLen is the length of the invariant CRC that ends each packet.
	ICRCLen = 4
	// DefaultPKey is the default partition key with full membership.
	DefaultPKey = 0xffff
)

// Well-known queue pair numbers.
const (
	QPNSMI       = 0        // subnet management; not used on RoCE
	QPNGSI       = 1        // general services: connection management
	QPNMulticast = 0xffffff // destination of multicast datagrams
)

// BTH is the base transport header that starts every packet (IBA 9.2). Each accessor requires at least [BTHLen] bytes.
//
//	 0               8               16              24            31
//	+---------------+-+-+---+-------+-------------------------------+
//	|    opcode     |S|M|pad| TVer  |            P_Key              |
//	+-+-+-----------+-+-+---+-------+-------------------------------+
//	|F|B|   resv    |             destination QPN                   |
//	+-+-+-----------+-----------------------------------------------+
//	|A|   resv      |                   PSN                         |
//	+-+-------------+-----------------------------------------------+
//
// Routers may change the byte with FECN and BECN. The ICRC therefore treats this byte as all ones.
type BTH []byte

const (
	bthFlags = 1
	bthPKey  = 2
	bthQPN   = 4
	bthPSN   = 8

	bthSolicited = 0x80
	bthMigReq    = 0x40
	bthPadShift  = 4
	bthTVer      = 0x0f
	bthFECN      = 0x80
	bthBECN      = 0x40
	bthAckReq    = 0x80
)

// BTHFields are the fields of a [BTH]. The transport header version is always 0.
type BTHFields struct {
	Opcode         Opcode
	SolicitedEvent bool  // requests an event at the receiver's CQ
	MigReq         bool  // the sender's path migration state is MIGRATED; Linux's rxe sends 0
	PadCount       uint8 // bytes of padding after the payload, 0 to 3
	PKey           uint16
	FECN, BECN     bool   // congestion on the path to the receiver, and on the return path
	DestQPN        uint32 // 24 bits
	AckReq         bool
	PSN            PSN
}

// Encode writes all fields of f to b.
func (b BTH) Encode(f *BTHFields) {
	_ = b[BTHLen-1]
	flags := (f.PadCount & 3) << bthPadShift
	if f.SolicitedEvent {
		flags |= bthSolicited
	}
	if f.MigReq {
		flags |= bthMigReq
	}
	qpn := f.DestQPN & PSNMask
	if f.FECN {
		qpn |= bthFECN << 24
	}
	if f.BECN {
		qpn |= bthBECN << 24
	}
	psn := uint32(f.PSN) & PSNMask
	if f.AckReq {
		psn |= bthAckReq << 24
	}
	b[0] = uint8(f.Opcode)
	b[bthFlags] = flags
	binary.BigEndian.PutUint16(b[bthPKey:], f.PKey)
	binary.BigEndian.PutUint32(b[bthQPN:], qpn)
	binary.BigEndian.PutUint32(b[bthPSN:], psn)
}

// Opcode returns the opcode. The opcode may be unknown.
func (b BTH) Opcode() Opcode { return Opcode(b[0]) }

// SetSolicitedEvent sets SolicitedEvent.
func (b BTH) SetSolicitedEvent() { b[bthFlags] |= bthSolicited }

// SolicitedEvent reports whether the sender requests a completion event.
func (b BTH) SolicitedEvent() bool { return b[bthFlags]&bthSolicited != 0 }

// MigReq reports whether the sender's path migration state is MIGRATED.
func (b BTH) MigReq() bool { return b[bthFlags]&bthMigReq != 0 }

// PadCount returns the number of padding bytes between payload and ICRC, 0 to 3.
func (b BTH) PadCount() int { return int(b[bthFlags]>>bthPadShift) & 3 }

// TVer returns the transport header version, which must be 0.
func (b BTH) TVer() uint8 { return b[bthFlags] & bthTVer }

// PKey returns the partition key.
func (b BTH) PKey() uint16 { return binary.BigEndian.Uint16(b[bthPKey:]) }

// FECN (forward explicit congestion notification) reports congestion on the path to the receiver.
func (b BTH) FECN() bool { return b[bthQPN]&bthFECN != 0 }

// BECN (backward explicit congestion notification) reports congestion on the reverse path. A packet with BECN is a
// response to packets of the reverse path.
func (b BTH) BECN() bool { return b[bthQPN]&bthBECN != 0 }

// DestQPN returns the number of the destination queue pair.
func (b BTH) DestQPN() uint32 { return binary.BigEndian.Uint32(b[bthQPN:]) & PSNMask }

// AckReq reports whether the requester requests an acknowledgement.
func (b BTH) AckReq() bool { return b[bthPSN]&bthAckReq != 0 }

// PSN returns the sequence number of the packet.
func (b BTH) PSN() PSN { return PSN(binary.BigEndian.Uint32(b[bthPSN:]) & PSNMask) }

// SetPadCount changes only the pad count. n must be 0 to 3.
func (b BTH) SetPadCount(n int) {
	b[bthFlags] = b[bthFlags]&^(3<<bthPadShift) | uint8(n&3)<<bthPadShift
}

// SetAckReq changes only the acknowledge request bit.
func (b BTH) SetAckReq(asks bool) {
	b[bthPSN] &^= bthAckReq
	if asks {
		b[bthPSN] |= bthAckReq
	}
}

// SetPSN changes only the sequence number, for example for the next segment of a message.
func (b BTH) SetPSN(p PSN) {
	a := uint32(b[bthPSN]) << 24
	binary.BigEndian.PutUint32(b[bthPSN:], a|uint32(p)&PSNMask)
}
