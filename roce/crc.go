package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// This file contains the arithmetic of the ICRC. A state is a polynomial over GF(2) modulo the polynomial of CRC-32.
// The coefficient of x^31 is in bit 0 ("reflected"). A zero byte multiplies the state by x^8. For any other byte of the
// message, the byte is first added to the low eight bits of the state.

// ipv4IDOffset is the offset of the identification in an IPv4 header.
const ipv4IDOffset = 4

// crcTables is read-only after the initialisation of the package.
var crcTables struct {
	// shift[n][v] is the state that follows from state 0 after a byte v and n zero bytes.
	shift [8][256]uint32
	// The next tables are the same for fields of the IP and UDP headers, high byte first, up to the end of the UDP
	// header. The entry for the length of IPv6 includes the length of UDP, because both have the same value.
	len4, id4, len6 [2][256]uint32
	// The next tables are x^(-8 n) and x^(-8 256 n). The tables undo n bytes or n times 256 bytes.
	back, back256 [256]uint32
}

func init() {
	t := &crcTables
	cur := [256]uint32(*crc32.IEEETable)
	for n := range ip6Len + udpLen {
		if n < len(t.shift) {
			t.shift[n] = cur
		}
		// off is the offset in the headers of a byte that n bytes follow.
		switch off := ip4Len + udpLen - 1 - n; off {
		case 2, 3:
			t.len4[off-2] = cur
		case ipv4IDOffset, ipv4IDOffset + 1:
			t.id4[off-ipv4IDOffset] = cur
		}
		switch off := ip6Len + udpLen - 1 - n; off {
		case 4, 5:
			for v := range cur {
				t.len6[off-4][v] ^= cur[v]
			}
		case ip6Len + 4, ip6Len + 5:
			for v := range cur {
				t.len6[off-ip6Len-4][v] ^= cur[v]
			}
		}
		for v, s := range cur {
			cur[v] = s>>8 ^ crc32.IEEETable[s&0xff]
		}
	}

	p := uint32(1 << 31) // x^0
	for n := range t.back {
		t.back[n] = p
		for range 8 {
			// Each iteration undoes one bit step of the CRC. The polynomial was added if and only if its lowest coefficient,
			// that of x^0, is in bit 31.
			if p&(1<<31) != 0 {
				p = (p^crc32.IEEE)<<1 | 1
			} else {
				p <<= 1
			}
		}
	}
	// At this point p is x^(-8 256).
	q := uint32(1 << 31)
	for n := range t.back256 {
		t.back256[n] = q
		q = mulPoly(q, p)
	}
}

// crcStep8 advances a state by eight bytes. The bytes are given as two little-endian words.
func crcStep8(s, lo, hi uint32) uint32 {
	t := &crcTables.shift
	lo ^= s
	return t[7][lo&0xff] ^ t[6][lo>>8&0xff] ^ t[5][lo>>16&0xff] ^ t[4][lo>>24] ^
		t[3][hi&0xff] ^ t[2][hi>>8&0xff] ^ t[1][hi>>16&0xff] ^ t[0][hi>>24]
}

// updateCRC advances a state by the bytes of p. p does not escape to the heap.
func updateCRC(s uint32, p []byte) uint32 {
	for len(p) >= 8 {
		s = crcStep8(s, binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]))
		p = p[8:]
	}
	for _, b := range p {
		s = s>>8 ^ crcTables.shift[0][uint8(s)^b]
	}
	return s
}

// undoZeroBytes undoes the effect of n zero bytes on a state. n is less than 64 KiB.
func undoZeroBytes(s uint32, n int) uint32 {
	return mulPoly(mulPoly(s, crcTables.back[n&0xff]), crcTables.back256[n>>8])
}

// mulPoly multiplies two polynomials.
func mulPoly(a, b uint32) uint32 {
	t := &crcTables.shift
	// The product of degree 62 is shifted so that x^63 is in bit 0. The low word is then a state. Four more zero bytes
	// move this state to the position of the high word.
	p := clmul(a, b) << 1
	lo := uint32(p)
	return uint32(p>>32) ^
		t[3][lo&0xff] ^ t[2][lo>>8&0xff] ^ t[1][lo>>16&0xff] ^ t[0][lo>>24]
}

// clmul multiplies without carries. clmul uses integer multiplication on every fourth bit of the operands. At most
// eight ones meet in a bit of a product. The carries therefore remain in the three bits above, which are masked out.
func clmul(a, b uint32) uint64 {
	const m = 0x1111111111111111
	x, y := uint64(a), uint64(b)
	x0, x1, x2, x3 := x&m, x&(m<<1), x&(m<<2), x&(m<<3)
	y0, y1, y2, y3 := y&m, y&(m<<1), y&(m<<2), y&(m<<3)
	return (x0*y0^x1*y3^x2*y2^x3*y1)&m |
		(x0*y1^x1*y0^x2*y3^x3*y2)&(m<<1) |
		(x0*y2^x1*y1^x2*y0^x3*y3)&(m<<2) |
		(x0*y3^x1*y2^x2*y1^x3*y0)&(m<<3)
}
