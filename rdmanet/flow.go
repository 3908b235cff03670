package rdmanet

import (
	"fmt"
	"syscall"
)

// The immediate data of a message: two flags, and how many bytes of the stream its sender has consumed, modulo 2^30.
const (
	immFin   = 1 << 31 // no data follows
	immClose = 1 << 30 // no data is read any more
	immMask  = 1<<30 - 1
)

const (
	// maxRing is the largest ring. Positions modulo 2^30 are unambiguous well beyond it.
	maxRing = 1 << 28
	// minRing is the smallest ring, minMessages the smallest number of data messages in flight.
	minRing, minMessages = 256, 4
	// fraction of the ring, or of the messages, is consumed before a message with nothing but a credit is sent.
	fraction = 4
	// spareReceives is how many receives each end posts for messages without data, beside those that it announces:
	// at most 2*fraction credits can be sent before the peer must have seen one of them, since it sends nothing that
	// could be consumed before; one FIN and one CLOSE.
	spareReceives = 2*fraction + 2
)

// ends is a queue of the positions in a stream at which messages end.
type ends struct {
	at         []uint64
	head, tail uint64 // numbers of messages: those in [head, tail) are in the queue
}

func (e *ends) push(at uint64) {
	e.at[e.tail%uint64(len(e.at))] = at
	e.tail++
}

// from returns the number of the first message from number n on that ends after pos.
func (e *ends) from(n, pos uint64) uint64 {
	for n < e.tail && e.at[n%uint64(len(e.at))] <= pos {
		n++
	}
	return n
}

// sender is the flow control of a direction, at its sending end. Positions count the bytes of the stream.
//
// A byte lies in the ring of memory from which it is sent until the device has completed the WRITE, and in the peer's
// until the peer has consumed it.
type sender struct {
	own, peer uint64 // lengths of the rings
	messages  uint64 // in flight, at most; the peer's receiver has the same number

	sent  uint64 // end of what was posted
	acked uint64 // end of what the peer has consumed
	done  uint64 // end of what the device has completed

	ends       ends   // of messages that are not both completed and consumed
	ackedNum   uint64 // number of the first message that is not consumed
	doneNum    uint64 // number of the first message that is not completed
	unsignaled int    // bytes posted since the last message with a completion
	quiet      int    // messages since then
}

func newSender(own, peer, messages int) sender {
	return sender{
		own: uint64(own), peer: uint64(peer), messages: uint64(messages), ends: ends{at: make([]uint64, messages)},
	}
}

// room returns how many bytes the next message may have: it lies in one piece in both rings.
func (s *sender) room() int {
	if s.ends.tail-min(s.ackedNum, s.doneNum) >= s.messages {
		return 0
	}
	n := min(s.own-(s.sent-s.done), s.peer-(s.sent-s.acked))
	return int(min(n, s.own-s.sent%s.own, s.peer-s.sent%s.peer))
}

// post notes a message of n bytes, no more than room. It reports whether the message needs a completion: one that fails
// has one in any case, and completes those before it.
func (s *sender) post(n int) (signaled bool) {
	s.sent += uint64(n)
	s.ends.push(s.sent)
	s.unsignaled += n
	s.quiet++
	if s.unsignaled*fraction < int(s.own) && s.quiet*fraction < int(s.messages) {
		return false
	}
	s.unsignaled, s.quiet = 0, 0
	return true
}

// complete notes that the device has completed everything up to a position.
func (s *sender) complete(pos uint64) {
	s.done = max(s.done, pos)
	s.doneNum = s.ends.from(s.doneNum, s.done)
}

// ack notes the position in immediate data up to which the peer has consumed, and returns how many bytes that are more
// than before. An older one than the last has no effect. The error is EPROTO if the peer cannot have consumed so much.
func (s *sender) ack(imm uint32) (more uint64, err error) {
	n := uint64((imm - uint32(s.acked)) & immMask)
	switch {
	case n > immMask/2:
		return 0, nil
	case n > s.sent-s.acked:
		return 0, fmt.Errorf("the peer has consumed %d bytes of %d: %w", n, s.sent-s.acked, syscall.EPROTO)
	}
	s.acked += n
	s.ackedNum = s.ends.from(s.ackedNum, s.acked)
	return n, nil
}

// receiver is the flow control of a direction, at its receiving end.
type receiver struct {
	size     uint64 // length of the ring
	messages uint64 // that the sender may have in flight

	received uint64 // end of what has arrived
	consumed uint64 // end of what was read
	told     uint64 // consumed, as the peer was last told

	ends    ends   // of messages that are not consumed
	toldNum uint64 // number of the first message that was not consumed when the peer was told
}

func newReceiver(size, messages int) receiver {
	return receiver{size: uint64(size), messages: uint64(messages), ends: ends{at: make([]uint64, messages)}}
}

// arrive notes a message of n bytes. The error is EPROTO if there was no credit for it.
func (r *receiver) arrive(n int) error {
	if free := r.size - (r.received - r.consumed); uint64(n) > free || r.ends.tail-r.ends.head >= r.messages {
		return fmt.Errorf("the peer has sent %d bytes in %d messages, where %d in %d fit: %w",
			n, r.ends.tail-r.ends.head+1, free, r.messages, syscall.EPROTO)
	}
	r.received += uint64(n)
	r.ends.push(r.received)
	return nil
}

// available returns how many bytes wait.
func (r *receiver) available() int { return int(r.received - r.consumed) }

// next returns where in the ring the next bytes lie, at most limit of them, in one piece.
func (r *receiver) next(limit int) (from, to int) {
	at := r.consumed % r.size
	return int(at), int(at + min(uint64(limit), r.received-r.consumed, r.size-at))
}

// consume notes that n bytes were read. It reports whether the peer should be told of it in a message of its own.
func (r *receiver) consume(n int) (due bool) {
	r.consumed += uint64(n)
	r.ends.head = r.ends.from(r.ends.head, r.consumed)
	return r.due()
}

func (r *receiver) due() bool {
	return (r.consumed-r.told)*fraction >= r.size || (r.ends.head-r.toldNum)*fraction >= r.messages
}

// credit returns the position for immediate data, which the peer is then told.
func (r *receiver) credit() uint32 {
	r.told, r.toldNum = r.consumed, r.ends.head
	return uint32(r.consumed) & immMask
}
