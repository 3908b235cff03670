package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"verbena/internal/ctl"
	"verbena/link"
)

// linkState is up, down, flap or flap=DURATION.
type linkState struct {
	state ctl.LinkState
	down  time.Duration
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *linkState) UnmarshalText(b []byte) error {
	text, after, timed := strings.Cut(string(b), "=")
	switch state := ctl.LinkState(text); {
	case state != ctl.LinkUp && state != ctl.LinkDown && state != ctl.LinkFlap, timed && state != ctl.LinkFlap:
		return fmt.Errorf("state %q: there are up, down, flap and flap=DURATION", b)
	default:
		s.state = state
	}
	if timed {
		d, err := time.ParseDuration(after)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is not a duration: write flap=500ms or flap=2s", after)
		}
		s.down = d
	}
	return nil
}

// rate is a number of bits per second, such as 10Gbit.
type rate struct {
	set bool
	n   uint64
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *rate) UnmarshalText(b []byte) error {
	r.set = true
	text := strings.ToLower(string(b))
	if text == "none" {
		return nil
	}
	bad := fmt.Errorf("%q is not a rate: write 100Mbit, 10Gbit or none", b)
	text, ok := strings.CutSuffix(text, "bit")
	if !ok {
		return bad
	}
	scale := 1.0
	for i, unit := range []string{"k", "m", "g", "t"} {
		if t, ok := strings.CutSuffix(text, unit); ok {
			text, scale = t, math.Pow(1000, float64(i+1))
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if v *= scale; err != nil || !(v >= 1 && v < 1<<63) {
		return bad
	}
	r.n = uint64(v)
	return nil
}

// queueSize is a number of bytes, such as 256KB, or of packets, such as "100 packets".
type queueSize struct {
	bytes   byteCount
	packets uint64
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *queueSize) UnmarshalText(b []byte) error {
	for _, unit := range []string{"packets", "packet", "p"} {
		if text, ok := strings.CutSuffix(string(b), unit); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			if err != nil || n == 0 {
				return fmt.Errorf("%q is not a number of packets", b)
			}
			q.packets = n
			return nil
		}
	}
	return q.bytes.UnmarshalText(b)
}

// byteCount is a number of bytes, such as 65536, 64K or 64KB.
type byteCount uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *byteCount) UnmarshalText(b []byte) error {
	var s byteSize
	if err := s.UnmarshalText([]byte(strings.TrimSuffix(strings.ToUpper(string(b)), "B"))); err != nil || s == 0 {
		return fmt.Errorf("%q is not a number of bytes from 1 to 2G: write 65536, 64KB or 1MB", b)
	}
	*n = byteCount(s)
	return nil
}

// pathMTU is a path MTU, or none.
type pathMTU int

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *pathMTU) UnmarshalText(b []byte) error {
	if string(b) == "none" {
		*m = ctl.MTUOfInterface
		return nil
	}
	v, err := strconv.Atoi(string(b))
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is not an MTU: there are 256, 512, 1024, 2048 and 4096, and none", b)
	}
	*m = pathMTU(v)
	return nil
}

type linkSetCmd struct {
	Name     string         `arg:"" help:"Name of the device." complete:"device"`
	State    *linkState     `arg:"" optional:"" help:"up, down, or flap[=DURATION]: down, and up again after 1s or that time." complete:"up,down,flap"`
	AtWR     ordinal        `name:"at-wr" help:"Take the link down just before the device executes its N-th send work request from now." placeholder:"N" xor:"moment" complete:"none"`
	AtPacket ordinal        `help:"Take the link down just before the device sends its N-th packet from now." placeholder:"N" xor:"moment" complete:"none"`
	Cancel   bool           `help:"Forget a moment that has not come." xor:"moment"`
	MTU      pathMTU        `name:"mtu" help:"Limit the active MTU to so many bytes; none: what fits the interface." placeholder:"BYTES" complete:"256,512,1024,2048,4096,none"`
	Rate     rate           `help:"Let packets leave at this rate, such as 100Mbit; none: as they come." placeholder:"RATE" complete:"none"`
	Delay    *time.Duration `help:"Time that each packet is on its way, such as 20us." placeholder:"D" complete:"none"`
	Jitter   time.Duration  `help:"Up to so much more delay, at random, by which packets overtake each other." placeholder:"D" complete:"none"`
	Queue    queueSize      `help:"Packets that may wait for the rate, such as 256KB or 100packets; others are dropped. Default: 4MB." placeholder:"SIZE" complete:"none"`
	ECN      byteCount      `name:"ecn-threshold" help:"Mark packets with congestion experienced while more than so many bytes wait, if they say that they are of an ECN-capable transport." placeholder:"BYTES" complete:"none"`
	Loss     *percent       `help:"Share of packets to lose on their way, such as 1% or 0.01." placeholder:"P" complete:"none"`
	Seed     uint64         `help:"Seed of jitter and loss; default: another one each time." placeholder:"N" complete:"none"`
}

func (l *linkSetCmd) Help() string {
	return `A link that is down looks as one without a carrier: programs get IBV_EVENT_PORT_ERR, and no packet leaves or arrives. It stays
so when the device is reset. A flap returns when the link is up again, or at once with --at-wr or --at-packet.

--rate, --delay, --jitter, --queue, --ecn-threshold, --loss and --seed describe the link together: those that are left out are
off. "--rate none" alone ends them all, as does "--delay 0" or "--loss 0". They act on what the device sends; "verbena stat show"
counts what is dropped and marked. While a device has any, its packets take no shortcut within the service. The rate counts packets
with their IP headers.

Examples:
  verbena link set rxe0 flap=2s
  verbena link set rxe0 down --at-wr 1000
  verbena link set rxe0 --rate 10Gbit --delay 20us --queue 256KB --ecn-threshold 64KB
  verbena link set rxe0 --rate none
  verbena link set rxe0 --mtu 1024`
}

// shape returns the shape that the flags describe, nil if there are none.
func (l *linkSetCmd) shape() *ctl.Shape {
	s := ctl.Shape{
		Rate: l.Rate.n, Jitter: l.Jitter, QueueBytes: uint64(l.Queue.bytes), QueuePackets: l.Queue.packets, ECN: uint64(l.ECN),
		Seed: l.Seed}
	if l.Delay != nil {
		s.Delay = *l.Delay
	}
	if l.Loss != nil {
		s.Loss = float64(*l.Loss)
	}
	if s == (ctl.Shape{}) && !l.Rate.set && l.Delay == nil && l.Loss == nil {
		return nil
	}
	return &s
}

func (l *linkSetCmd) Run(c *cli) error {
	r := ctl.LinkSet{
		Name: l.Name, AtWR: uint64(l.AtWR), AtPacket: uint64(l.AtPacket), Cancel: l.Cancel, MTU: int(l.MTU), Shape: l.shape()}
	if l.State != nil {
		r.State, r.Down = l.State.state, l.State.down
	}
	if r == (ctl.LinkSet{Name: l.Name}) {
		return errors.New("link set: nothing to change: give up, down, flap, --mtu, --rate, --delay or --loss; see verbena link set --help")
	}
	if r.Shape != nil {
		if s := link.Shape(*r.Shape); s.Validate() != nil {
			return fmt.Errorf("link set: %w", s.Validate())
		}
	}
	_, err := c.ask(&ctl.Request{Op: ctl.OpLinkSet, Set: &r})
	return err
}

// linkDetails describes what link set has made of a link, in words; "" if that is nothing.
func linkDetails(x *ctl.LinkInfo) string {
	var w []string
	if x.Link != ctl.LinkUp && x.Link != "" {
		w = append(w, string(x.Link))
	}
	if x.MaxMTU > 0 {
		w = append(w, fmt.Sprintf("mtu %d", x.MaxMTU))
	}
	if x.Shape != nil {
		w = append(w, link.Shape(*x.Shape).String())
	}
	if x.Armed != "" {
		w = append(w, x.Armed)
	}
	return strings.Join(w, ", ")
}
