package rdmacm

import (
	"fmt"

	"verbena/ib"
)

// EventType is the type of an event of an ID (enum rdma_cm_event_type). The numbers are those of the user ABI.
type EventType uint32

const (
	AddrResolved EventType = iota
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
	numEvents
)

// IsFailure reports whether the event means that an address was not resolved, or that a connection was not
// established.
func (t EventType) IsFailure() bool {
	switch t {
	case AddrError, RouteError, ConnectError, Unreachable, Rejected:
		return true
	}
	return false
}

func (t EventType) String() string {
	names := [numEvents]string{
		"address resolved", "address error", "route resolved", "route error", "connect request", "connect response",
		"connect error",
		"unreachable", "rejected", "established", "disconnected", "device removal", "multicast join", "multicast error",
		"address change",
		"timewait exit",
	}
	if t < numEvents {
		return names[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// Event is an event for the owner of an ID (struct rdma_cm_event).
type Event struct {
	Type EventType
	// Status is 0 or a negative errno. For Rejected it is the msg.Reason, and for Unreachable of a datagram service
	// it is the msg.SIDRStatus.
	Status int32
	// New is the ID of a ConnectRequest. The owner of the listener must set the event function of New with
	// [ID.SetEventFunc], or destroy New.
	New *ID
	// Param holds the requested or accepted parameters, for ConnectRequest, ConnectResponse and Established.
	Param Param
	// Data is private data, with the length of the message's field. It contains the peer's data, then zeros.
	Data []byte
	// AH is the address of a datagram service or a multicast group. Param.QPN and Param.QKey belong to the same
	// service or group.
	AH ib.AHAttr
	// Group is the group of MulticastJoin and MulticastError.
	Group *Group

	err error // description, for AddrError
}

// Err returns the description of an AddrError, or nil.
func (e Event) Err() error { return e.err }

// Param holds the parameters of a connection (struct rdma_conn_param).
type Param struct {
	QPN                uint32
	QKey               uint32 // Q_Key of a datagram service
	ResponderResources uint8  // maximum number of the peer's READs and atomics in flight
	InitiatorDepth     uint8  // maximum number of this side's READs and atomics in flight
	FlowControl        bool
	RetryCount         uint8 // 3 bits
	RNRRetryCount      uint8 // 3 bits
	SRQ                bool
}
