package ctl

import "time"

// LinkSet changes the link of a device: what is not given stays as it is.
type LinkSet struct {
	Name string `json:"name"`
	// State is the state to bring the link to; empty: as it is.
	State LinkState `json:"state,omitempty"`
	// Down is for how long LinkFlap has the link down; 0: DefaultFlap. At most MaxFlap.
	Down time.Duration `json:"down_ns,omitempty"`
	// AtWR, or AtPacket, is the moment at which State changes: just before the device executes the AtWR-th send work
	// request, or sends the AtPacket-th packet, from now. Both 0: now.
	AtWR     uint64 `json:"at_wr,omitempty"`
	AtPacket uint64 `json:"at_packet,omitempty"`
	// Cancel: moments of earlier requests that have not come are forgotten, and nothing else is done.
	Cancel bool `json:"cancel,omitempty"`
	// MTU is the most that the active MTU may be, in bytes: a power of two from 256 to 4096. MTUOfInterface: what fits
	// the interface.
	MTU int `json:"mtu,omitempty"`
	// Shape replaces how the link limits and delays what the device sends; the zero Shape ends it.
	Shape *Shape `json:"shape,omitempty"`
}

// MTUOfInterface is LinkSet.MTU for no limit but the interface's.
const MTUOfInterface = -1

// LinkState is a state to bring a link to.
type LinkState string

// States of links.
const (
	LinkUp   LinkState = "up"
	LinkDown LinkState = "down" // as without a carrier
	LinkFlap LinkState = "flap" // down, and up again; the request returns when it is up
)

// Times of LinkFlap.
const (
	DefaultFlap = time.Second
	MaxFlap     = time.Hour
)

// Shape is a link.Shape, which documents the fields; the two convert into one another.
type Shape struct {
	Rate         uint64        `json:"rate_bps,omitempty"`
	Delay        time.Duration `json:"delay_ns,omitempty"`
	Jitter       time.Duration `json:"jitter_ns,omitempty"`
	QueueBytes   uint64        `json:"queue_bytes,omitempty"`
	QueuePackets uint64        `json:"queue_packets,omitempty"`
	ECN          uint64        `json:"ecn_bytes,omitempty"`
	Loss         float64       `json:"loss,omitempty"`
	Seed         uint64        `json:"seed,omitempty"`
}

// VerbFault makes a control verb fail, or wait, before anything has been done for it.
type VerbFault struct {
	// Verb is the name of the verb, as that of its function in C without ibv_: create_cq; those of the connection manager
	// have their whole names: rdma_connect. modify_qp may be followed by the state that is asked for: modify_qp:rtr.
	Verb string `json:"verb"`
	// Errno is the name of the error, such as ENOMEM; empty: the verb does not fail.
	Errno string `json:"errno,omitempty"`
	// Delay is how long the verb waits first. At most MaxVerbDelay.
	Delay time.Duration `json:"delay_ns,omitempty"`
	// Process is the name or the number of the process that has opened the device; empty: any.
	Process string `json:"process,omitempty"`
	// Nth call that the rule is about is the first that it acts on (0: the first), and it acts on so many Times (0: without
	// end).
	Nth   uint64 `json:"nth,omitempty"`
	Times uint64 `json:"times,omitempty"`
}

// MaxVerbDelay bounds VerbFault.Delay.
const MaxVerbDelay = time.Minute

// DevEvent raises an asynchronous event of a device.
type DevEvent struct {
	Name string `json:"name"`
	// Event is the name of the event, as that of IBV_EVENT_* in small letters: port_err.
	Event string `json:"event"`
	// Port, QP, CQ or SRQ is the number of what the event is of, as the event needs it; Port 0: 1. Those of CQs and SRQs are
	// of the process: the Handle of CQInfo and SRQInfo.
	Port int    `json:"port,omitempty"`
	QP   uint32 `json:"qp,omitempty"`
	CQ   uint32 `json:"cq,omitempty"`
	SRQ  uint32 `json:"srq,omitempty"`
	// PID is the process whose CQ or SRQ is meant, where several have one of that number; 0: any.
	PID int `json:"pid,omitempty"`
}
