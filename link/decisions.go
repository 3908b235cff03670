package link

import (
	"slices"
	"time"

	"verbena/roce"
)

// Decision is a random decision of a rule, or of the shape of the link, on a packet.
type Decision struct {
	// Rule is the number of the rule, counted from 1 in the order of the additions since the first AddDecider, or 0 for
	// the shape of the link.
	Rule int
	Kind DecisionKind
	// Flow is the number of the sending queue pair among those of the rule, counted from 1 in the order of their packets.
	// For DecideRNR it is that of the receiving queue pair. Response selects the packets that a queue pair sends as the
	// responder, which are counted separately.
	Flow     uint64
	Response bool
	Packet   uint64 // number of the packet in its flow, from 1
	QP       uint32 // number of the queue pair
}

// DecisionKind is the kind of a Decision, which determines the meaning of its value. The value 0 has no effect.
type DecisionKind uint8

// The kinds of decisions. The value is 1, except for DecideCorrupt (the number of the flipped bit, plus 1) and
// DecideJitter (the delay in nanoseconds).
const (
	DecideDrop DecisionKind = iota
	DecideDuplicate
	DecideCorrupt
	DecideJitter
	DecideReorder
	DecideRNR
	NumDecisionKinds
)

// Decider replaces or records random decisions.
type Decider interface {
	// Decide returns the value of a decision. drawn is the random value, or the value of an earlier Decider. Decide is
	// called with locks held, by several threads at the same time. It may not sleep and may not keep d.
	Decide(d *Decision, drawn uint64) uint64
}

// maxFlows limits the flows that a rule distinguishes. The decisions on further ones are random, and not recorded.
const maxFlows = 4096

// AddDecider adds a Decider for the decisions from now on. A Decider that replaces decisions comes before the others.
func (f *Faults) AddDecider(d Decider, replaces bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.listDeciders()
	if len(list) == 0 { // the flows of all rules begin
		f.numbered = 0
		for _, r := range f.rules {
			f.numbered++
			r.flows = flowTable{rule: f.numbered}
		}
		f.shapeFlows = flowTable{}
		if h := f.shaper.Load(); h != nil {
			h.mu.Lock()
			h.flows = flowTable{}
			h.mu.Unlock()
		}
	}
	at := len(list)
	if replaces {
		at = 0
	}
	list = slices.Insert(slices.Clone(list), at, d)
	f.deciders.Store(&list)
}

// RemoveDecider removes a Decider. A call of it may be in progress when RemoveDecider returns.
func (f *Faults) RemoveDecider(d Decider) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(f.listDeciders()), func(o Decider) bool { return o == d })
	f.deciders.Store(&list)
}

func (f *Faults) listDeciders() []Decider {
	if list := f.deciders.Load(); list != nil {
		return *list
	}
	return nil
}

// flowTable counts the packets of the flows of a rule while there is a Decider.
type flowTable struct {
	rule  int
	flows map[flowKey]*flow
	last  [2]uint64 // numbers of flows of requests and of responses
}

type flowKey struct {
	qp       uint32
	response bool
}

type flow struct{ number, packets uint64 }

// next counts a packet, and returns its decision without the kind. It returns false for a packet without a flow.
func (t *flowTable) next(qp uint32, response bool) (d Decision, ok bool) {
	key := flowKey{qp, response}
	x := t.flows[key]
	if x == nil {
		if len(t.flows) >= maxFlows {
			return d, false
		}
		if t.flows == nil {
			t.flows = map[flowKey]*flow{}
		}
		n := &t.last[0]
		if response {
			n = &t.last[1]
		}
		*n++
		x = &flow{number: *n}
		t.flows[key] = x
	}
	x.packets++
	return Decision{Rule: t.rule, Flow: x.number, Response: response, Packet: x.packets, QP: qp}, true
}

// decide returns the value of a decision after all deciders.
func decide(list []Decider, d *Decision, kind DecisionKind, drawn uint64) uint64 {
	d.Kind = kind
	for _, x := range list {
		drawn = x.Decide(d, drawn)
	}
	return drawn
}

// isRandom reports whether a share leaves a decision to chance.
func isRandom(s Share) bool { return s > 0 && s < 1 }

// isResponse reports whether a packet is one of a responder.
func isResponse(pkt []byte) bool {
	if len(pkt) < roce.BTHLen {
		return false
	}
	op := roce.BTH(pkt).Opcode()
	return op.Service() != roce.CN && op.Operation() >= roce.RDMAReadResponseFirst &&
		op.Operation() <= roce.AtomicAcknowledge
}

// decideOutcome replaces the random parts of an outcome.
func (r *activeRule) decideOutcome(list []Decider, qp uint32, response bool, o *outcome) {
	d, ok := r.flows.next(qp, response)
	if !ok {
		return
	}
	truth := func(random bool, kind DecisionKind, v *bool) {
		if random {
			*v = decide(list, &d, kind, boolValue(*v)) != 0
		}
	}
	if truth(isRandom(r.Drop), DecideDrop, &o.drop); o.drop {
		return // the other decisions have no effect
	}
	truth(isRandom(r.Duplicate), DecideDuplicate, &o.duplicate)
	if r.Corrupt > 0 {
		drawn := uint64(0)
		if o.corrupt {
			drawn = uint64(o.bit) + 1
		}
		v := decide(list, &d, DecideCorrupt, drawn)
		if o.corrupt = v > 0; o.corrupt {
			o.bit = uint32(v - 1)
		}
	}
	if r.Jitter > 0 {
		o.jitter = min(time.Duration(decide(list, &d, DecideJitter, uint64(o.jitter))), r.Jitter)
	}
	truth(isRandom(r.Reorder), DecideReorder, &o.reorder)
}

func boolValue(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
