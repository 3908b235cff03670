package transport

import (
	"math/bits"

	"verbena/roce"
)

// SRD is the reliable service without order between messages of a queue pair that talks to many peers: requests of one
// packet, which a receiver executes in the order of arrival. A flow is one direction between two queue pairs. An
// [SRDSender] and an [SRDReceiver] are its ends. Each packet of a flow has a PSN, in the order of the first
// transmission. A long RDMA WRITE or READ is many requests; the last packet of a WRITE with immediate is sent when all
// others are acknowledged. The receiver therefore keeps no state of a message.
//
// Times are in nanoseconds from any origin.

// SRDWindow is the number of consecutive PSNs of a flow that may be outstanding. The receiver's bitmap has that size.
const SRDWindow = 256

// SRDBitmapLen is the length of the bitmap in an acknowledgement, in bytes, at most.
const SRDBitmapLen = SRDWindow / 8

// Random is a sequence of pseudo-random numbers (xorshift32).
type Random uint32

// NewRandom returns the sequence of a seed.
func NewRandom(seed uint32) Random { return Random(seed | 1) }

// Next returns the next number, which is never 0.
func (r *Random) Next() uint32 {
	*r ^= *r << 13
	*r ^= *r >> 17
	*r ^= *r << 5
	return uint32(*r)
}

// SRDReceiver is the receiving end of a flow: it knows which PSNs have been executed.
type SRDReceiver struct {
	base    roce.PSN // the oldest that has not been executed
	bits    [SRDWindow / 64]uint64
	skipped [2 * SRDWindow / 64]uint64 // PSNs that Skip has executed, of all that a sender may send
}

// SRDArrival is the place of a packet among the executed packets.
type SRDArrival uint8

const (
	SRDNew     SRDArrival = iota
	SRDAgain              // the packet was executed before; acknowledge it again
	SRDOutside            // no sender sends it now
)

// Begin sets the PSN of the first packet.
func (r *SRDReceiver) Begin(psn roce.PSN) { *r = SRDReceiver{base: psn} }

// PSN returns the oldest PSN that has not been executed.
func (r *SRDReceiver) PSN() roce.PSN { return r.base }

func (r *SRDReceiver) skip(psn roce.PSN) (word *uint64, mask uint64) {
	i := uint32(psn) % (2 * SRDWindow)
	return &r.skipped[i/64], 1 << (i % 64)
}

func (r *SRDReceiver) bit(psn roce.PSN) (word *uint64, mask uint64) {
	i := uint32(psn) % SRDWindow
	return &r.bits[i/64], 1 << (i % 64)
}

// Arrive returns the place of a packet that has arrived.
func (r *SRDReceiver) Arrive(psn roce.PSN) SRDArrival {
	switch d := psn.Diff(r.base); {
	case d >= SRDWindow || d < -SRDWindow:
		return SRDOutside
	case d < 0:
		return SRDAgain
	}
	if word, mask := r.bit(psn); *word&mask != 0 {
		return SRDAgain
	}
	return SRDNew
}

// Executed notes that the packet with a PSN, for which Arrive has returned SRDNew, has been executed.
func (r *SRDReceiver) Executed(psn roce.PSN) {
	word, mask := r.skip(psn)
	*word &^= mask
	r.mark(psn)
}

// Skip executes a Skip. It returns SRDSuccess if the packet with that PSN has been executed before, otherwise
// SRDSkipped: the packet will not be executed. ok is false if no sender sends the PSN now.
func (r *SRDReceiver) Skip(psn roce.PSN) (status roce.SRDStatus, ok bool) {
	word, mask := r.skip(psn)
	switch r.Arrive(psn) {
	case SRDOutside:
		return 0, false
	case SRDNew:
		*word |= mask
		r.mark(psn)
	}
	if *word&mask == 0 {
		return roce.SRDSuccess, true
	}
	return roce.SRDSkipped, true
}

func (r *SRDReceiver) mark(psn roce.PSN) {
	word, mask := r.bit(psn)
	*word |= mask
	for {
		word, mask := r.bit(r.base)
		if *word&mask == 0 {
			return
		}
		*word &^= mask
		r.base = r.base.Next()
	}
}

// Ack writes the bitmap of an acknowledgement with the PSN of PSN: bit i, from the low bits of the first byte on, is
// set if the i-th PSN after that one has been executed. It returns the number of bytes, 0 if no bit is set.
func (r *SRDReceiver) Ack(bitmap *[SRDBitmapLen]byte) (n int) {
	if r.bits == [SRDWindow / 64]uint64{} {
		return 0
	}
	*bitmap = [SRDBitmapLen]byte{}
	for i := range r.bits {
		for left := r.bits[i]; left != 0; left &= left - 1 {
			psn := roce.MakePSN(uint32(i*64 + bits.TrailingZeros64(left)))
			at := int(uint32(psn-r.base)%SRDWindow) - 1
			bitmap[at/8] |= 1 << (at % 8)
			n = max(n, at/8+1)
		}
	}
	return n
}
