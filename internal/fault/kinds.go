package fault

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Rule describes a fault: the packets of a device that it selects, and its effects on these packets. Omitted kinds
// have no effect. Several kinds may apply to one packet, but a kind with [Kind.Alone] needs a separate rule. Rules
// apply in the order in which they were added. Later rules do not see packets that an earlier rule has dropped.
//
// The tags are the names of the fields in the control protocol (json), in scenario files (yaml), and on the command
// line. [Kinds] has the help of the command line.
type Rule struct {
	// Peer selects packets to this address. The zero Addr selects all packets.
	Peer netip.Addr `json:"peer,omitzero" yaml:"peer" help:"Select only packets to this address." placeholder:"IP" complete:"none"`
	// GID selects packets that leave from this GID of the device, or arrive for it. It is an address; [Rule.Selector]
	// does not know the default GID of a device if no address equals it.
	GID netip.Addr `json:"gid,omitzero" yaml:"gid" name:"gid" help:"Select only packets from or to this GID of the device." placeholder:"GID" complete:"none"`
	// QP selects packets that this queue pair sends or is to receive. 0 selects all packets. If two devices have a
	// queue pair with this number, QP selects the packets of both.
	QP uint32 `json:"qp,omitempty" yaml:"qp" name:"qp" help:"Select only packets that this queue pair sends or receives." placeholder:"N" complete:"none"`
	// QPType selects packets of queue pairs of this type.
	QPType QPType `json:"qp_type,omitzero" yaml:"qp-type" name:"qp-type" help:"Select only packets of queue pairs of this type: rc, uc, ud, xrc or srd." placeholder:"TYPE" complete:"rc,uc,ud,xrc,srd"`
	// SL selects sent packets by the service level of their address vector. Packets of RoCE do not carry it.
	SL ServiceLevel `json:"sl,omitzero" yaml:"sl" name:"sl" help:"Select only sent packets with this service level in their address vector." placeholder:"N" complete:"none"`
	// TClass selects packets by their DSCP.
	TClass TrafficClass `json:"tclass,omitzero" yaml:"tclass" name:"tclass" help:"Select only packets with the DSCP of this traffic class, such as 106; its low two bits (ECN) have no effect." placeholder:"N" complete:"none"`
	// PKey selects packets by the partition in their BTH.
	PKey PKey `json:"pkey,omitzero" yaml:"pkey" name:"pkey" help:"Select only packets of the partition of this P_Key, such as 0xffff." placeholder:"PKEY" complete:"none"`

	// Skip is the number of selected packets that pass before the rule begins to act.
	Skip uint64 `json:"skip,omitempty" yaml:"skip" help:"Do not act on the first N selected packets." placeholder:"N" complete:"none"`
	// Limit is the number of packets after Skip on which the rule acts; 0 means no limit.
	Limit uint64 `json:"limit,omitempty" yaml:"limit" help:"Act only on the N packets after the skipped packets." placeholder:"N" complete:"none"`
	// Seed seeds the random numbers of the rule. If Seed is 0, the device derives a seed from its own.
	Seed uint64 `json:"seed,omitempty" yaml:"seed" help:"Seed of the rule's random decisions; default: derived from the seed of the service." placeholder:"N" complete:"none"`

	// Drop is the probability of loss.
	Drop Share `json:"drop,omitempty" yaml:"drop" complete:"none"`
	// Duplicate is the probability that the packet is sent twice.
	Duplicate Share `json:"duplicate,omitempty" yaml:"duplicate" complete:"none"`
	// Corrupt is the probability that one bit of the packet is flipped. The receiver detects the corruption by the
	// ICRC.
	Corrupt Share `json:"corrupt,omitempty" yaml:"corrupt" complete:"none"`
	// Delay holds every packet for this time. Jitter holds it for an additional random time of up to Jitter.
	// Packets overtake each other only by jitter.
	Delay  time.Duration `json:"delay_ns,omitempty" yaml:"delay" complete:"none"`
	Jitter time.Duration `json:"jitter_ns,omitempty" yaml:"jitter" complete:"none"`
	// Reorder is the probability that the packet is held. It is held until Behind later packets (0 means one) have
	// been sent to the same address, or until its delay and then Hold (0 means 10 ms) have passed.
	Reorder Share         `json:"reorder,omitempty" yaml:"reorder" complete:"none"`
	Behind  int           `json:"behind,omitempty" yaml:"-" kong:"-"`
	Hold    time.Duration `json:"hold_ns,omitempty" yaml:"-" kong:"-"`
	// Stop drops every packet in both directions, so the peer and this device appear dead to each other. For both
	// directions, Peer is the other end.
	Stop bool `json:"stop,omitempty" yaml:"stop" complete:"none"`
	// RNR is the probability that the device answers a message that needs a receive with an RNR NAK, as if no
	// receive were posted. The rule sees packets from Peer that arrive for reliable queue pairs of the device (QP)
	// and consume a receive.
	RNR Share `json:"rnr,omitempty" yaml:"rnr" complete:"none"`
}

// RuleCounts holds the counters of an active rule, in packets.
type RuleCounts struct {
	Seen uint64 `json:"seen"` // selected packets, including those before Skip and after Limit
	Hit  uint64 `json:"hit"`  // packets affected by the rule

	Dropped    uint64 `json:"dropped"`
	Duplicated uint64 `json:"duplicated"`
	Corrupted  uint64 `json:"corrupted"`
	Delayed    uint64 `json:"delayed"`
	Reordered  uint64 `json:"reordered"`
	NotReady   uint64 `json:"not_ready"` // messages answered with an RNR NAK

	// HitAt lists the first [MaxHitAt] hit packets by their number among the seen packets, from 1. The seed
	// determines HitAt.
	HitAt []uint64 `json:"hit_at,omitempty"`
}

// Kind is a kind of fault.
type Kind struct {
	// Name is the name of the flag, and of the field of [Rule] in scenario files.
	Name string
	// Help is the help of the flag, in one sentence.
	Help string
	// Alone excludes other kinds from a rule with this kind.
	Alone bool
	// Counter is the heading of the kind's counter in tables. Several kinds may share a counter.
	Counter string

	value func(*Rule) any
	count func(*RuleCounts) uint64
}

// kinds has a row for each kind, in the order of the fields of [Rule].
var kinds = []Kind{
	{
		Name: "drop", Help: "Share of packets to drop, such as 1% or 0.01.", Counter: "DROPPED",
		value: func(r *Rule) any { return r.Drop }, count: func(c *RuleCounts) uint64 { return c.Dropped },
	},
	{
		Name: "duplicate", Help: "Share of packets to send twice.", Counter: "DUPLICATED",
		value: func(r *Rule) any { return r.Duplicate }, count: func(c *RuleCounts) uint64 { return c.Duplicated },
	},
	{
		Name: "corrupt", Help: "Share of packets in which one bit is flipped after the ICRC was computed.", Counter: "CORRUPTED",
		value: func(r *Rule) any { return r.Corrupt }, count: func(c *RuleCounts) uint64 { return c.Corrupted },
	},
	{
		Name: "delay", Help: "Time to hold every packet, such as 50us.", Counter: "DELAYED",
		value: func(r *Rule) any { return r.Delay }, count: func(c *RuleCounts) uint64 { return c.Delayed },
	},
	{
		Name: "jitter", Help: "Maximum of an additional random delay.", Counter: "DELAYED",
		value: func(r *Rule) any { return r.Jitter }, count: func(c *RuleCounts) uint64 { return c.Delayed },
	},
	{
		Name: "reorder", Help: "Share of packets to hold back behind later packets.", Counter: "REORDERED",
		value: func(r *Rule) any { return r.Reorder }, count: func(c *RuleCounts) uint64 { return c.Reordered },
	},
	{
		Name: "stop", Help: "Drop every packet in both directions, so the peer appears dead.", Alone: true, Counter: "DROPPED",
		value: func(r *Rule) any { return r.Stop }, count: func(c *RuleCounts) uint64 { return c.Dropped },
	},
	{
		Name: "rnr", Help: "Share of messages that the device answers with an RNR NAK, as if no receive were posted.",
		Alone: true, Counter: "RNR",
		value: func(r *Rule) any { return r.RNR }, count: func(c *RuleCounts) uint64 { return c.NotReady },
	},
}

// isInRule reports whether a rule contains the kind.
func (k *Kind) isInRule(r *Rule) bool { return k.value(r) != k.value(&Rule{}) }

// CounterValue returns the counter of the kind.
func (k *Kind) CounterValue(c *RuleCounts) uint64 { return k.count(c) }

// Usage returns the help, including the restriction of kinds with Alone.
func (k *Kind) Usage() string {
	if k.Alone {
		return k.Help + " Needs a separate rule."
	}
	return k.Help
}

// Unit is the type of a kind's value.
type Unit int

// Units of values.
const (
	unitShare  Unit = iota // a [Share]
	unitTime               // a time.Duration
	unitNumber             // an integer
	unitSwitch             // a bool
)

// Placeholder returns the letter that represents a value in help, or "" for a switch.
func (u Unit) Placeholder() string { return [...]string{"P", "D", "N", ""}[u] }

// Unit returns the unit of the kind's value.
func (k *Kind) Unit() Unit {
	switch k.value(&Rule{}).(type) {
	case Share:
		return unitShare
	case time.Duration:
		return unitTime
	case bool:
		return unitSwitch
	}
	return unitNumber
}

// flagKinds holds [Kinds] in the order of the help.
var flagKinds = func() []Kind {
	list := slices.Clone(kinds)
	rank := func(k *Kind) int {
		if k.Alone {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Unit(), b.Unit()))
	})
	return list
}()

// FlagKinds returns the kinds in the order of the help: by their unit, with the kinds that need separate rules last.
func FlagKinds() []Kind { return flagKinds }

// CounterKinds returns one kind for each counter, for the columns of a table.
func CounterKinds() (list []Kind) {
	for _, k := range kinds {
		if !slices.ContainsFunc(list, func(o Kind) bool { return o.Counter == k.Counter }) {
			list = append(list, k)
		}
	}
	return list
}

// kindNames returns the names of the wanted kinds.
func kindNames(kinds []Kind, want func(*Kind) bool) (list []string) {
	for i := range kinds {
		if want(&kinds[i]) {
			list = append(list, kinds[i].Name)
		}
	}
	return list
}
