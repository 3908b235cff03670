package link

import (
	"math/bits"
	"sync"
	"time"
)

// heldPacket is a copy of a packet, or of consecutive ones, to be sent later.
type heldPacket struct {
	behind int       // so many packets to the same address may go first
	leaves time.Time // the shaper's queue
	train  Train
	damage damage
	sealed bool // and damaged
}

// Buffers of held packets come from pools, by the binary logarithm of their size.
const (
	minHeldBits = 8
	maxHeldBits = 16
)

var heldPools [maxHeldBits + 1]sync.Pool

// newHeld copies the packets from the i-th up to, not including, the j-th.
func newHeld(t *Train, i, j int) *heldPacket {
	c := t.cut(i, j)
	class := max(bits.Len(uint(len(c.Buf)-1)), minHeldBits)
	p, _ := heldPools[class].Get().(*heldPacket)
	if p == nil {
		p = &heldPacket{}
		p.train.Buf = make([]byte, 0, 1<<class)
	}
	buf := append(p.train.Buf[:0], c.Buf...)
	*p = heldPacket{train: c}
	p.train.Buf = buf
	if j-i == 1 {
		p.train.Size = len(buf)
	}
	return p
}

// free gives the buffer back.
func (p *heldPacket) free() {
	if class := bits.Len(uint(cap(p.train.Buf) - 1)); class >= minHeldBits && class <= maxHeldBits {
		heldPools[class].Put(p)
	}
}
