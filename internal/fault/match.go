package fault

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Packet holds the properties of a packet by which rules select it.
type Packet struct {
	Peer  netip.Addr // address of the other end
	Local netip.Addr // address of this end
	// QP is the queue pair at this end, or 0 if it is unknown. Dest is the destination queue pair of the packet.
	QP, Dest uint32
	Type     QPType
	TOS      uint8 // DSCP and ECN
	SL       uint8 // service level; only of sent packets
	PKey     uint16
	Len      int // length in bytes from the BTH to the ICRC
}

// Match is a property by which a rule selects packets. A rule selects the packets that have all its properties.
type Match struct {
	// Name is the name of the flag, and of the field of [Rule] in scenario files.
	Name string
	// Sent restricts the match to sent packets, because received packets do not have the property.
	Sent bool

	text    string                       // name in the text of a rule, if it differs
	value   func(*Rule) any              // the property, for people; nil if the rule does not have it
	selects func(r *Rule, p Packet) bool // only for a rule with the property
}

// matches has a row for each property, in the order of the fields of [Rule].
var matches = []Match{
	{
		Name: "peer", value: func(r *Rule) any { return propertyOf(r.Peer) },
		selects: func(r *Rule, p Packet) bool { return isSameAddr(r.Peer, p.Peer) },
	},
	{
		Name: "gid", value: func(r *Rule) any { return propertyOf(r.GID) },
		selects: func(r *Rule, p Packet) bool { return isSameAddr(r.GID, p.Local) },
	},
	{
		Name: "qp", text: "queue pair", value: func(r *Rule) any { return propertyOf(r.QP) },
		selects: func(r *Rule, p Packet) bool { return r.QP == p.QP || r.QP == p.Dest },
	},
	{
		Name: "qp-type", value: func(r *Rule) any { return propertyOf(r.QPType) },
		selects: func(r *Rule, p Packet) bool { return r.QPType == p.Type },
	},
	{
		Name: "sl", Sent: true, value: func(r *Rule) any { return propertyOf(r.SL) },
		selects: func(r *Rule, p Packet) bool { return r.SL.is(uint32(p.SL)) },
	},
	{
		Name: "tclass", value: func(r *Rule) any { return propertyOf(r.TClass) },
		selects: func(r *Rule, p Packet) bool { return (r.TClass.n-1)>>ecnBits == uint32(p.TOS>>ecnBits) },
	},
	{
		Name: "pkey", value: func(r *Rule) any { return propertyOf(r.PKey) },
		selects: func(r *Rule, p Packet) bool { return (r.PKey.n-1)&partition == uint32(p.PKey)&partition },
	},
}

const (
	ecnBits   = 2
	partition = 1<<15 - 1 // the number of the partition in a P_Key, without the membership (IBA 10.9.1.2)
)

// propertyOf returns v, or nil if v is zero.
func propertyOf[T comparable](v T) any {
	if v == *new(T) {
		return nil
	}
	return v
}

// isSameAddr reports whether two addresses are the same. An address of a rule without a zone is meant on every link.
func isSameAddr(rule, a netip.Addr) bool { return rule == a || rule == a.WithZone("") }

// MatchNames returns the names of the properties, in the order of the help.
func MatchNames() (list []string) {
	for _, m := range matches {
		list = append(list, m.Name)
	}
	return list
}

// Selector selects packets by the properties of one rule.
type Selector struct {
	rule    *Rule
	selects []func(r *Rule, p Packet) bool
}

// Selector returns the selector of the rule, which must stay unchanged. The caller must have unmapped the addresses of
// the rule.
func (r *Rule) Selector() Selector {
	s := Selector{rule: r}
	for i := range matches {
		if matches[i].value(r) != nil {
			s.selects = append(s.selects, matches[i].selects)
		}
	}
	return s
}

// Selects reports whether the rule selects a packet. It may not sleep and allocates nothing.
func (s *Selector) Selects(p *Packet) bool {
	for _, f := range s.selects {
		if !f(s.rule, *p) { // by value, so that the packet stays on the stack
			return false
		}
	}
	return true
}

// validateMatches returns an error for a property that the affected packets do not have.
func (r *Rule) validateMatches() error {
	if r.GID.Zone() != "" {
		return fmt.Errorf("%w: GID %v must not have a zone", ErrRule, r.GID)
	}
	if int(r.QPType) >= len(qpTypeNames) {
		return fmt.Errorf("%w: there is no type %d of queue pairs", ErrRule, r.QPType)
	}
	for i := range matches {
		if m := &matches[i]; m.Sent && m.value(r) != nil && (r.Stop || r.RNR > 0) {
			return fmt.Errorf("%w: %s selects sent packets only, and stop and rnr affect received packets", ErrRule, m.Name)
		}
	}
	return nil
}

// QPType is the type of a queue pair, as the transport service of its packets. The zero QPType means any type.
type QPType uint8

// The following constants are the types of queue pairs.
const (
	AnyQP QPType = iota
	QPTypeRC
	QPTypeUC
	QPTypeUD
	QPTypeXRC
	QPTypeSRD
)

var qpTypeNames = [...]string{AnyQP: "", QPTypeRC: "rc", QPTypeUC: "uc", QPTypeUD: "ud", QPTypeXRC: "xrc",
	QPTypeSRD: "srd"}

func (t QPType) String() string {
	if int(t) < len(qpTypeNames) {
		return qpTypeNames[t]
	}
	return fmt.Sprintf("QPType(%d)", uint8(t))
}

// MarshalText implements encoding.TextMarshaler.
func (t QPType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It ignores case.
func (t *QPType) UnmarshalText(b []byte) error {
	for i, name := range qpTypeNames[1:] {
		if strings.EqualFold(string(b), name) {
			*t = QPType(i + 1)
			return nil
		}
	}
	return fmt.Errorf("%.20q is not a type of queue pairs: use rc, uc, ud, xrc or srd", b)
}

// selection is an optional number: the number plus one, or 0 for any number.
type selection struct{ n uint32 }

func (s selection) is(v uint32) bool { return s.n == v+1 }

func (s *selection) parse(b []byte, what string, most uint64) error {
	v, err := strconv.ParseUint(string(b), 0, 32)
	if err != nil || v > most {
		return fmt.Errorf("%.20q is not a %s: use a number from 0 to %d", b, what, most)
	}
	s.n = uint32(v) + 1
	return nil
}

func (s selection) format(base int, prefix string) string {
	if s.n == 0 {
		return ""
	}
	return prefix + strconv.FormatUint(uint64(s.n-1), base)
}

// ServiceLevel is a service level from 0 to 15 (IBA 7.6.5). The zero ServiceLevel means any level.
type ServiceLevel struct{ selection }

func (l ServiceLevel) String() string { return l.format(10, "") }

// MarshalText implements encoding.TextMarshaler.
func (l ServiceLevel) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *ServiceLevel) UnmarshalText(b []byte) error { return l.parse(b, "service level", 15) }

// TrafficClass is a traffic class from 0 to 255, of which the DSCP is compared. The low two bits (ECN) have no effect.
// The zero TrafficClass means any traffic class.
type TrafficClass struct{ selection }

func (c TrafficClass) String() string { return c.format(10, "") }

// MarshalText implements encoding.TextMarshaler.
func (c TrafficClass) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *TrafficClass) UnmarshalText(b []byte) error { return c.parse(b, "traffic class", 255) }

// PKey is a partition key, of which the number of the partition is compared. The membership bit (0x8000) has no effect.
// The zero PKey means any partition.
type PKey struct{ selection }

func (k PKey) String() string { return k.format(16, "0x") }

// MarshalText implements encoding.TextMarshaler.
func (k PKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *PKey) UnmarshalText(b []byte) error { return k.parse(b, "P_Key", 0xffff) }
