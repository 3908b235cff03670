package link

import "time"

// idents judges the identifications of the IPv4 packets that one host sends here.
//
// A right ICRC proves an identification only together with a guess; with the identification solved for, one
// damaged packet in 65536 seems right. Two kinds of senders are known, and for both most identifications that
// damage would need are improbable:
//
//   - A UDP socket of another instance of this package: 0, or the index in a train.
//   - A host that counts its packets to us, such as Linux's rxe. As its counter serves all its queue pairs, one
//     idents serves all source ports. Linux adds at random up to one per clock tick that the counter was idle.
//
// What the first packet has is believed. Later ones must fit the kind:
//
//	           id < 64                        id >= 64
//	            +--+                           +----+ near the last one, id < 64
//	            v  |   two that fit each other v    |
//	new -----> indexed --------------------> counted
//	 |                                         ^
//	 +-----------------------------------------+
//
// Within a kind one that does not fit is refused, but remembered; if the next that does not fit fits this one,
// both were right and the sender has restarted its counter, or is of the other kind.
type idents struct {
	kind    identKind
	last    uint16 // accepted last of all: the base of the next guess
	step    uint16 // difference between the last two, where 0 or 1
	count   uint16 // the counter, as last seen
	seen    time.Duration
	suspect uint16 // refused last
	doubted bool   // suspect is valid
}

type identKind uint8

const (
	identNew identKind = iota
	identIndexed
	identCounted
)

const (
	// identNear bounds the distance from the counter: packets may be lost or overtaken, and the last one may have
	// been damage that was believed.
	identNear = 1024
	// identPerSecond is twice the fastest clock tick of Linux.
	identPerSecond = 2000
)

// guess is the likeliest identification of the next packet, the i-th of those that came as one.
func (s *idents) guess(i int) uint16 {
	switch {
	case s.kind == identCounted:
		return s.count + 1
	case i > 0:
		return s.last + s.step
	}
	return 0
}

// accept reports whether a packet with identification id, the i-th of those that came as one at now, is to be believed.
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
		return true // overtaken
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

// near reports whether the counter may have come to id by now.
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
