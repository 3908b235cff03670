package roce

import "strconv"

// MTU is a path MTU, the largest payload of a packet (enum ib_mtu of verbs). 0 is not a valid MTU.
type MTU uint8

// The path MTUs.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// MaxOverhead is the number of bytes by which a link MTU must exceed the payload. The number is RXE_MAX_HDR_LENGTH of
// Linux, the sum of IPv6 (40), UDP (8), BTH (12), RETH (16) and ICRC (4). An RDMA WRITE Only with Immediate has 4 more
// bytes, and an XRC request 4 more than its RC counterpart. Over IPv6 and with a full payload, such a WRITE Only does
// not fit in the smallest link MTU for its path MTU.
const MaxOverhead = 80

// Valid reports whether m is one of the five path MTUs.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the path MTU in bytes, or 0 if m is not valid.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// Packets returns the number of packets of a message of n bytes. A message without data has one packet. m must be
// valid.
func (m MTU) Packets(n uint32) int {
	if n == 0 {
		return 1
	}
	return int((uint64(n) + 128<<m - 1) >> (7 + m))
}

// String returns the number of bytes.
func (m MTU) String() string { return strconv.Itoa(m.Bytes()) }

// MTUFromLink returns the largest path MTU with packets that fit in a link MTU of n bytes (the size of an IP packet, as
// interfaces report it). MTUFromLink returns 0 if no path MTU fits (eth_mtu_int_to_enum of Linux's rxe).
func MTUFromLink(n int) MTU {
	for m := MTU4096; m >= MTU256; m-- {
		if n-MaxOverhead >= m.Bytes() {
			return m
		}
	}
	return 0
}
