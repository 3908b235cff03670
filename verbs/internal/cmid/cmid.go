// Package cmid is the interface of package cm to a connection manager. The interface consists of IDs and their events.
// The kernel or a service implements the interface with the file rdma_cm. verbs/embed implements it with package rdmacm
// in this process.
package cmid

import (
	"net/netip"

	"verbena/verbs"
)

// Backend creates IDs.
type Backend interface {
	// NewID creates an ID. f is called for the events of the ID, one at a time, and must not wait for a call on an ID.
	// NewID may sleep.
	NewID(f func(Event)) (ID, error)
	// Close closes the backend together with its remaining IDs. Close may sleep.
	Close() error
}

// ID is one side of a connection, or a listener (struct rdma_cm_id, port space TCP, RC). The methods of an ID may
// sleep.
type ID interface {
	Bind(at netip.AddrPort) error
	Listen(backlog int) error
	// ResolveAddr causes an event AddrResolved or AddrError. ResolveRoute causes RouteResolved or RouteError.
	ResolveAddr(src, dst netip.AddrPort) error
	ResolveRoute() error
	// Connect causes an event ConnectResponse, Rejected or Unreachable.
	Connect(p Param, data []byte) error
	// Adopt sets the event function of a request. Adopt must be called before Accept.
	Adopt(f func(Event))
	// Accept causes an event Established.
	Accept(p Param, data []byte) error
	// Complete replies to a ConnectResponse.
	Complete() error
	Reject(data []byte) error
	Disconnect() error
	QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.AttrMask, error)
	View() (View, error)
	// Destroy ends the ID. After Destroy has returned, no event function of the ID runs.
	Destroy()
}

// View holds the addresses and the device of an ID.
type View struct {
	Local, Remote netip.AddrPort
	NodeGUID      uint64 // node GUID of the device; 0 if unknown
	Port          int
}

// Param holds the parameters of a connection (struct rdma_conn_param).
type Param struct {
	QPN                uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                bool
}

// Type is a kind of event (enum rdma_cm_event_type).
type Type uint32

// The next constants are the kinds of events.
const (
	AddrResolved Type = iota
	AddrError
	RouteResolved
	RouteError
	ConnectRequest
	ConnectResponse
	ConnectError
	Unreachable
	Rejected
	Established
	Disconnected
	DeviceRemoval
	MulticastJoin
	MulticastError
	AddrChange
	TimewaitExit
)

// Event is an event of an ID.
type Event struct {
	Type   Type
	Status int32 // for an error: a negative errno or the reason code of a rejection
	New    ID    // for a ConnectRequest; the receiver of the event owns the new ID
	Param  Param
	Data   []byte // private data, with the length of the message's field
}
