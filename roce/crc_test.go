package roce

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// slowMul multiplies bit by bit. For each coefficient of a, from x^0 in bit 31 upwards, it adds b times this power of
// x.
func slowMul(a, b uint32) uint32 {
	var r uint32
	for i := 31; i >= 0; i-- {
		if a>>i&1 != 0 {
			r ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.IEEE
		}
	}
	return r
}

func TestMulPoly(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	words := []uint32{0, 1, 1 << 31, 1 << 30, 0xffffffff, 0x11111111, 0x88888888, crc32.IEEE}
	for range 100 {
		words = append(words, rnd.Uint32())
	}
	for _, a := range words {
		for _, b := range words {
			if got, want := mulPoly(a, b), slowMul(a, b); got != want {
				t.Fatalf("mul(%#x, %#x) = %#x, want %#x", a, b, got, want)
			}
		}
	}
}

func TestUpdateIsCRC32(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, 100)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	for n := range b {
		if got, want := ^updateCRC(0xffffffff, b[:n]), crc32.ChecksumIEEE(b[:n]); got != want {
			t.Errorf("%d bytes: %#x, want %#x", n, got, want)
		}
	}
	ones := updateCRC(0xffffffff, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	if ones != stateOnes {
		t.Errorf("state after eight ones: got %#x, want %#x", ones, uint32(stateOnes))
	}
}

func TestUndoZeroBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	zeros := make([]byte, 1<<16-1)
	lengths := []int{0, 1, 2, 255, 256, 257, 65535}
	for range 200 {
		lengths = append(lengths, rnd.IntN(1<<16))
	}
	for _, n := range lengths {
		s := rnd.Uint32()
		shifted := ^crc32.Update(^s, crc32.IEEETable, zeros[:n])
		if got := undoZeroBytes(shifted, n); got != s {
			t.Errorf("unshift of %d zeros from %#x: got %#x, want %#x", n, shifted, got, s)
		}
	}
}
