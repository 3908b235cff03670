package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"verbena/internal/ctl"
	"verbena/internal/fault"
)

// linkStateArg is the argument up, down, flap or flap=DURATION.
type linkStateArg struct {
	state ctl.LinkState
	down  time.Duration
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *linkStateArg) UnmarshalText(b []byte) (err error) {
	s.state, s.down, err = ctl.ParseLinkState(string(b))
	return err
}

// queueSizeFlag is a number of bytes, such as 256KB, or of packets, such as "100 packets".
type queueSizeFlag struct {
	bytes   fault.Size
	packets uint64
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *queueSizeFlag) UnmarshalText(b []byte) error {
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
	var err error
	if q.bytes, err = fault.ParseSize(string(b)); err == nil && q.bytes == 0 {
		err = errors.New("a queue of 0 bytes cannot hold a packet")
	}
	return err
}

// pathMTUFlag is a path MTU, or none.
type pathMTUFlag int

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *pathMTUFlag) UnmarshalText(b []byte) error {
	if string(b) == "none" {
		*m = ctl.UseInterfaceMTU
		return nil
	}
	v, err := strconv.Atoi(string(b))
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is not an MTU: use 256, 512, 1024, 2048, 4096 or none", b)
	}
	*m = pathMTUFlag(v)
	return nil
}

type linkSetCmd struct {
	Name     string         `arg:"" help:"Name of the device." complete:"device"`
	State    *linkStateArg  `arg:"" optional:"" help:"up, down, or flap[=DURATION]: down, and up again after DURATION; default: 1s." complete:"up,down,flap"`
	AtWR     oneBasedNumber `name:"at-wr" help:"Take the link down just before the device executes its N-th send work request from now." placeholder:"N" xor:"moment" complete:"none"`
	AtPacket oneBasedNumber `help:"Take the link down just before the device sends its N-th packet from now." placeholder:"N" xor:"moment" complete:"none"`
	Cancel   bool           `help:"Cancel a pending --at-wr or --at-packet." xor:"moment"`
	MTU      pathMTUFlag    `name:"mtu" help:"Limit the active MTU, in bytes; none: use the interface's limit." placeholder:"BYTES" complete:"256,512,1024,2048,4096,none"`
	Shape    shapeFlags     `embed:""`
	Queue    queueSizeFlag  `help:"Packets that may wait for the rate, such as 256KB or 100packets; others are dropped. Default: 4MB." placeholder:"SIZE" complete:"none"`

	hasShape bool // the command line has a flag of the shape, even if the shape is zero
}

// shapeFlags is a fault.Shape without its Validate method, which kong would call before the queue size is set.
type shapeFlags fault.Shape

// orderShapeFlags lists the queue size flag among the other flags of the shape.
func orderShapeFlags(k *kong.Kong) error {
	orderFlags(commandAtPath(k.Model.Node, "link", "set"),
		[]string{"at-wr", "at-packet", "cancel", "mtu", "rate", "delay", "jitter", "queue", "ecn-threshold", "loss", "seed"})
	return nil
}

// AfterApply records whether the command line contains a flag that can remove the shape.
func (l *linkSetCmd) AfterApply(k *kong.Context) error {
	for _, f := range k.Flags() {
		l.hasShape = l.hasShape || f.Set && slices.Contains([]string{"rate", "delay", "loss"}, f.Name)
	}
	return nil
}

func (l *linkSetCmd) Help() string {
	return `A link that is down looks as one without a carrier: programs get IBV_EVENT_PORT_ERR, and no packet leaves or arrives. It stays
so when the device is reset. A flap returns when the link is up again, or at once with --at-wr or --at-packet.

--rate, --delay, --jitter, --queue, --ecn-threshold, --loss and --seed describe the link together: those that are left out are
off. "--rate none" alone ends them all, as does "--delay 0" or "--loss 0". They act on what the device sends; "verbena stat show"
counts what is dropped and marked. While a device has any, its packets take no shortcut within the service. The rate counts packets
with their IP headers. It is also the speed of the port: a change raises IBV_EVENT_DEVICE_SPEED_CHANGE.

Examples:
  verbena link set rxe0 flap=2s
  verbena link set rxe0 down --at-wr 1000
  verbena link set rxe0 --rate 10Gbit --delay 20us --queue 256KB --ecn-threshold 64KB
  verbena link set rxe0 --rate none
  verbena link set rxe0 --mtu 1024`
}

// shapeFromFlags returns the shape that the flags describe, or nil.
func (l *linkSetCmd) shapeFromFlags() *fault.Shape {
	s := fault.Shape(l.Shape)
	s.QueueBytes, s.QueuePackets = l.Queue.bytes, l.Queue.packets
	if s == (fault.Shape{}) && !l.hasShape {
		return nil
	}
	return &s
}

func (l *linkSetCmd) Run(c *cli) error {
	r, err := l.buildRequest()
	if err != nil {
		return fmt.Errorf("link set: %w", err)
	}
	_, err = c.sendRequest(&ctl.Request{Op: ctl.OpLinkSet, Set: r})
	return err
}

// buildRequest returns the request for the change that the command line describes.
func (l *linkSetCmd) buildRequest() (*ctl.LinkSet, error) {
	r := ctl.LinkSet{
		Name: l.Name, AtWR: uint64(l.AtWR), AtPacket: uint64(l.AtPacket), Cancel: l.Cancel, MTU: int(l.MTU),
		Shape: l.shapeFromFlags()}
	if l.State != nil {
		r.State, r.Down = l.State.state, l.State.down
	}
	if r == (ctl.LinkSet{Name: l.Name}) {
		return nil, errors.New("nothing to change: give up, down, flap, --mtu, --rate, --delay or --loss; see verbena link set --help")
	}
	if r.Shape != nil {
		if err := r.Shape.Validate(); err != nil {
			return nil, err
		}
	}
	return &r, nil
}

// describeLinkState returns a description of the state that link set has given to a link, or "" if there is none.
func describeLinkState(x *ctl.LinkInfo) string {
	var w []string
	if x.Link != ctl.LinkUp && x.Link != "" {
		w = append(w, string(x.Link))
	}
	if x.MaxMTU > 0 {
		w = append(w, fmt.Sprintf("mtu %d", x.MaxMTU))
	}
	if x.Shape != nil {
		w = append(w, x.Shape.String())
	}
	if x.Armed != "" {
		w = append(w, x.Armed)
	}
	return strings.Join(w, ", ")
}
