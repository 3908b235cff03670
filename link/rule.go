package link

import (
	"math/rand/v2"
	"time"

	"verbena/internal/fault"
	"verbena/roce"
)

// Types of package fault, which documents them.
type (
	// Rule describes the faults for some of the packets that a device sends.
	Rule = fault.Rule
	// RuleState is an active rule with its counters.
	RuleState = fault.RuleState
	// Share is a probability from 0 to 1.
	Share = fault.Share
)

// ErrRule is wrapped by the errors for invalid rules.
var ErrRule = fault.ErrRule

const (
	defaultBehind = 1
	defaultHold   = 10 * time.Millisecond
)

// hit counts a hit of the last packet that the rule saw.
func (r *activeRule) hit() {
	r.Hit++
	if len(r.HitAt) < fault.MaxHitAt {
		r.HitAt = append(r.HitAt, r.Seen)
	}
}

// activeRule is an active rule. It has its own random numbers: only the seed and the number of packets seen by the rule
// determine the fault of a packet.
type activeRule struct {
	RuleState
	selector fault.Selector // made from RuleState.Rule
	rand     *rand.Rand
	flows    flowTable
}

// Packet describes a packet to the rules; see [fault.Packet].
type Packet = fault.Packet

// describe sets the properties that the packet itself contains.
//
// Any host can send a packet that is shorter than a BTH. The only property of such a packet is its length.
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

// verdict describes the faults of one packet.
type verdict struct {
	drop, duplicate bool

	damage damage
	delay  time.Duration // before it is sent
	behind int           // number of packets that may overtake the packet
	hold   time.Duration // longest wait for overtaking packets
}

// clean reports whether the packet is unaffected.
func (v *verdict) clean() bool { return *v == verdict{} }

// count counts a packet that the rule selects, and reports whether the rule applies to it.
func (r *activeRule) count() bool {
	r.Seen++
	return r.Seen > r.Skip && (r.Limit == 0 || r.Seen-r.Skip <= r.Limit)
}

// stop applies a rule with Stop to a packet of either direction, and reports whether the packet is dropped.
func (r *activeRule) stop(p *Packet) bool {
	if !r.selector.Selects(p) || !r.count() {
		return false
	}
	r.hit()
	r.Dropped++
	return true
}

// notReady applies a rule with RNR to a message, and reports whether to refuse the message.
func (r *activeRule) notReady(p *Packet, deciders []Decider) bool {
	if !r.selector.Selects(p) || !r.count() {
		return false
	}
	refuse := r.random() < r.RNR
	if len(deciders) > 0 && isRandom(r.RNR) {
		if d, ok := r.flows.next(p.Dest, false); ok {
			refuse = decide(deciders, &d, DecideRNR, boolValue(refuse)) != 0
		}
	}
	if !refuse {
		return false
	}
	r.hit()
	r.NotReady++
	return true
}

// outcome is the random part of the decision on a sent packet.
type outcome struct {
	drop, duplicate, corrupt, reorder bool

	bit    uint32 // the bit to flip with corrupt
	jitter time.Duration
}

// draw draws the outcome of a packet. Each packet draws a fixed number of random numbers: a decision does not change
// the decisions on later packets.
func (r *activeRule) draw() (o outcome) {
	o.drop = r.random() < r.Drop
	o.duplicate = r.random() < r.Duplicate
	o.corrupt = r.random() < r.Corrupt
	o.reorder = r.random() < r.Reorder
	o.bit, o.jitter = r.rand.Uint32(), time.Duration(r.rand.Int64N(int64(r.Jitter)+1))
	return o
}

// judge adds the decision of the rule on a sent packet to v.
func (r *activeRule) judge(p *Packet, pkt []byte, deciders []Decider, v *verdict) {
	if r.Stop {
		v.drop = r.stop(p)
		return
	}
	if !r.selector.Selects(p) || !r.count() {
		return
	}
	o := r.draw()
	if len(deciders) > 0 {
		r.decideOutcome(deciders, p.QP, isResponse(pkt), &o)
	}
	happened := false
	happens := func(counter *uint64) {
		if !happened {
			r.hit()
		}
		happened = true
		*counter++
	}
	if o.drop {
		happens(&r.Dropped)
		v.drop = true
		return
	}
	if o.duplicate {
		happens(&r.Duplicated)
		v.duplicate = true
	}
	if o.corrupt {
		happens(&r.Corrupted)
		v.damage.corrupt, v.damage.bit = true, o.bit
	}
	if delay := r.Delay + o.jitter; delay > 0 {
		happens(&r.Delayed)
		v.delay += delay
	}
	if o.reorder {
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
	bit     uint32 // the bit to flip, modulo the number of bits
}

// apply applies the damage to a sealed train of one packet.
func (d *damage) apply(t *Train) {
	if d.corrupt {
		flip(t.Buf, d.bit)
	}
}

// flip flips a bit of a sealed packet. It avoids the bits that the ICRC does not cover.
func flip(pkt []byte, bit uint32) {
	// The ICRC masks out the byte of the BTH after the P_Key: routers write FECN and BECN there.
	const masked = 4
	i := int(bit>>3) % (len(pkt) - 1)
	if i >= masked {
		i++
	}
	pkt[i] ^= 1 << (bit & 7)
}
