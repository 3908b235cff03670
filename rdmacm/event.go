package rdmacm

import (
	"fmt"

	"verbena/ib"
)

// EventType is what has happened to an ID (enum rdma_cm_event_type; the numbers are the user ABI's).
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

func (t EventType) String() string {
	names := [numEvents]string{
		"address resolved", "address error", "route resolved", "route error", "connect request", "connect response", "connect error",
		"unreachable", "rejected", "established", "disconnected", "device removal", "multicast join", "multicast error", "address change",
		"timewait exit",
	}
	if t < numEvents {
		return names[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// Event is what an ID's owner is told (struct rdma_cm_event).
type Event struct {
	Type EventType
	// Status is 0, a negative errno, or for Rejected the msg.Reason, for Unreachable of a datagram service the
	// msg.SIDRStatus.
	Status int32
	// New is the ID of a ConnectRequest: the owner of the listener gives it an owner with [ID.Adopt], or destroys it.
	New *ID
	// Param is what the peer asks for, or answers; of ConnectRequest, ConnectResponse and Established.
	Param Param
	// Data is private data, as long as the message's field: what the peer sent, and then zeros.
	Data []byte
	// AH is how to reach a datagram service, or a multicast group: with Param.QPN and Param.QKey.
	AH ib.AHAttr
	// Group is the group of MulticastJoin and MulticastError.
	Group *Group

	err error // of AddrError, in words
}

// Param are the parameters of a connection (struct rdma_conn_param).
type Param struct {
	QPN                uint32
	QKey               uint32 // of a datagram service
	ResponderResources uint8  // READs and atomics of the peer that this side takes at once
	InitiatorDepth     uint8  // READs and atomics that this side begins at once
	FlowControl        bool
	RetryCount         uint8 // 3 bits
	RNRRetryCount      uint8 // 3 bits
	SRQ                bool
}
