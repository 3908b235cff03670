package link

import (
	"math/rand/v2"
	"time"

	"verbena/internal/fault"
	"verbena/roce"
)

// Types of package fault, which documents them.
type (
	// Rule describes what is to happen to some of the packets that a device sends.
	Rule = fault.Rule
	// RuleState is a rule in force, and its counters.
	RuleState = fault.RuleState
	// Share is a probability from 0 to 1.
	Share = fault.Share
)

// ErrRule is wrapped by the errors of rules that make no sense.
var ErrRule = fault.ErrRule

const (
	defaultBehind = 1
	defaultHold   = 10 * time.Millisecond
)

// hit counts the packet that was seen last, to which something happens.
func (r *activeRule) hit() {
	r.Hit++
	if len(r.HitAt) < fault.MaxHitAt {
		r.HitAt = append(r.HitAt, r.Seen)
	}
}

// activeRule is a rule in force, with random numbers of its own: what happens to a packet depends only on the seed
// and on how many packets the rule has seen.
type activeRule struct {
	RuleState
	selector fault.Selector // made from RuleState.Rule
	rand     *rand.Rand
}

// Packet describes a packet to the rules; see [fault.Packet].
type Packet = fault.Packet

// describe fills in the properties that a packet itself has.
//
// Any host can send a packet that is shorter than a BTH. Such a packet has no properties but its length.
func describe(p *Packet, pkt []byte) {
	if len(pkt) < roce.BTHLen {
		p.Dest, p.PKey, p.Type, p.Len = 0, 0, fault.AnyQP, len(pkt)
		return
	}
	h := roce.BTH(pkt)
	p.Dest, p.PKey, p.Type, p.Len = h.DestQPN(), h.PKey(), fault.AnyQP, len(pkt)
	switch h.Opcode().Service() {
	case roce.RC:
		p.Type = fault.QPTypeRC
	case roce.UC:
		p.Type = fault.QPTypeUC
	case roce.UD:
		p.Type = fault.QPTypeUD
	case roce.XRC:
		p.Type = fault.QPTypeXRC
	case roce.SRD:
		p.Type = fault.QPTypeSRD
	}
}

// random returns the next random number from 0 to 1.
func (r *activeRule) random() Share { return Share(r.rand.Float64()) }

// verdict is what shall happen to one packet.
type verdict struct {
	drop, duplicate bool

	damage damage
	delay  time.Duration // before it is sent
	behind int           // how many packets may overtake it
	hold   time.Duration // how long it waits for them
}

// clean reports that nothing happens.
func (v *verdict) clean() bool { return *v == verdict{} }

// count takes note of a packet that the rule is about, and reports whether the rule is in force for it.
func (r *activeRule) count() bool {
	r.Seen++
	return r.Seen > r.Skip && (r.Limit == 0 || r.Seen-r.Skip <= r.Limit)
}

// stop decides on a packet, in either direction, by a rule with Stop.
func (r *activeRule) stop(p *Packet) bool {
	if !r.selector.Selects(p) || !r.count() {
		return false
	}
	r.hit()
	r.Dropped++
	return true
}

// notReady decides on a message by a rule with RNR.
func (r *activeRule) notReady(p *Packet) bool {
	if !r.selector.Selects(p) || !r.count() || r.random() >= r.RNR {
		return false
	}
	r.hit()
	r.NotReady++
	return true
}

// judge adds the rule's decision on a sent packet to v.
func (r *activeRule) judge(p *Packet, v *verdict) {
	if r.Stop {
		v.drop = r.stop(p)
		return
	}
	if !r.selector.Selects(p) || !r.count() {
		return
	}
	// A fixed number of random numbers is drawn for each packet, so that a decision does not shift others.
	drop, duplicate, corrupt, reorder := r.random(), r.random(), r.random(), r.random()
	bit, jitter := r.rand.Uint32(), time.Duration(r.rand.Int64N(int64(r.Jitter)+1))
	happened := false
	happens := func(counter *uint64) {
		if !happened {
			r.hit()
		}
		happened = true
		*counter++
	}
	if drop < r.Drop {
		happens(&r.Dropped)
		v.drop = true
		return
	}
	if duplicate < r.Duplicate {
		happens(&r.Duplicated)
		v.duplicate = true
	}
	if corrupt < r.Corrupt {
		happens(&r.Corrupted)
		v.damage.corrupt, v.damage.bit = true, bit
	}
	if delay := r.Delay + jitter; delay > 0 {
		happens(&r.Delayed)
		v.delay += delay
	}
	if reorder < r.Reorder {
		happens(&r.Reordered)
		v.behind = max(v.behind, r.Behind, defaultBehind)
		hold := r.Hold
		if hold == 0 {
			hold = defaultHold
		}
		v.hold = max(v.hold, hold)
	}
}

// damage describes the changes to the bytes of a packet after its ICRC was computed.
type damage struct {
	corrupt bool
	bit     uint32 // the bit to flip, modulo those there are
}

// apply damages a sealed train of one packet.
func (d *damage) apply(t *Train) {
	if d.corrupt {
		flip(t.Buf, d.bit)
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
