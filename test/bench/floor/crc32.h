// CRC-32 (IEEE 802.3, reflected), by carry-less multiplication if the processor supports the instruction.
//
// Folding: a 128-bit remainder R = (hi, lo) is moved past D bits by R' = hi*k(D-32) + lo*k(D+32) (reflected), with
// k(n) = x^n mod P. Four remainders are computed in parallel over blocks of 64 bytes. Then the four are folded into one, and the
// table processes the last 16 bytes.
#ifndef CRC32_H
#define CRC32_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc_table[8][256];

static void crc_init(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int bit = 0; bit < 8; bit++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
		crc_table[0][i] = c;
	}
	for (int t = 1; t < 8; t++)
		for (int i = 0; i < 256; i++)
			crc_table[t][i] = crc_table[t - 1][i] >> 8 ^ crc_table[0][crc_table[t - 1][i] & 255];
}

// crc_bytes updates a running remainder (no inversion), eight bytes at a time.
static uint32_t crc_bytes(uint32_t c, const unsigned char *p, size_t n)
{
	for (; n >= 8; n -= 8, p += 8) {
		uint64_t v;

		memcpy(&v, p, 8);
		v ^= c;
		c = 0;
		for (int i = 0; i < 8; i++)
			c ^= crc_table[7 - i][v >> 8 * i & 255];
	}
	while (n-- > 0)
		c = c >> 8 ^ crc_table[0][(c ^ *p++) & 255];
	return c;
}

#ifdef __x86_64__
#include <immintrin.h>

#define CRC_TARGET __attribute__((target("pclmul,sse4.1")))

CRC_TARGET static inline __m128i crc_fold(__m128i r, __m128i k, const void *next)
{
	return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(r, k, 0x00), _mm_clmulepi64_si128(r, k, 0x11)),
			     _mm_loadu_si128(next));
}

CRC_TARGET static uint32_t crc_folded(uint32_t c, const unsigned char *p, size_t n)
{
	const __m128i past512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4); // k(480), k(544), reflected
	const __m128i past128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0); // k(96), k(160), reflected
	__m128i r[4];
	unsigned char last[16];

	for (int i = 0; i < 4; i++)
		r[i] = _mm_loadu_si128((const void *)(p + 16 * i));
	r[0] = _mm_xor_si128(r[0], _mm_cvtsi32_si128(c));
	for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
		r[0] = crc_fold(r[0], past512, p);
		r[1] = crc_fold(r[1], past512, p + 16);
		r[2] = crc_fold(r[2], past512, p + 32);
		r[3] = crc_fold(r[3], past512, p + 48);
	}
	for (int i = 1; i < 4; i++)
		r[0] = crc_fold(r[0], past128, &r[i]);
	for (; n >= 16; p += 16, n -= 16)
		r[0] = crc_fold(r[0], past128, p);
	_mm_storeu_si128((void *)last, r[0]);
	return crc_bytes(crc_bytes(0, last, 16), p, n);
}
#endif

static uint32_t crc32(const void *p, size_t n)
{
#ifdef __x86_64__
	if (n >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
		return ~crc_folded(~0u, p, n);
#endif
	return ~crc_bytes(~0u, p, n);
}

// crc_check returns whether the fast implementations agree with the bitwise definition.
static inline int crc_check(void)
{
	unsigned char buf[700];
	uint32_t seed = 1;

	if (crc32("123456789", 9) != 0xcbf43926)
		return 0;
	for (size_t i = 0; i < sizeof buf; i++)
		buf[i] = (seed = seed * 1103515245 + 12345) >> 16;
	for (size_t n = 0; n <= sizeof buf; n++) {
		uint32_t c = ~0u;

		for (size_t i = 0; i < n; i++) {
			c ^= buf[i];
			for (int bit = 0; bit < 8; bit++)
				c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
		}
		if (crc32(buf, n) != ~c)
			return 0;
	}
	return 1;
}
#endif
