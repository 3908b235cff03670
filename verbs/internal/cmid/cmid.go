// Package cmid is what package cm needs of a connection manager: IDs, and their events. A kernel's, or a service's, has them by the file
// rdma_cm; verbs/embed has them of package rdmacm in this process.
package cmid

import (
	"net/netip"

	"verbena/verbs"
)

// Backend makes IDs.
type Backend interface {
	// NewID makes an ID, whose events f gets, one at a time. f must not wait for a call on an ID. It may sleep.
	NewID(f func(Event)) (ID, error)
	// Close ends the backend, and IDs that are left. It may sleep.
	Close() error
}

// ID is an end of a connection, or of a listener (struct rdma_cm_id, port space TCP, RC). Its methods may sleep.
type ID interface {
	Bind(at netip.AddrPort) error
	Listen(backlog int) error
	// ResolveAddr leads to AddrResolved or AddrError, ResolveRoute to RouteResolved or RouteError.
	ResolveAddr(src, dst netip.AddrPort) error
	ResolveRoute() error
	// Connect leads to ConnectResponse, Rejected, or Unreachable.
	Connect(p Param, data []byte) error
	// Adopt gives a request a function for its events. It comes before Accept.
	Adopt(f func(Event))
	// Accept leads to Established.
	Accept(p Param, data []byte) error
	// Complete answers a ConnectResponse.
	Complete() error
	Reject(data []byte) error
	Disconnect() error
	QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.AttrMask, error)
	View() (View, error)
	// Destroy ends the ID. No event comes when it has returned.
	Destroy()
}

// View is what an ID knows of its addresses, and of its device.
type View struct {
	Local, Remote netip.AddrPort
	NodeGUID      uint64 // of the device; 0: not known
	Port          int
}

// Param are the parameters of a connection (struct rdma_conn_param).
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
	Status int32 // of an error: a negative errno, or the reason of a refusal
	New    ID    // of a ConnectRequest, which its receiver owns
	Param  Param
	Data   []byte // private data, as long as the message's field
}
