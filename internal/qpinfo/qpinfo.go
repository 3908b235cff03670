// Package qpinfo defines the reports of a driver about its queue pairs. They are the protocol state, and traces of
// protocol events. The control protocol sends these types, and the command line prints them.
package qpinfo

import (
	"fmt"
	"time"
)

// Status is the protocol state of a queue pair.
type Status struct {
	Num     uint32 `json:"num"`
	Type    string `json:"type"`
	State   string `json:"state"`
	DestQPN uint32 `json:"dest_qpn,omitempty"` // only for a connection
	Peer    string `json:"peer,omitempty"`     // address of the connection's other end
	MTU     int    `json:"mtu"`
	Traced  bool   `json:"traced"`
	// Slow reports that the queue pair is waiting for memory of the program that blocks access.
	Slow bool `json:"slow,omitempty"`

	Unacknowledged uint32 `json:"unacknowledged"` // oldest PSN without an acknowledgement
	NextPSN        uint32 `json:"next_psn"`       // PSN of the next packet
	ExpectedPSN    uint32 `json:"expected_psn"`   // PSN of the peer's next request
	InFlight       int    `json:"in_flight"`      // work requests in progress
	Window         int    `json:"window"`         // limit of the bytes in flight
	Retries        uint8  `json:"retries"`        // retries left
	RNRRetries     uint8  `json:"rnr_retries"`    // RNR retries left; 7 means no limit
	Egress         int    `json:"egress"`         // number of trains that wait to be sent
	// Retransmits counts the times that the queue pair has sent unacknowledged packets again: after a timeout, a NAK or
	// an RNR NAK, and to detect a loss before the timeout.
	Retransmits uint64 `json:"retransmits"`

	// Flows describes a queue pair of SRD, otherwise nil.
	Flows *Flows `json:"flows,omitempty"`
}

// Flows are the flows of a queue pair of SRD. Each leads to one queue pair, or comes from one.
type Flows struct {
	Out     int `json:"out"`     // flows to peers
	Busy    int `json:"busy"`    // flows to peers with requests that have not ended
	In      int `json:"in"`      // flows from peers
	Waiting int `json:"waiting"` // packets that the peers have refused, and that wait for receives
}

// String returns the flows in one line, "" for none.
func (f *Flows) String() string {
	if f == nil || f.Out+f.In == 0 {
		return ""
	}
	s := fmt.Sprintf("flows: %d out, %d of them busy, %d in", f.Out, f.Busy, f.In)
	if f.Waiting > 0 {
		s += fmt.Sprintf("; packets waiting for receives: %d", f.Waiting)
	}
	return s
}

// Trace is the trace of a queue pair.
type Trace struct {
	On     bool    `json:"on"`
	Lost   uint64  `json:"lost"` // number of events overwritten by newer events
	Events []Event `json:"events"`
}

// Event is a protocol event of a queue pair.
type Event struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`            // "send", "receive", "drop", "retry", "state" and others
	Opcode string    `json:"opcode,omitempty"` // opcode of the packet, if the event has one
	PSN    uint32    `json:"psn,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// String formats the event as one line, without its time.
func (e Event) String() string {
	s := e.Event
	if e.Opcode != "" {
		s += fmt.Sprintf(" %s psn %d", e.Opcode, e.PSN)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}
