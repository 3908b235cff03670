package msg

import "fmt"

// The following constants are the maximum lengths of the private data of messages, in bytes (IBA 12.6).
const (
	MaxREQData     = 92
	maxMRAData     = 222
	MaxREJData     = 148
	MaxREPData     = 196
	maxRTUData     = 224
	maxDREQData    = 220
	maxDREPData    = 224
	MaxSIDRREQData = 216
	MaxSIDRREPData = 136
	maxLAPData     = 168
	maxAPRData     = 148
	// maxInfo limits the additional information of REJ, SIDR_REP and APR.
	maxInfo = 72
)

// GID is a port's address, in wire format.
type GID [16]byte

// Path is the path to a queue pair, in REQ and LAP. Local refers to the sender of the message (IBA 12.6.5,
// 12.6.16).
type Path struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID GID
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	ACKTimeout          uint8 // 5 bits: 4.096 us * 2^n
}

// Transport is the transport service of a connection (IBA 12.6.5.7).
type Transport uint8

const (
	TransportRC Transport = 0
	TransportUC Transport = 1
	// TransportExtended: REQ.Extended contains the service.
	TransportExtended Transport = 3
)

// ExtendedXRC is REQ.Extended for XRC (IBA annex A14).
const ExtendedXRC = 1

// REQ requests a connection (IBA table 106).
type REQ struct {
	LocalCommID        uint32
	ServiceID          ServiceID
	LocalCAGUID        uint64
	LocalQKey          uint32
	LocalQPN           uint32 // 24 bits
	ResponderResources uint8  // maximum number of the peer's READs and atomics in flight
	LocalEECN          uint32 // 24 bits
	InitiatorDepth     uint8  // maximum number of the sender's READs and atomics in flight
	RemoteEECN         uint32 // 24 bits
	RemoteTimeout      uint8  // 5 bits: 4.096 us * 2^n, the time for the peer's response
	Transport          Transport
	FlowControl        bool
	StartingPSN        uint32 // 24 bits: initial PSN of the peer's packets (IBA 12.7.31)
	LocalTimeout       uint8  // 5 bits: the time for the sender's response
	RetryCount         uint8  // 3 bits
	PKey               uint16
	PathMTU            uint8 // 4 bits: 1 to 5 for 256 to 4096 bytes
	RDCExists          bool
	RNRRetryCount      uint8 // 3 bits
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	Extended           uint8 // 3 bits
	Primary, Alternate Path
	SAPSupported       bool
	Data               []byte
}

// MRA announces a late response (IBA table 107).
type MRA struct {
	LocalCommID, RemoteCommID uint32
	Of                        AnsweredMessage
	ServiceTimeout            uint8 // 5 bits: 4.096 us * 2^n
	Data                      []byte
}

// AnsweredMessage is the message that an MRA or a REJ refers to (IBA 12.6.6.2, 12.6.7.2).
type AnsweredMessage uint8

const (
	OfREQ AnsweredMessage = iota
	OfREP
	OfOther // LAP in an MRA; none in a REJ
)

// RejectReason is the reason of a rejection (IBA 12.6.7.2, enum ib_cm_rej_reason). The constants are the reasons that
// this module sends or distinguishes.
type RejectReason uint16

const (
	ReasonNoQP             RejectReason = 1
	ReasonNoResources      RejectReason = 3
	ReasonTimeout          RejectReason = 4
	ReasonUnsupported      RejectReason = 5
	ReasonInvalidServiceID RejectReason = 8
	ReasonInvalidTransport RejectReason = 9
	ReasonStaleConnection  RejectReason = 10
	ReasonInvalidGID       RejectReason = 12
	ReasonInvalidMTU       RejectReason = 26
	ReasonConsumer         RejectReason = 28
	ReasonVendorOption     RejectReason = 35
)

func (r RejectReason) String() string {
	switch r {
	case ReasonInvalidServiceID:
		return "no listener for the service ID"
	case ReasonConsumer:
		return "rejected by the consumer"
	case ReasonStaleConnection:
		return "stale connection"
	case ReasonTimeout:
		return "timeout"
	case ReasonNoResources:
		return "no resources"
	case ReasonNoQP:
		return "no queue pair"
	case ReasonUnsupported:
		return "unsupported request"
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// REJ rejects or ends a connection (IBA table 108).
type REJ struct {
	LocalCommID, RemoteCommID uint32
	Of                        AnsweredMessage
	InfoLength                uint8 // 7 bits: length of Info
	Reason                    RejectReason
	Info                      [maxInfo]byte // the contents depend on the reason
	Data                      []byte
}

// REP accepts a connection (IBA table 110).
type REP struct {
	LocalCommID, RemoteCommID uint32
	LocalQKey                 uint32
	LocalQPN                  uint32 // 24 bits
	LocalEECN                 uint32 // 24 bits
	StartingPSN               uint32 // 24 bits: initial PSN of the peer's packets
	ResponderResources        uint8
	InitiatorDepth            uint8
	TargetACKDelay            uint8 // 5 bits
	Failover                  uint8 // 2 bits: 0 accepted, 1 not supported, 2 refused
	FlowControl               bool
	RNRRetryCount             uint8 // 3 bits
	SRQ                       bool
	LocalCAGUID               uint64
	Data                      []byte
}

// RTU confirms the receipt of REP (IBA table 111).
type RTU struct {
	LocalCommID, RemoteCommID uint32
	Data                      []byte
}

// DREQ ends a connection (IBA table 112).
type DREQ struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 uint32 // 24 bits
	Data                      []byte
}

// DREP replies to DREQ (IBA table 113).
type DREP struct {
	LocalCommID, RemoteCommID uint32
	Data                      []byte
}

// LAP requests an alternate path (IBA table 115).
type LAP struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 uint32 // 24 bits
	RemoteTimeout             uint8  // 5 bits
	Alternate                 Path
	Data                      []byte
}

// APR replies to LAP (IBA table 116). Status 1 means an invalid communication ID. Status 2 means that alternate
// paths are not supported.
type APR struct {
	LocalCommID, RemoteCommID uint32
	InfoLength, Status        uint8
	Info                      [maxInfo]byte
	Data                      []byte
}

// SIDRREQ requests the queue pair of a datagram service (IBA table 119).
type SIDRREQ struct {
	RequestID uint32
	PKey      uint16
	ServiceID ServiceID
	Data      []byte
}

// SIDRStatus is the status of a reply to SIDR_REQ (IBA 12.11.2.1, enum ib_cm_sidr_status).
type SIDRStatus uint8

const (
	SIDRSuccess SIDRStatus = iota
	SIDRUnsupported
	SIDRRejected
)

// SIDRREP replies to SIDR_REQ (IBA table 120).
type SIDRREP struct {
	RequestID  uint32
	Status     SIDRStatus
	InfoLength uint8
	QPN        uint32 // 24 bits
	ServiceID  ServiceID
	QKey       uint32
	Info       [maxInfo]byte
	Data       []byte
}

func (*REQ) Attribute() Attribute     { return AttrREQ }
func (*MRA) Attribute() Attribute     { return AttrMRA }
func (*REJ) Attribute() Attribute     { return AttrREJ }
func (*REP) Attribute() Attribute     { return AttrREP }
func (*RTU) Attribute() Attribute     { return AttrRTU }
func (*DREQ) Attribute() Attribute    { return AttrDREQ }
func (*DREP) Attribute() Attribute    { return AttrDREP }
func (*SIDRREQ) Attribute() Attribute { return AttrSIDRREQ }
func (*SIDRREP) Attribute() Attribute { return AttrSIDRREP }
func (*LAP) Attribute() Attribute     { return AttrLAP }
func (*APR) Attribute() Attribute     { return AttrAPR }
