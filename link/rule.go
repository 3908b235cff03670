package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"verbena/roce"
)

// ErrRule: the rule makes no sense.
var ErrRule = errors.New("bad fault rule")

// Rule says what is to happen to some of the packets that a device sends. Probabilities are from 0 to 1. What a rule
// does not mention does not happen; several things may happen to one packet, but Stop and RNR stand alone in a rule.
// Rules decide in the order in which they were added; what one has dropped the next do not see.
type Rule struct {
	// Which packets: those to this address (zero: all), and those that this queue pair sends or is to get (0: all). A
	// number that two devices use means either's.
	Peer netip.Addr `json:"peer,omitzero"`
	QP   uint32     `json:"qp,omitempty"`

	// Of these, the first Skip are left alone, and the rule is over after the following Limit (0: never).
	Skip  uint64 `json:"skip,omitempty"`
	Limit uint64 `json:"limit,omitempty"`
	// Seed is that of the rule's random numbers; 0: one that follows from the seed of the Faults.
	Seed uint64 `json:"seed,omitempty"`

	// Drop is the probability of loss.
	Drop float64 `json:"drop,omitempty"`
	// Duplicate is the probability that the packet is sent twice.
	Duplicate float64 `json:"duplicate,omitempty"`
	// Corrupt is the probability that one bit of the packet is flipped, which the receiver finds out by the ICRC.
	Corrupt float64 `json:"corrupt,omitempty"`
	// Delay holds up every packet, and Jitter for a random time up to it in addition. Packets overtake each other
	// only by jitter.
	Delay  time.Duration `json:"delay_ns,omitempty"`
	Jitter time.Duration `json:"jitter_ns,omitempty"`
	// Reorder is the probability that the packet is held back until Behind later packets (0: one) have been sent
	// to the same address, whatever its delay, or until its delay and then Hold (0: 10 ms) are over.
	Reorder float64       `json:"reorder,omitempty"`
	Behind  int           `json:"behind,omitempty"`
	Hold    time.Duration `json:"hold_ns,omitempty"`

	// Stop drops every packet, those that arrive too: the peer seems dead, and this device to the peer. Peer is then
	// the other end, whoever sends.
	Stop bool `json:"stop,omitempty"`
	// RNR is the probability that a message which needs a receive is answered as if none had been posted, by an RNR
	// NAK. What the rule sees is not what is sent but the packets that come for reliable queue pairs of the device (QP)
	// and take a receive; Peer is who sent them.
	RNR float64 `json:"rnr,omitempty"`
}

const (
	defaultBehind = 1
	defaultHold   = 10 * time.Millisecond
	maxFaultDelay = time.Minute
	maxQPN        = 1<<24 - 1
)

// Validate checks the values. Its error wraps [ErrRule].
func (r *Rule) Validate() error {
	active := r.Stop
	for _, p := range []struct {
		name string
		v    float64
	}{{"drop", r.Drop}, {"duplicate", r.Duplicate}, {"corrupt", r.Corrupt}, {"reorder", r.Reorder}, {"rnr", r.RNR}} {
		if !(p.v >= 0 && p.v <= 1) {
			return fmt.Errorf("%w: %s %v is not a probability from 0 to 1", ErrRule, p.name, p.v)
		}
		active = active || p.v > 0
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"delay", r.Delay}, {"jitter", r.Jitter}, {"hold", r.Hold}} {
		if d.v < 0 || d.v > maxFaultDelay {
			return fmt.Errorf("%w: %s %v is not from 0 to %v", ErrRule, d.name, d.v, maxFaultDelay)
		}
	}
	rest := *r
	rest.Stop, rest.RNR = false, 0
	switch {
	case r.Stop && r.RNR > 0, (r.Stop || r.RNR > 0) && rest.disturbs():
		return fmt.Errorf("%w: stop and rnr go into rules of their own", ErrRule)
	case r.QP > maxQPN:
		return fmt.Errorf("%w: queue pair number %#x has more than 24 bits", ErrRule, r.QP)
	case r.Behind < 0:
		return fmt.Errorf("%w: cannot be behind %d packets", ErrRule, r.Behind)
	case !active && !rest.disturbs():
		return fmt.Errorf("%w: it has no effect: give one of drop, duplicate, corrupt, reorder, delay, jitter, stop, rnr", ErrRule)
	}
	return nil
}

// disturbs reports whether the rule does anything beside Stop and RNR.
func (r *Rule) disturbs() bool {
	return r.Drop > 0 || r.Duplicate > 0 || r.Corrupt > 0 || r.Reorder > 0 || r.Delay > 0 || r.Jitter > 0
}

// String is the rule in words: "drop 0.01 queue pair 17".
func (r Rule) String() string {
	var b strings.Builder
	word := func(show bool, format string, args ...any) {
		if show {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprintf(&b, format, args...)
		}
	}
	word(r.Drop > 0, "drop %v", r.Drop)
	word(r.Duplicate > 0, "duplicate %v", r.Duplicate)
	word(r.Corrupt > 0, "corrupt %v", r.Corrupt)
	word(r.Delay > 0, "delay %v", r.Delay)
	word(r.Jitter > 0, "jitter %v", r.Jitter)
	word(r.Reorder > 0, "reorder %v", r.Reorder)
	word(r.Reorder > 0 && r.Behind > 0, "behind %d", r.Behind)
	word(r.Reorder > 0 && r.Hold > 0, "hold %v", r.Hold)
	word(r.Stop, "stop")
	word(r.RNR > 0, "rnr %v", r.RNR)
	word(r.Peer.IsValid(), "peer %v", r.Peer)
	word(r.QP != 0, "queue pair %d", r.QP)
	word(r.Skip > 0, "after %d", r.Skip)
	word(r.Limit > 0, "for %d", r.Limit)
	word(r.Seed > 0, "seed %d", r.Seed)
	return b.String()
}

// RuleState is a rule in force and what it did so far, in packets.
type RuleState struct {
	ID int `json:"id"`
	Rule
	Seen       uint64 `json:"seen"` // packets that it applies to, the skipped and those after its end included
	Hit        uint64 `json:"hit"`  // those of them that something happened to
	Dropped    uint64 `json:"dropped"`
	Duplicated uint64 `json:"duplicated"`
	Corrupted  uint64 `json:"corrupted"`
	Delayed    uint64 `json:"delayed"`
	Reordered  uint64 `json:"reordered"`
	NotReady   uint64 `json:"not_ready"` // messages answered by an RNR NAK
	// HitAt are the first of those that were hit, at most [MaxHitAt], counted from 1 among those that were seen: what follows from the seed.
	HitAt []uint64 `json:"hit_at,omitempty"`
}

// MaxHitAt is how many packets that a rule has hit are listed.
const MaxHitAt = 64

// hit takes note of a packet, the latest seen, that something happens to.
func (r *RuleState) hit() {
	r.Hit++
	if len(r.HitAt) < MaxHitAt {
		r.HitAt = append(r.HitAt, r.Seen)
	}
}

// activeRule is a rule in force, with random numbers of its own: what happens to a packet depends only on the seed
// and on how many packets the rule has seen.
type activeRule struct {
	RuleState
	rand *rand.Rand
}

// verdict is what shall happen to one packet.
type verdict struct {
	drop, duplicate, corrupt bool

	bit    uint32        // the bit to flip, modulo those there are
	delay  time.Duration // before it is sent
	behind int           // how many packets may overtake it
	hold   time.Duration // how long it waits for them
}

// clean reports that nothing happens.
func (v *verdict) clean() bool { return *v == verdict{} }

// concernsPeer reports whether the rule is about packets to an address. One without a zone is meant on any link.
func (r *Rule) concernsPeer(dst netip.Addr) bool {
	return !r.Peer.IsValid() || r.Peer == dst || r.Peer == dst.WithZone("")
}

// concerns reports whether the rule is about a packet between a queue pair here, which may be unknown (0), and peer.
func (r *Rule) concerns(peer netip.Addr, qp uint32, pkt []byte) bool {
	return r.concernsPeer(peer) && (r.QP == 0 || r.QP == qp || r.QP == roce.BTH(pkt).DestQPN())
}

// count takes note of a packet that the rule is about, and reports whether the rule is in force for it.
func (r *activeRule) count() bool {
	r.Seen++
	return r.Seen > r.Skip && (r.Limit == 0 || r.Seen-r.Skip <= r.Limit)
}

// stop decides on a packet, in either direction, by a rule with Stop.
func (r *activeRule) stop(peer netip.Addr, qp uint32, pkt []byte) bool {
	if !r.concerns(peer, qp, pkt) || !r.count() {
		return false
	}
	r.hit()
	r.Dropped++
	return true
}

// notReady decides on a message by a rule with RNR.
func (r *activeRule) notReady(peer netip.Addr, qp uint32) bool {
	if !r.concernsPeer(peer) || r.QP != 0 && r.QP != qp || !r.count() || r.rand.Float64() >= r.RNR {
		return false
	}
	r.hit()
	r.NotReady++
	return true
}

// judge adds the rule's decision on a packet that qp sends to v.
func (r *activeRule) judge(dst netip.Addr, qp uint32, pkt []byte, v *verdict) {
	if r.Stop {
		v.drop = r.stop(dst, qp, pkt)
		return
	}
	if !r.concerns(dst, qp, pkt) || !r.count() {
		return
	}
	// A fixed number of random numbers is drawn for each packet, so that a decision does not shift others.
	drop, duplicate, corrupt, reorder := r.rand.Float64(), r.rand.Float64(), r.rand.Float64(), r.rand.Float64()
	bit, jitter := r.rand.Uint32(), time.Duration(r.rand.Int64N(int64(r.Jitter)+1))
	delay := r.Delay + jitter
	if drop < r.Drop || duplicate < r.Duplicate || corrupt < r.Corrupt || reorder < r.Reorder || delay > 0 {
		r.hit()
	}
	if drop < r.Drop {
		r.Dropped++
		v.drop = true
		return
	}
	if duplicate < r.Duplicate {
		r.Duplicated++
		v.duplicate = true
	}
	if corrupt < r.Corrupt {
		r.Corrupted++
		v.corrupt, v.bit = true, bit
	}
	if delay > 0 {
		r.Delayed++
		v.delay += delay
	}
	if reorder < r.Reorder {
		r.Reordered++
		v.behind = max(v.behind, r.Behind, defaultBehind)
		hold := r.Hold
		if hold == 0 {
			hold = defaultHold
		}
		v.hold = max(v.hold, hold)
	}
}

// flip flips a bit of a sealed packet, but none that the ICRC does not cover.
func flip(pkt []byte, bit uint32) {
	// The byte of the BTH after the P_Key is masked out, as routers write FECN and BECN there.
	const masked = 4
	i := int(bit>>3) % (len(pkt) - 1)
	if i >= masked {
		i++
	}
	pkt[i] ^= 1 << (bit & 7)
}
