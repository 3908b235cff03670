package ctl

import (
	"fmt"
	"strings"
	"time"

	"verbena/internal/fault"
)

// LinkSet changes the link of a device. Omitted properties stay unchanged.
type LinkSet struct {
	Name string `json:"name"`
	// State is the new state of the link; empty leaves the state unchanged.
	State LinkState `json:"state,omitempty"`
	// Down is the duration for which LinkFlap takes the link down; 0: DefaultFlap. At most MaxFlap.
	Down time.Duration `json:"down_ns,omitempty"`
	// AtWR or AtPacket is the moment at which State changes. The moment is just before the device executes the
	// AtWR-th send work request from now, or sends the AtPacket-th packet from now. Both 0: now.
	AtWR     uint64 `json:"at_wr,omitempty"`
	AtPacket uint64 `json:"at_packet,omitempty"`
	// Cancel cancels the pending moments of earlier requests, and excludes other changes.
	Cancel bool `json:"cancel,omitempty"`
	// MTU limits the active MTU, in bytes: a power of two from 256 to 4096. UseInterfaceMTU removes the limit.
	MTU int `json:"mtu,omitempty"`
	// Shape replaces the limits and delays of the link for sent packets. The zero Shape removes all limits and
	// delays.
	Shape *fault.Shape `json:"shape,omitempty"`
}

// UseInterfaceMTU is the value of LinkSet.MTU for no limit except that of the interface.
const UseInterfaceMTU = -1

// LinkState is a state of a link.
type LinkState string

// The following constants are the states of links.
const (
	LinkUp   LinkState = "up"
	LinkDown LinkState = "down" // like a link without a carrier
	LinkFlap LinkState = "flap" // down, then up again; the request returns when the link is up
)

// ParseLinkState parses a state of a link as users write it: up, down, flap or flap=DURATION. down is the duration of
// LinkFlap, or 0 for DefaultFlap.
func ParseLinkState(text string) (state LinkState, down time.Duration, err error) {
	word, after, timed := strings.Cut(text, "=")
	state = LinkState(word)
	if state != LinkUp && state != LinkDown && state != LinkFlap || timed && state != LinkFlap {
		return "", 0, fmt.Errorf("state %q is not up, down, flap or flap=DURATION", ClipText(text))
	}
	if timed {
		down, err = time.ParseDuration(after)
		if err != nil || down <= 0 {
			return "", 0, fmt.Errorf("%q is not a duration: write flap=500ms or flap=2s", ClipText(after))
		}
	}
	return state, down, nil
}

// The following constants are the default and the maximum duration of LinkFlap.
const (
	DefaultFlap = time.Second
	MaxFlap     = time.Hour
)

// DevEvent raises an asynchronous event of a device. The tags are the names of the fields in the control protocol
// (json), in scenario files (yaml) and on the command line.
type DevEvent struct {
	Name string `json:"name" yaml:"dev" arg:"" help:"Name of the device." complete:"device"`
	// Event is the name of the event. It is IBV_EVENT_* in lower case, such as port_err.
	Event string `json:"event" yaml:"event" arg:"" help:"Name of the event, as IBV_EVENT_* in small letters: port_err." complete:"event"`
	// Port, QP, CQ or SRQ is the number of the event's object, as the event requires. A Port of 0 means 1. Numbers
	// of CQs and SRQs belong to a process. They are the Handle of CQInfo and SRQInfo.
	Port int    `json:"port,omitempty" yaml:"port" help:"Port of the event; default: 1." placeholder:"N" complete:"none"`
	QP   uint32 `json:"qp,omitempty" yaml:"qp" name:"qp" help:"Number of the event's queue pair." placeholder:"N" complete:"none"`
	CQ   uint32 `json:"cq,omitempty" yaml:"cq" name:"cq" help:"Handle of the event's completion queue, as in res show --json." placeholder:"N" complete:"none"`
	SRQ  uint32 `json:"srq,omitempty" yaml:"srq" name:"srq" help:"Handle of the event's shared receive queue, as in res show --json." placeholder:"N" complete:"none"`
	// PID is the process of the CQ or SRQ, if several processes have a queue with that number; 0 means any process.
	PID int `json:"pid,omitempty" yaml:"-" name:"pid" help:"Process of the queue, if several processes have a queue with that handle." placeholder:"N" complete:"none"`
}
