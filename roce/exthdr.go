package roce

import "encoding/binary"

// Lengths of the extended headers in bytes.
const (
	RETHLen         = 16
	AETHLen         = 4
	SRDETHLen       = 8
	ImmDtLen        = 4
	IETHLen         = 4
	DETHLen         = 8
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
	XRCETHLen       = 4
	FETHLen         = 4
	CNPLen          = 16 // number of reserved bytes of a congestion notification packet
)

// RETH is the RDMA extended header of RDMA READ and WRITE requests, of FLUSH and of ATOMIC WRITE (IBA 9.3.3). A RETH
// has [RETHLen] bytes.
type RETH []byte

// Encode writes all fields: the remote address, the key of the remote memory, and the length of the whole message in
// bytes.
func (h RETH) Encode(va uint64, rkey, length uint32) {
	_ = h[RETHLen-1]
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint32(h[12:], length)
}

// VA returns the remote virtual address.
func (h RETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the key of the remote memory.
func (h RETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// DMALen returns the length of the whole message in bytes.
func (h RETH) DMALen() uint32 { return binary.BigEndian.Uint32(h[12:]) }

// AETH is the acknowledgement extended header of responses (IBA 9.3.5). An AETH has [AETHLen] bytes and contains a
// [Syndrome] and the responder's message sequence number.
type AETH []byte

// Encode writes all fields. msn has 24 bits.
func (h AETH) Encode(s Syndrome, msn uint32) {
	binary.BigEndian.PutUint32(h, uint32(s)<<24|msn&PSNMask)
}

// Syndrome returns the kind of the acknowledgement with its credits, timer or code.
func (h AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// MSN returns the message sequence number. The number counts, modulo 2^24, the requests that the responder has
// completed.
func (h AETH) MSN() uint32 { return binary.BigEndian.Uint32(h) & PSNMask }

// ImmDt is the immediate data header (IBA 9.3.6). An ImmDt has [ImmDtLen] bytes.
type ImmDt []byte

// Encode writes the immediate data as a number in network byte order.
func (h ImmDt) Encode(imm uint32) { binary.BigEndian.PutUint32(h, imm) }

// Data returns the immediate data as a number. In verbs, imm_data is a __be32 with the bytes of the header in unchanged
// order.
func (h ImmDt) Data() uint32 { return binary.BigEndian.Uint32(h) }

// IETH is the invalidate extended header (IBA 9.3.7). An IETH has [IETHLen] bytes.
type IETH []byte

// Encode writes the key that the receiver must invalidate.
func (h IETH) Encode(rkey uint32) { binary.BigEndian.PutUint32(h, rkey) }

// RKey returns the key to invalidate.
func (h IETH) RKey() uint32 { return binary.BigEndian.Uint32(h) }

// DETH is the datagram extended header (IBA 9.3.2). A DETH has [DETHLen] bytes.
type DETH []byte

// GSIQKey is the queue key of the general services queue pair.
const GSIQKey = 0x80010000

// Encode writes all fields. srcQPN has 24 bits.
func (h DETH) Encode(qkey, srcQPN uint32) {
	_ = h[DETHLen-1]
	binary.BigEndian.PutUint32(h, qkey)
	binary.BigEndian.PutUint32(h[4:], srcQPN&PSNMask)
}

// QKey returns the queue key. The key must equal the queue key of the receiving queue pair.
func (h DETH) QKey() uint32 { return binary.BigEndian.Uint32(h) }

// SrcQPN returns the number of the sending queue pair.
func (h DETH) SrcQPN() uint32 { return binary.BigEndian.Uint32(h[4:]) & PSNMask }

// SRDETH is the SRD extended header of Verbena. An SRDETH has [SRDETHLen] bytes.
//
//	+---------------------------------------------------------------+
//	|                 identifier of the receiver                    |
//	+---------------------------------------------------------------+
//	|            identifier of the sender, or a status              |
//	+---------------------------------------------------------------+
type SRDETH []byte

// Encode writes all fields.
func (h SRDETH) Encode(to, value uint32) {
	_ = h[SRDETHLen-1]
	binary.BigEndian.PutUint32(h, to)
	binary.BigEndian.PutUint32(h[4:], value)
}

// To returns the identifier that the receiver of the packet has given to the flow; 0 in an Open.
func (h SRDETH) To() uint32 { return binary.BigEndian.Uint32(h) }

// Value returns the identifier that the sender of the packet has given to the flow, or, of a Refuse, the status.
func (h SRDETH) Value() uint32 { return binary.BigEndian.Uint32(h[4:]) }

// AtomicETH is the header of CmpSwap and FetchAdd requests (IBA 9.3.4). An AtomicETH has [AtomicETHLen] bytes.
type AtomicETH []byte

// Encode writes all fields. For FetchAdd, swapAdd is the number to add, and compare is 0.
func (h AtomicETH) Encode(va uint64, rkey uint32, swapAdd, compare uint64) {
	_ = h[AtomicETHLen-1]
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint64(h[12:], swapAdd)
	binary.BigEndian.PutUint64(h[20:], compare)
}

// VA returns the remote virtual address. The address must be a multiple of 8.
func (h AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the key of the remote memory.
func (h AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// SwapAdd returns the value to store (CmpSwap) or to add (FetchAdd).
func (h AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:]) }

// Compare returns the value that CmpSwap expects.
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// AtomicAckETH is the header of the response to an atomic operation (IBA 9.3.5.3). An AtomicAckETH has
// [AtomicAckETHLen] bytes.
type AtomicAckETH []byte

// Encode writes the value of the memory before the operation.
func (h AtomicAckETH) Encode(orig uint64) { binary.BigEndian.PutUint64(h, orig) }

// Orig returns the value of the memory before the operation.
func (h AtomicAckETH) Orig() uint64 { return binary.BigEndian.Uint64(h) }

// XRCETH is the header of XRC requests (IBA annex A14). An XRCETH has [XRCETHLen] bytes.
type XRCETH []byte

// Encode writes the number of the shared receive queue. The number has 24 bits.
func (h XRCETH) Encode(srqn uint32) { binary.BigEndian.PutUint32(h, srqn&PSNMask) }

// SRQN returns the number of the shared receive queue for the request.
func (h XRCETH) SRQN() uint32 { return binary.BigEndian.Uint32(h) & PSNMask }

// FlushType is the set of placement types of a FLUSH: enum
// ib_placement_type of Linux.
type FlushType uint8

// Placement types.
const (
	FlushGlobal     FlushType = 1 << 0 // global visibility
	FlushPersistent FlushType = 1 << 1 // persistence
)

// FlushLevel is the selectivity level of a FLUSH: enum ib_selectivity_level
// of Linux.
type FlushLevel uint8

// Selectivity levels.
const (
	FlushRange FlushLevel = 0 // the range in the RETH
	FlushMR    FlushLevel = 1 // the whole memory region
)

// FETH is the header of a FLUSH (IBA annex A19). A [RETH] follows it. A FETH has [FETHLen] bytes.
type FETH []byte

const (
	fethTypeMask   = 0x0f
	fethLevelShift = 4
	fethLevelMask  = 0x30
)

// Encode writes all fields.
func (h FETH) Encode(t FlushType, l FlushLevel) {
	binary.BigEndian.PutUint32(h, uint32(l)<<fethLevelShift&fethLevelMask|uint32(t)&fethTypeMask)
}

// Type returns the set of placement types.
func (h FETH) Type() FlushType { return FlushType(h[3] & fethTypeMask) }

// Level returns the selectivity level.
func (h FETH) Level() FlushLevel { return FlushLevel(h[3] & fethLevelMask >> fethLevelShift) }
