package uapi

import "encoding/binary"

// BE16, BE32 and BE64 are numbers that the ABI stores in network byte order (__be16, __be32, __be64).
type (
	BE16 [2]byte
	BE32 [4]byte
	BE64 [8]byte
)

// Uint16 returns the number.
func (b BE16) Uint16() uint16 { return binary.BigEndian.Uint16(b[:]) }

// Uint32 returns the number.
func (b BE32) Uint32() uint32 { return binary.BigEndian.Uint32(b[:]) }

// Uint64 returns the number.
func (b BE64) Uint64() uint64 { return binary.BigEndian.Uint64(b[:]) }

// NewBE16 returns v in network byte order.
func NewBE16(v uint16) (b BE16) { binary.BigEndian.PutUint16(b[:], v); return b }

// NewBE32 returns v in network byte order.
func NewBE32(v uint32) (b BE32) { binary.BigEndian.PutUint32(b[:], v); return b }

// NewBE64 returns v in network byte order.
func NewBE64(v uint64) (b BE64) { binary.BigEndian.PutUint64(b[:], v); return b }

// ImmData is the union named ex in work requests and completions. The union contains immediate data, as the four bytes
// on the wire, or the R_Key to invalidate, in host byte order.
type ImmData [4]byte

// Imm returns the immediate data in the byte order of the wire.
func (x ImmData) Imm() BE32 { return BE32(x) }

// InvalidateRKey returns the R_Key to invalidate.
func (x ImmData) InvalidateRKey() uint32 { return binary.NativeEndian.Uint32(x[:]) }

// NewImmRKey returns the union with an R_Key to invalidate.
func NewImmRKey(rkey uint32) (x ImmData) {
	binary.NativeEndian.PutUint32(x[:], rkey)
	return x
}
