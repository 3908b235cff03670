// Package cmid is the interface of package cm to a connection manager: IDs, and their events. The kernel or a service
// implements it with the file rdma_cm, and verbs/embed with package rdmacm in this process.
package cmid

import (
	"net/netip"

	"verbena/verbs"
)

// Backend creates IDs.
type Backend interface {
	// NewID creates an ID. f is called for its events, one at a time, and must not wait for a call on an ID. It may
	// sleep.
	NewID(f func(Event)) (ID, error)
	// Close closes the backend, and remaining IDs. It may sleep.
	Close() error
}

// ID is one side of a connection, or a listener (struct rdma_cm_id, port space TCP, RC). Its methods may sleep.
type ID interface {
	Bind(at netip.AddrPort) error
	Listen(backlog int) error
	// ResolveAddr causes AddrResolved or AddrError, ResolveRoute causes RouteResolved or RouteError.
	ResolveAddr(src, dst netip.AddrPort) error
	ResolveRoute() error
	// Connect causes ConnectResponse, Rejected, or Unreachable.
	Connect(p Param, data []byte) error
	// Adopt sets the event function of a request. It must be called before Accept.
	Adopt(f func(Event))
	// Accept causes Established.
	Accept(p Param, data []byte) error
	// Complete replies to a ConnectResponse.
	Complete() error
	Reject(data []byte) error
	Disconnect() error
	QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.AttrMask, error)
	View() (View, error)
	// Destroy ends the ID. No event function runs after it has returned.
	Destroy()
}

// View holds the addresses and the device of an ID.
type View struct {
	Local, Remote netip.AddrPort
	NodeGUID      uint64 // node GUID of the device; 0: unknown
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

// The events.
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
	Status int32 // for an error: a negative errno, or the reason of a rejection
	New    ID    // for a ConnectRequest; owned by the receiver
	Param  Param
	Data   []byte // private data, with the length of the message's field
}
