package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"verbena/link"
	"verbena/roce"
)

// errFilter is the error of an invalid filter.
var errFilter = errors.New("bad filter")

// FilterHelp describes the filter language for users.
const FilterHelp = `A filter is a list of KEY=VALUE, separated by commas. A packet must match all keys; of values of the same key one is enough.
  qp=N         queue pair that the packet is for, or that sends it where that is known: always for packets that go out
  src=IP       source address
  dst=IP       destination address
  host=IP      either of them
  dir=in|out   direction, as the device sees it
  opcode=NAME  operation: part of its name in the specification, such as read, write, ack, "send only", "ud send"; or
               a number, such as 0x11`

// filter selects packets. A nil filter selects all packets.
type filter struct {
	text    string
	qps     []uint32
	src     []netip.Addr
	dst     []netip.Addr
	host    []netip.Addr
	in, out bool
	opcodes [256]bool
	named   bool // opcodes is in use
}

// ParseFilter parses a filter, see [FilterHelp]. An empty text selects all packets. The error wraps [errFilter].
func ParseFilter(text string) (*filter, error) {
	f := &filter{text: text}
	if strings.TrimSpace(text) == "" {
		return f, nil
	}
	for term := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(term, "=")
		key, value = strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value)
		if !ok || value == "" {
			return nil, fmt.Errorf("%w: %q is not KEY=VALUE; keys are qp, src, dst, host, dir and opcode", errFilter, term)
		}
		if err := f.addCondition(key, value); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *filter) addCondition(key, value string) error {
	addr := func(list *[]netip.Addr) error {
		a, err := netip.ParseAddr(value)
		if err != nil {
			return fmt.Errorf("%w: %s=%s: not an IP address", errFilter, key, value)
		}
		*list = append(*list, a.Unmap().WithZone(""))
		return nil
	}
	switch key {
	case "qp":
		n, err := strconv.ParseUint(value, 0, 24)
		if err != nil {
			return fmt.Errorf("%w: qp=%s: not a queue pair number of 24 bits", errFilter, value)
		}
		f.qps = append(f.qps, uint32(n))
	case "src":
		return addr(&f.src)
	case "dst":
		return addr(&f.dst)
	case "host":
		return addr(&f.host)
	case "dir":
		switch strings.ToLower(value) {
		case "in":
			f.in = true
		case "out":
			f.out = true
		default:
			return fmt.Errorf("%w: dir=%s: must be in or out", errFilter, value)
		}
	case "opcode":
		return f.addOpcode(value)
	default:
		return fmt.Errorf("%w: unknown key %q; keys are qp, src, dst, host, dir and opcode", errFilter, key)
	}
	return nil
}

func (f *filter) addOpcode(value string) error {
	f.named = true
	if n, err := strconv.ParseUint(value, 0, 8); err == nil {
		f.opcodes[n] = true
		return nil
	}
	any := false
	want := normaliseName(value)
	for n := range len(f.opcodes) {
		op := roce.Opcode(n)
		if op.Known() && strings.Contains(normaliseName(op.String()), want) {
			f.opcodes[n], any = true, true
		}
	}
	if !any {
		return fmt.Errorf("%w: opcode=%s: no operation contains this in its name; an example is %q", errFilter, value,
			roce.RCSendOnlyWithImmediate)
	}
	return nil
}

// normaliseName normalises names for comparisons.
func normaliseName(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(s),
		func(r rune) bool { return r == ' ' || r == '-' || r == '_' }), " ")
}

// String returns the text of the filter.
func (f *filter) String() string {
	if f == nil {
		return ""
	}
	return f.text
}

// Match reports whether the filter selects a packet. Match may not sleep.
func (f *filter) Match(p *link.Tapped) bool {
	if f == nil || f.text == "" {
		return true
	}
	if len(p.Data) < roce.BTHLen {
		return false
	}
	h := roce.BTH(p.Data)
	src, dst := p.Src.Addr(), p.Dst.Addr()
	has := func(list []netip.Addr, a netip.Addr) bool { return slices.Contains(list, a.Unmap().WithZone("")) }
	switch {
	case len(f.qps) > 0 && !slices.Contains(f.qps, h.DestQPN()) && !slices.Contains(f.qps, senderQP(p)),
		len(f.src) > 0 && !has(f.src, src),
		len(f.dst) > 0 && !has(f.dst, dst),
		len(f.host) > 0 && !has(f.host, src) && !has(f.host, dst),
		f.in != f.out && f.out != p.Out,
		f.named && !f.opcodes[h.Opcode()]:
		return false
	}
	return true
}

// unknownQPN is not a valid queue pair number.
const unknownQPN = 1 << 24

// senderQP returns the number of the sending queue pair, if the device or the packet has it. Otherwise it returns
// unknownQPN.
func senderQP(p *link.Tapped) uint32 {
	if p.QP != 0 {
		return p.QP
	}
	op := roce.BTH(p.Data).Opcode()
	if op.Has(roce.FlagDETH) && len(p.Data) >= op.HeaderLen() {
		k := roce.Packet{Opcode: op, Flags: op.Flags(), Data: p.Data}
		return k.DETH().SrcQPN()
	}
	return unknownQPN
}
