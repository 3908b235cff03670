package qpinfo

import (
	"fmt"
	"strings"
	"time"
)

// Cause is the explanation of a failure. Package explain derives it from the facts of both ends.
type Cause struct {
	ID   uint64    `json:"id"` // counts the causes of the service
	Time time.Time `json:"time"`
	// Row names the row of the table of causes (docs/results/explain.md).
	Row string `json:"row"`
	// What describes the failed completion, refused call, dropped packet, rejected connection or lost device.
	What string `json:"what"`
	// Why describes the reason, with its values.
	Why string `json:"why"`
	// Clause is the clause of the IBA specification, or the manual page, with the violated rule.
	Clause string `json:"clause"`
	// Fault is the end at fault: "this end", "the peer", "both ends", "the network", "the device",
	// "injected" or "unknown".
	Fault  string `json:"fault"`
	Remedy string `json:"remedy"`
	// Since is the beginning of the condition, or zero if it is unknown.
	Since time.Time `json:"since,omitzero"`

	Device  string `json:"device,omitempty"`
	QP      uint32 `json:"qp,omitempty"`
	Peer    string `json:"peer,omitempty"`    // address of the other end
	PeerQP  uint32 `json:"peer_qp,omitempty"` // number of the other end's queue pair
	PID     int    `json:"pid,omitempty"`
	Process string `json:"process,omitempty"`
	UID     int    `json:"uid"`
	// Container distinguishes users with the same ID in different containers.
	Container uint64 `json:"container,omitempty"`
	// Session is the name of the program's session, or "" for a program that uses a device over the control socket.
	Session string `json:"session,omitempty"`

	// Lasting is set while the condition lasts. The cause is then not stored yet, and may disappear.
	Lasting bool `json:"lasting,omitempty"`

	Count   int `json:"count"`             // occurrences, at least 1
	Flushed int `json:"flushed,omitempty"` // work requests that were flushed because of this failure
}

// String returns the explanation in one line, without time, process and remedy.
func (c *Cause) String() string {
	var b strings.Builder
	b.WriteString(c.What)
	if c.Why != "" {
		b.WriteString("; " + c.Why)
	}
	if c.Count > 1 {
		fmt.Fprintf(&b, " (%d times)", c.Count)
	}
	if c.Flushed > 0 {
		fmt.Fprintf(&b, "; work requests flushed: %d", c.Flushed)
	}
	return b.String()
}

// Advice returns the explanation in one line, with the end at fault, the rule and the remedy.
func (c *Cause) Advice() string {
	where := ""
	if c.Device != "" && c.QP != 0 {
		where = c.Device + " "
	}
	return fmt.Sprintf("%s%s [%s; at fault: %s; rule: %s; remedy: %s]", where, c, c.Row, c.Fault, c.Clause, c.Remedy)
}
