package link

import "time"

// idents judges the identifications of the IPv4 packets from one host.
//
// A correct ICRC proves an identification only together with a guess. If the identification is computed from the ICRC,
// one in 65536 damaged packets seems correct. Two kinds of senders are known. For both kinds, most of the
// identifications computed from damaged packets are improbable:
//
//   - A UDP socket of another instance of this package: 0, or the index in a train.
//   - A host that counts its packets to this host, such as Linux's rxe. The counter is common to all its queue
//     pairs, so one idents serves all source ports. While the counter is idle, Linux adds a random number, at most
//     one per clock tick.
//
// The identification of the first packet is accepted. Later ones must fit the kind:
//
//	           id < 64                        id >= 64
//	            +--+                           +----+ near the last one, id < 64
//	            v  |   two that fit each other v    |
//	new -----> indexed --------------------> counted
//	 |                                         ^
//	 +-----------------------------------------+
//
// An identification that does not fit the kind is refused, but remembered. If the next refused identification fits the
// remembered one, both were correct: the sender has restarted its counter, or is of the other kind.
type idents struct {
	kind    identKind
	last    uint16 // the last accepted identification: base of the next guess
	step    uint16 // difference between the last two, if 0 or 1
	count   uint16 // the last value of the counter
	seen    time.Duration
	suspect uint16 // the last refused identification
	doubted bool   // suspect is valid
}

type identKind uint8

const (
	identNew identKind = iota
	identIndexed
	identCounted
)

const (
	// identNear limits the distance from the counter. Packets can be lost or overtaken, and the last accepted packet
	// can have been a damaged one.
	identNear = 1024
	// identPerSecond is twice the fastest clock tick of Linux.
	identPerSecond = 2000
)

// guess returns the most probable identification of the next packet, the i-th of its batch.
func (s *idents) guess(i int) uint16 {
	switch {
	case s.kind == identCounted:
		return s.count + 1
	case i > 0:
		return s.last + s.step
	}
	return 0
}

// accept reports whether to accept identification id of a packet that came at now as the i-th of its batch.
func (s *idents) accept(i int, id uint16, now time.Duration) bool {
	switch {
	case s.kind == identNew:
		s.kind = identIndexed
		if id >= MaxTrainPackets {
			s.kind = identCounted
		}
	case id < MaxTrainPackets:
		if s.kind == identIndexed || !s.near(id, now) {
			s.took(i, id)
			return true
		}
	case s.kind == identCounted && s.count-id <= identNear:
		s.took(i, id)
		return true // overtaken packet
	case s.kind == identCounted && s.near(id, now):
	case s.doubted && id-s.suspect < identNear:
		s.kind = identCounted
	default:
		s.suspect, s.doubted = id, true
		return false
	}
	s.count, s.seen = id, now
	s.took(i, id)
	return true
}

// near reports whether the counter can have reached id by now.
func (s *idents) near(id uint16, now time.Duration) bool {
	return time.Duration(id-s.count) <= identNear+min(now-s.seen, time.Minute)*identPerSecond/time.Second
}

func (s *idents) took(i int, id uint16) {
	if d := id - s.last; i > 0 && d <= 1 {
		s.step = d
	}
	s.last = id
	s.doubted = false
}
