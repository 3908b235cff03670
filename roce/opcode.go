package roce

import "fmt"

// Opcode is the first byte of a packet. The upper three bits are the transport service, and the lower five bits are the
// operation (IBA 9.2.1, table 38). An opcode from the wire may be unknown; see [Opcode.Known].
type Opcode uint8

// Service is the transport service of an [Opcode].
type Service uint8

// The transport services. Reliable datagram (RD, 2) is not supported.
const (
	RC  Service = 0 // reliable connection
	UC  Service = 1 // unreliable connection
	UD  Service = 3 // unreliable datagram
	CN  Service = 4 // congestion notification (RoCEv2 only)
	XRC Service = 5 // extended reliable connection
	SRD Service = 6 // scalable reliable datagram of Verbena; the opcodes are those for manufacturers
)

// Operation is an [Opcode] without its service.
type Operation uint8

// The operations. RC and XRC have all operations but those of flows. UC has the first twelve. UD has [SendOnly] and
// [SendOnlyWithImmediate]. SRD has the operations of one packet, and those of flows.
const (
	SendFirst                  Operation = 0x00
	SendMiddle                 Operation = 0x01
	SendLast                   Operation = 0x02
	SendLastWithImmediate      Operation = 0x03
	SendOnly                   Operation = 0x04
	SendOnlyWithImmediate      Operation = 0x05
	RDMAWriteFirst             Operation = 0x06
	RDMAWriteMiddle            Operation = 0x07
	RDMAWriteLast              Operation = 0x08
	RDMAWriteLastWithImmediate Operation = 0x09
	RDMAWriteOnly              Operation = 0x0a
	RDMAWriteOnlyWithImmediate Operation = 0x0b
	RDMAReadRequest            Operation = 0x0c
	RDMAReadResponseFirst      Operation = 0x0d
	RDMAReadResponseMiddle     Operation = 0x0e
	RDMAReadResponseLast       Operation = 0x0f
	RDMAReadResponseOnly       Operation = 0x10
	Acknowledge                Operation = 0x11
	AtomicAcknowledge          Operation = 0x12
	CmpSwap                    Operation = 0x13
	FetchAdd                   Operation = 0x14
	SendLastWithInvalidate     Operation = 0x16
	SendOnlyWithInvalidate     Operation = 0x17
	FlowOpen                   Operation = 0x18
	FlowAccept                 Operation = 0x19
	FlowRefuse                 Operation = 0x1a
	FlowSkip                   Operation = 0x1b
	Flush                      Operation = 0x1c
	AtomicWrite                Operation = 0x1d
)

// The opcodes.
const (
	serviceShift  = 5
	operationMask = 1<<serviceShift - 1

	rc  = Opcode(RC) << serviceShift
	uc  = Opcode(UC) << serviceShift
	ud  = Opcode(UD) << serviceShift
	cn  = Opcode(CN) << serviceShift
	xrc = Opcode(XRC) << serviceShift
	srd = Opcode(SRD) << serviceShift

	RCSendFirst                  = rc | Opcode(SendFirst)
	RCSendMiddle                 = rc | Opcode(SendMiddle)
	RCSendLast                   = rc | Opcode(SendLast)
	RCSendLastWithImmediate      = rc | Opcode(SendLastWithImmediate)
	RCSendOnly                   = rc | Opcode(SendOnly)
	RCSendOnlyWithImmediate      = rc | Opcode(SendOnlyWithImmediate)
	RCRDMAWriteFirst             = rc | Opcode(RDMAWriteFirst)
	RCRDMAWriteMiddle            = rc | Opcode(RDMAWriteMiddle)
	RCRDMAWriteLast              = rc | Opcode(RDMAWriteLast)
	RCRDMAWriteLastWithImmediate = rc | Opcode(RDMAWriteLastWithImmediate)
	RCRDMAWriteOnly              = rc | Opcode(RDMAWriteOnly)
	RCRDMAWriteOnlyWithImmediate = rc | Opcode(RDMAWriteOnlyWithImmediate)
	RCRDMAReadRequest            = rc | Opcode(RDMAReadRequest)
	RCRDMAReadResponseFirst      = rc | Opcode(RDMAReadResponseFirst)
	RCRDMAReadResponseMiddle     = rc | Opcode(RDMAReadResponseMiddle)
	RCRDMAReadResponseLast       = rc | Opcode(RDMAReadResponseLast)
	RCRDMAReadResponseOnly       = rc | Opcode(RDMAReadResponseOnly)
	RCAcknowledge                = rc | Opcode(Acknowledge)
	RCAtomicAcknowledge          = rc | Opcode(AtomicAcknowledge)
	RCCmpSwap                    = rc | Opcode(CmpSwap)
	RCFetchAdd                   = rc | Opcode(FetchAdd)
	RCSendLastWithInvalidate     = rc | Opcode(SendLastWithInvalidate)
	RCSendOnlyWithInvalidate     = rc | Opcode(SendOnlyWithInvalidate)
	RCFlush                      = rc | Opcode(Flush)
	RCAtomicWrite                = rc | Opcode(AtomicWrite)

	UCSendFirst                  = uc | Opcode(SendFirst)
	UCSendMiddle                 = uc | Opcode(SendMiddle)
	UCSendLast                   = uc | Opcode(SendLast)
	UCSendLastWithImmediate      = uc | Opcode(SendLastWithImmediate)
	UCSendOnly                   = uc | Opcode(SendOnly)
	UCSendOnlyWithImmediate      = uc | Opcode(SendOnlyWithImmediate)
	UCRDMAWriteFirst             = uc | Opcode(RDMAWriteFirst)
	UCRDMAWriteMiddle            = uc | Opcode(RDMAWriteMiddle)
	UCRDMAWriteLast              = uc | Opcode(RDMAWriteLast)
	UCRDMAWriteLastWithImmediate = uc | Opcode(RDMAWriteLastWithImmediate)
	UCRDMAWriteOnly              = uc | Opcode(RDMAWriteOnly)
	UCRDMAWriteOnlyWithImmediate = uc | Opcode(RDMAWriteOnlyWithImmediate)

	UDSendOnly              = ud | Opcode(SendOnly)
	UDSendOnlyWithImmediate = ud | Opcode(SendOnlyWithImmediate)

	// CNP is the congestion notification packet of RoCEv2 (IBA A17.9.3): a BTH
	// with BECN and [CNPLen] reserved bytes.
	CNP = cn | 1

	XRCSendFirst                  = xrc | Opcode(SendFirst)
	XRCSendMiddle                 = xrc | Opcode(SendMiddle)
	XRCSendLast                   = xrc | Opcode(SendLast)
	XRCSendLastWithImmediate      = xrc | Opcode(SendLastWithImmediate)
	XRCSendOnly                   = xrc | Opcode(SendOnly)
	XRCSendOnlyWithImmediate      = xrc | Opcode(SendOnlyWithImmediate)
	XRCRDMAWriteFirst             = xrc | Opcode(RDMAWriteFirst)
	XRCRDMAWriteMiddle            = xrc | Opcode(RDMAWriteMiddle)
	XRCRDMAWriteLast              = xrc | Opcode(RDMAWriteLast)
	XRCRDMAWriteLastWithImmediate = xrc | Opcode(RDMAWriteLastWithImmediate)
	XRCRDMAWriteOnly              = xrc | Opcode(RDMAWriteOnly)
	XRCRDMAWriteOnlyWithImmediate = xrc | Opcode(RDMAWriteOnlyWithImmediate)
	XRCRDMAReadRequest            = xrc | Opcode(RDMAReadRequest)
	XRCRDMAReadResponseFirst      = xrc | Opcode(RDMAReadResponseFirst)
	XRCRDMAReadResponseMiddle     = xrc | Opcode(RDMAReadResponseMiddle)
	XRCRDMAReadResponseLast       = xrc | Opcode(RDMAReadResponseLast)
	XRCRDMAReadResponseOnly       = xrc | Opcode(RDMAReadResponseOnly)
	XRCAcknowledge                = xrc | Opcode(Acknowledge)
	XRCAtomicAcknowledge          = xrc | Opcode(AtomicAcknowledge)
	XRCCmpSwap                    = xrc | Opcode(CmpSwap)
	XRCFetchAdd                   = xrc | Opcode(FetchAdd)
	XRCSendLastWithInvalidate     = xrc | Opcode(SendLastWithInvalidate)
	XRCSendOnlyWithInvalidate     = xrc | Opcode(SendOnlyWithInvalidate)
	XRCFlush                      = xrc | Opcode(Flush)
	XRCAtomicWrite                = xrc | Opcode(AtomicWrite)

	SRDSendOnly                   = srd | Opcode(SendOnly)
	SRDSendOnlyWithImmediate      = srd | Opcode(SendOnlyWithImmediate)
	SRDRDMAWriteOnly              = srd | Opcode(RDMAWriteOnly)
	SRDRDMAWriteOnlyWithImmediate = srd | Opcode(RDMAWriteOnlyWithImmediate)
	SRDRDMAReadRequest            = srd | Opcode(RDMAReadRequest)
	SRDRDMAReadResponseOnly       = srd | Opcode(RDMAReadResponseOnly)
	SRDAcknowledge                = srd | Opcode(Acknowledge)
	SRDFlowOpen                   = srd | Opcode(FlowOpen)
	SRDFlowAccept                 = srd | Opcode(FlowAccept)
	SRDFlowRefuse                 = srd | Opcode(FlowRefuse)
	SRDFlowSkip                   = srd | Opcode(FlowSkip)
)

// Flags are the properties of an [Opcode], one bit each. A driver looks up the flags once per packet and tests them
// together. The flags correspond to the masks of Linux's struct rxe_opcode_info.
type Flags uint32

// The next flags are the direction and the position in the message. Each known opcode except [CNP] has exactly one flag
// of each group.
const (
	FlagRequest  Flags = 1 << iota // from requester to responder
	FlagResponse                   // from responder to requester

	FlagFirst
	FlagMiddle
	FlagLast
	FlagOnly

	// The next flags are the operation. Each known opcode except [CNP] has exactly one of them.
	FlagSend
	FlagWrite        // RDMA WRITE
	FlagRead         // RDMA READ request
	FlagAtomic       // CmpSwap, FetchAdd
	FlagAtomicWrite  // ATOMIC WRITE
	FlagFlush        // FLUSH
	FlagReadResponse // RDMA READ response; also the response to FLUSH and ATOMIC WRITE
	FlagAck          // Acknowledge
	FlagAtomicAck    // ATOMIC Acknowledge
	FlagFlow         // control of a flow of SRD

	// The next flags describe the use of the receive queue.
	FlagStartsReceive    // consumes a receive work request: SEND First and Only, WRITE with Immediate
	FlagCompletesReceive // completes the receive work request: SEND Last and Only, WRITE with Immediate

	// Content. Without FlagPayload a packet ends after its headers.
	FlagPayload
	FlagXRCETH
	FlagDETH
	FlagSRDETH
	FlagFETH
	FlagRETH
	FlagAtomicETH
	FlagAETH
	FlagAtomicAckETH
	FlagImmDt
	FlagIETH

	// FlagStarts matches the first packet of a message, and FlagEnds matches the last packet.
	FlagStarts = FlagFirst | FlagOnly
	FlagEnds   = FlagLast | FlagOnly
)

// Opcode returns the opcode of operation o with service s. Not every combination is a known opcode: see [Opcode.Known].
func (s Service) Opcode(o Operation) Opcode {
	return Opcode(s)<<serviceShift | Opcode(o)&operationMask
}

// String returns the abbreviation of the specification.
func (s Service) String() string {
	switch s {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	case CN:
		return "CN"
	case XRC:
		return "XRC"
	case SRD:
		return "SRD"
	}
	return fmt.Sprintf("service %d", uint8(s))
}

// Service returns the transport service.
func (op Opcode) Service() Service { return Service(op >> serviceShift) }

// Operation returns the opcode without its service.
func (op Opcode) Operation() Operation { return Operation(op & operationMask) }

// Known reports whether op is one of the opcodes of this package.
func (op Opcode) Known() bool { return opcodes[op].len != 0 }

// Flags returns the properties of op. Flags returns 0 if op is unknown.
func (op Opcode) Flags() Flags { return opcodes[op].flags }

// Has reports whether op has any of the properties in f.
func (op Opcode) Has(f Flags) bool { return opcodes[op].flags&f != 0 }

// HeaderLen returns the length in bytes of the BTH and all extended headers. The length is the offset of the payload.
// HeaderLen returns 0 if op is unknown.
func (op Opcode) HeaderLen() int { return int(opcodes[op].len) }

// String returns the name in the specification, such as "RC SEND First".
func (op Opcode) String() string {
	if !op.Known() {
		return fmt.Sprintf("opcode %#02x", uint8(op))
	}
	if op == CNP {
		return "CNP"
	}
	return op.Service().String() + " " + operationNames[op.Operation()]
}

var operationNames = [1 << serviceShift]string{
	SendFirst:                  "SEND First",
	SendMiddle:                 "SEND Middle",
	SendLast:                   "SEND Last",
	SendLastWithImmediate:      "SEND Last with Immediate",
	SendOnly:                   "SEND Only",
	SendOnlyWithImmediate:      "SEND Only with Immediate",
	RDMAWriteFirst:             "RDMA WRITE First",
	RDMAWriteMiddle:            "RDMA WRITE Middle",
	RDMAWriteLast:              "RDMA WRITE Last",
	RDMAWriteLastWithImmediate: "RDMA WRITE Last with Immediate",
	RDMAWriteOnly:              "RDMA WRITE Only",
	RDMAWriteOnlyWithImmediate: "RDMA WRITE Only with Immediate",
	RDMAReadRequest:            "RDMA READ Request",
	RDMAReadResponseFirst:      "RDMA READ response First",
	RDMAReadResponseMiddle:     "RDMA READ response Middle",
	RDMAReadResponseLast:       "RDMA READ response Last",
	RDMAReadResponseOnly:       "RDMA READ response Only",
	Acknowledge:                "Acknowledge",
	AtomicAcknowledge:          "ATOMIC Acknowledge",
	CmpSwap:                    "CmpSwap",
	FetchAdd:                   "FetchAdd",
	SendLastWithInvalidate:     "SEND Last with Invalidate",
	SendOnlyWithInvalidate:     "SEND Only with Invalidate",
	FlowOpen:                   "Flow Open",
	FlowAccept:                 "Flow Accept",
	FlowRefuse:                 "Flow Refuse",
	FlowSkip:                   "Flow Skip",
	Flush:                      "FLUSH",
	AtomicWrite:                "ATOMIC WRITE",
}
