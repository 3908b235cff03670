package ctl

import (
	"time"

	"verbena/internal/fault"
)

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
	Shape *fault.Shape `json:"shape,omitempty"`
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
	// Nth call that the rule is about is the first that it acts on (0: the first), and it acts on so many Times (0:
	// without end).
	Nth   uint64 `json:"nth,omitempty"`
	Times uint64 `json:"times,omitempty"`
}

// MaxVerbDelay bounds VerbFault.Delay.
const MaxVerbDelay = time.Minute

// DevEvent raises an asynchronous event of a device. The tags are the names of the fields in the control protocol
// (json), in scenario files (yaml) and on the command line.
type DevEvent struct {
	Name string `json:"name" yaml:"dev" arg:"" help:"Name of the device." complete:"device"`
	// Event is the name of the event, as that of IBV_EVENT_* in small letters: port_err.
	Event string `json:"event" yaml:"event" arg:"" help:"Name of the event, as IBV_EVENT_* in small letters: port_err." complete:"event"`
	// Port, QP, CQ or SRQ is the number of what the event is of, as the event needs it; Port 0: 1. Those of CQs and SRQs
	// are of the process: the Handle of CQInfo and SRQInfo.
	Port int    `json:"port,omitempty" yaml:"port" help:"Port that the event is of; default: 1." placeholder:"N" complete:"none"`
	QP   uint32 `json:"qp,omitempty" yaml:"qp" name:"qp" help:"Number of the queue pair that the event is of." placeholder:"N" complete:"none"`
	CQ   uint32 `json:"cq,omitempty" yaml:"cq" name:"cq" help:"Handle of the completion queue that the event is of, as in res show --json." placeholder:"N" complete:"none"`
	SRQ  uint32 `json:"srq,omitempty" yaml:"srq" name:"srq" help:"Handle of the shared receive queue that the event is of, as in res show --json." placeholder:"N" complete:"none"`
	// PID is the process whose CQ or SRQ is meant, where several have one of that number; 0: any.
	PID int `json:"pid,omitempty" yaml:"-" name:"pid" help:"Process whose queue it is, where several have one of that handle." placeholder:"N" complete:"none"`
}
