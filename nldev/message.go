package nldev

import (
	"encoding/binary"
	"strings"
)

// A datagram is a datagram under construction, like the kernel's socket buffer. An attribute or header that does
// not fit is omitted and sets full. The caller checks full once after a series of calls.
type datagram struct {
	b    []byte
	size int // maximum length of b
	full bool
}

// reserveBytes appends n zero bytes, rounded up to the alignment, and returns their offset. reserveBytes returns false
// if they do not fit.
func (d *datagram) reserveBytes(n int) (int, bool) {
	at := len(d.b)
	if d.full || align(n) > d.size-at {
		d.full = true
		return 0, false
	}
	d.b = append(d.b, make([]byte, align(n))...)
	return at, true
}

// beginMessage appends the header of a message and returns its offset for end, which sets the length. Mirrors
// nlmsg_put.
func (d *datagram) beginMessage(typ, flags uint16, seq, portID uint32) int {
	at, ok := d.reserveBytes(headerSize)
	if ok {
		binary.NativeEndian.PutUint16(d.b[at+4:], typ)
		binary.NativeEndian.PutUint16(d.b[at+6:], flags)
		binary.NativeEndian.PutUint32(d.b[at+8:], seq)
		binary.NativeEndian.PutUint32(d.b[at+12:], portID)
	}
	return at
}

// endMessage sets the length of the message that begin appended at the offset. Mirrors nlmsg_end.
func (d *datagram) endMessage(at int) { binary.NativeEndian.PutUint32(d.b[at:], uint32(len(d.b)-at)) }

// truncateTo removes all bytes from the offset on, and clears full. truncateTo mirrors nlmsg_cancel and
// nla_nest_cancel.
func (d *datagram) truncateTo(at int) {
	d.b = d.b[:at]
	d.full = false
}

// reserveAttr appends an attribute with a payload of n zero bytes, and returns the payload. The payload is nil if d is
// full.
func (d *datagram) reserveAttr(typ uint16, n int) []byte {
	at, ok := d.reserveBytes(attrSize + n)
	if !ok {
		return nil
	}
	binary.NativeEndian.PutUint16(d.b[at:], uint16(attrSize+n))
	binary.NativeEndian.PutUint16(d.b[at+2:], typ)
	return d.b[at+attrSize : at+attrSize+n]
}

// putU8 appends an attribute of one byte.
func (d *datagram) putU8(typ uint16, v uint8) {
	if p := d.reserveAttr(typ, 1); p != nil {
		p[0] = v
	}
}

// putU32 appends an attribute of 32 bits.
func (d *datagram) putU32(typ uint16, v uint32) {
	if p := d.reserveAttr(typ, 4); p != nil {
		binary.NativeEndian.PutUint32(p, v)
	}
}

// putU64 appends an attribute of 64 bits, without the padding that machines with aligned access use.
func (d *datagram) putU64(typ uint16, v uint64) {
	if p := d.reserveAttr(typ, 8); p != nil {
		binary.NativeEndian.PutUint64(p, v)
	}
}

// putFlag appends an attribute of one byte, which is 1 for true.
func (d *datagram) putFlag(typ uint16, v bool) {
	var b uint8
	if v {
		b = 1
	}
	d.putU8(typ, b)
}

// putText appends a string with its terminating NUL. The string ends at the first NUL that it contains.
func (d *datagram) putText(typ uint16, s string) {
	s, _, _ = strings.Cut(s, "\x00")
	copy(d.reserveAttr(typ, len(s)+1), s)
}

// beginNest appends the header of a nested attribute and returns its offset, for endNest. typ contains attrFlagNested
// only for some tables. beginNest mirrors nla_nest_start and nla_nest_start_noflag.
func (d *datagram) beginNest(typ uint16) int {
	at := len(d.b)
	d.reserveAttr(typ, 0)
	return at
}

// endNest sets the length of the nested attribute at the offset. endNest does nothing if d is full, in which case
// the attribute may not exist. Mirrors nla_nest_end.
func (d *datagram) endNest(at int) {
	if !d.full {
		binary.NativeEndian.PutUint16(d.b[at:], uint16(len(d.b)-at))
	}
}
