package link

import (
	"math/bits"
	"sync"
	"time"
)

// heldPacket is a copy of one packet or of consecutive packets, held for later sending.
type heldPacket struct {
	behind int       // number of packets to the same address that may overtake it
	leaves time.Time // time at which it leaves the queue of the shaper
	train  Train
	damage damage
	sealed bool // sealed, with the damage applied
}

// Pools of the buffers of held packets, by the binary logarithm of the size.
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

// free returns the packet and its buffer to the pool.
func (p *heldPacket) free() {
	if class := bits.Len(uint(cap(p.train.Buf) - 1)); class >= minHeldBits && class <= maxHeldBits {
		heldPools[class].Put(p)
	}
}
