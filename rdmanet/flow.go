package rdmanet

import (
	"fmt"
	"syscall"
)

// The immediate data of a message consist of two flags and a number modulo 2^30. The number counts the bytes of the
// stream that the sender of the message has consumed.
const (
	immFin   = 1 << 31 // no data follow
	immClose = 1 << 30 // the sender no longer reads
	immMask  = 1<<30 - 1
)

const (
	// maxRing is the maximum size of a ring. The limit keeps positions modulo 2^30 unambiguous.
	maxRing = 1 << 28
	// minRing is the minimum size of a ring. minMessages is the minimum number of data messages in flight.
	minRing, minMessages = 256, 4
	// A credit is sent in a separate message when 1/creditFraction of the ring, or of the messages, has been consumed.
	creditFraction = 4
	// spareReceives is the number of receives for messages without data, in addition to the announced ones. At most
	// 2*fraction credits are in flight until the peer has handled one, because without credits the peer sends no data
	// to consume. One FIN and one CLOSE may follow the credits.
	spareReceives = 2*creditFraction + 2
)

// messageEnds is a queue of the stream positions at which messages end.
type messageEnds struct {
	at         []uint64
	head, tail uint64 // message numbers; the queue contains the messages in [head, tail)
}

func (e *messageEnds) addEnd(at uint64) {
	e.at[e.tail%uint64(len(e.at))] = at
	e.tail++
}

// firstAfter returns the number of the first message, starting with n, that ends after pos.
func (e *messageEnds) firstAfter(n, pos uint64) uint64 {
	for n < e.tail && e.at[n%uint64(len(e.at))] <= pos {
		n++
	}
	return n
}

// flowSender is the flow control state of the sending end, for one direction. Positions count bytes of the stream.
//
// A byte occupies the send ring until the device has completed the byte's WRITE. The byte occupies the peer's ring
// until the peer has consumed it.
type flowSender struct {
	own, peer uint64 // lengths of the rings
	messages  uint64 // maximum in flight; the peer's receiver has the same limit

	sent  uint64 // end of the posted bytes
	acked uint64 // end of the bytes that the peer has consumed
	done  uint64 // end of the bytes that the device has completed

	ends       messageEnds // ends of messages that are not completed or not consumed
	ackedNum   uint64      // number of the first message that the peer has not consumed
	doneNum    uint64      // number of the first message that the device has not completed
	unsignaled int         // bytes posted since the last signalled message
	quiet      int         // messages posted since the last signalled message
}

func newFlowSender(own, peer, messages int) flowSender {
	return flowSender{
		own: uint64(own), peer: uint64(peer), messages: uint64(messages), ends: messageEnds{at: make([]uint64, messages)},
	}
}

// maxNextMessage returns the maximum size of the next message. The message must be contiguous in both rings.
func (s *flowSender) maxNextMessage() int {
	if s.ends.tail-min(s.ackedNum, s.doneNum) >= s.messages {
		return 0
	}
	n := min(s.own-(s.sent-s.done), s.peer-(s.sent-s.acked))
	return int(min(n, s.own-s.sent%s.own, s.peer-s.sent%s.peer))
}

// recordPost records a message of n bytes. n is at most room(). recordPost reports whether the message must be
// signalled. A failed work request generates a completion in any case. The completion also completes the earlier
// requests.
func (s *flowSender) recordPost(n int) (signaled bool) {
	s.sent += uint64(n)
	s.ends.addEnd(s.sent)
	s.unsignaled += n
	s.quiet++
	if s.unsignaled*creditFraction < int(s.own) && s.quiet*creditFraction < int(s.messages) {
		return false
	}
	s.unsignaled, s.quiet = 0, 0
	return true
}

// recordCompletedUpTo records that the device has completed all bytes up to pos.
func (s *flowSender) recordCompletedUpTo(pos uint64) {
	s.done = max(s.done, pos)
	s.doneNum = s.ends.firstAfter(s.doneNum, s.done)
}

// handleAck handles the consumed position in immediate data. handleAck returns the number of newly consumed bytes. A
// position older than the last one has no effect. The error is EPROTO if the position is beyond the sent bytes.
func (s *flowSender) handleAck(imm uint32) (more uint64, err error) {
	n := uint64((imm - uint32(s.acked)) & immMask)
	switch {
	case n > immMask/2:
		return 0, nil
	case n > s.sent-s.acked:
		return 0, fmt.Errorf("the peer reports %d consumed bytes, but only %d are outstanding: %w",
			n, s.sent-s.acked, syscall.EPROTO)
	}
	s.acked += n
	s.ackedNum = s.ends.firstAfter(s.ackedNum, s.acked)
	return n, nil
}

// flowReceiver is the flow control state of the receiving end, for one direction.
type flowReceiver struct {
	size     uint64 // ring size
	messages uint64 // maximum number of the sender's messages in flight

	received uint64 // end of the received bytes
	consumed uint64 // end of the consumed bytes
	credited uint64 // value of consumed in the last credit

	ends        messageEnds // ends of messages that have not been consumed
	creditedNum uint64      // number of the first message that had not been consumed at the last credit
}

func newFlowReceiver(size, messages int) flowReceiver {
	return flowReceiver{size: uint64(size), messages: uint64(messages), ends: messageEnds{at: make([]uint64, messages)}}
}

// recordArrival records a message of n bytes. The error is EPROTO if the sender had no credit for the message.
func (r *flowReceiver) recordArrival(n int) error {
	if free := r.size - (r.received - r.consumed); uint64(n) > free || r.ends.tail-r.ends.head >= r.messages {
		return fmt.Errorf("the peer has sent %d bytes in %d messages, want at most %d in %d: %w",
			n, r.ends.tail-r.ends.head+1, free, r.messages, syscall.EPROTO)
	}
	r.received += uint64(n)
	r.ends.addEnd(r.received)
	return nil
}

// unreadBytes returns the number of unread bytes.
func (r *flowReceiver) unreadBytes() int { return int(r.received - r.consumed) }

// nextRange returns the range of the next unread bytes in the ring. The range is contiguous and has at most limit
// bytes.
func (r *flowReceiver) nextRange(limit int) (from, to int) {
	at := r.consumed % r.size
	return int(at), int(at + min(uint64(limit), r.received-r.consumed, r.size-at))
}

// recordConsumedBytes records that n bytes have been read. recordConsumedBytes reports whether a credit should be sent
// in a separate message.
func (r *flowReceiver) recordConsumedBytes(n int) (due bool) {
	r.consumed += uint64(n)
	r.ends.head = r.ends.firstAfter(r.ends.head, r.consumed)
	return r.isCreditDue()
}

func (r *flowReceiver) isCreditDue() bool {
	return (r.consumed-r.credited)*creditFraction >= r.size || (r.ends.head-r.creditedNum)*creditFraction >= r.messages
}

// takeCredit returns the consumed position for immediate data, and records it as sent.
func (r *flowReceiver) takeCredit() uint32 {
	r.credited, r.creditedNum = r.consumed, r.ends.head
	return uint32(r.consumed) & immMask
}
