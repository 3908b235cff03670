package ib

import (
	"net/netip"

	"verbena/roce"
	"verbena/uapi"
)

// The enumerations are aliases of the user ABI (package uapi) and have the kernel's values. In the same way, IB_WC_SEND
// of Linux is IB_UVERBS_WC_SEND. This file adds values for consumers in this process.

// GID is a port's address (package roce).
type GID = roce.GID

// GIDFromAddr returns the GID of an IP address. GIDFromAddr may not sleep.
func GIDFromAddr(a netip.Addr) GID { return roce.GIDFromAddr(a) }

// MTU is a path MTU, encoded as on the wire (package roce).
type MTU = roce.MTU

const (
	MTU256  = roce.MTU256
	MTU512  = roce.MTU512
	MTU1024 = roce.MTU1024
	MTU2048 = roce.MTU2048
	MTU4096 = roce.MTU4096
)

// AccessFlags are the access rights of a memory region or queue pair.
type AccessFlags = uapi.AccessFlags

const (
	AccessLocalWrite   = uapi.AccessLocalWrite
	AccessRemoteWrite  = uapi.AccessRemoteWrite
	AccessRemoteRead   = uapi.AccessRemoteRead
	AccessRemoteAtomic = uapi.AccessRemoteAtomic
	AccessMWBind       = uapi.AccessMWBind
	AccessZeroBased    = uapi.AccessZeroBased // addresses are offsets from the first byte
	AccessOnDemand     = uapi.AccessOnDemand
	AccessHugeTLB      = uapi.AccessHugeTLB
	// AccessFlushGlobal and AccessFlushPersistent allow a peer to FLUSH with these placements. (IBA A19) Any queue pair
	// may have both rights. A region may have only the rights for placements that the device offers
	// (DeviceCapFlushPersistent).
	AccessFlushGlobal     = uapi.AccessFlushGlobal
	AccessFlushPersistent = uapi.AccessFlushPersistent
	AccessOptional        = uapi.AccessOptionalRange // a driver may ignore these rights
	AccessRelaxedOrdering = uapi.AccessRelaxedOrdering
)

// QPType is the transport service of a queue pair.
type QPType = uapi.QPType

const (
	QPTypeSMI     = uapi.QPTSMI
	QPTypeGSI     = uapi.QPTGSI
	QPTypeRC      = uapi.QPTRC
	QPTypeUC      = uapi.QPTUC
	QPTypeUD      = uapi.QPTUD
	QPTypeRaw     = uapi.QPTRawPacket
	QPTypeXRCInit = uapi.QPTXRCIni
	QPTypeXRCTgt  = uapi.QPTXRCTgt
	// QPTypeSRD is the scalable reliable datagram of EFA, the only type that a driver defines (IB_QPT_DRIVER). Requests
	// have an address handle, as those of UD. SEND, RDMA WRITE, both also with immediate data, and RDMA READ are
	// reliable, and have no order. A request that fails leaves the queue pair, and other requests, as they are.
	QPTypeSRD = uapi.QPTDriver
)

// QPState is a queue pair's state (IBA 10.3.1).
//
//	         +------- any state ------> ERR, RESET
//	         |
//	RESET -> INIT -> RTR -> RTS <-> SQD
//	         ^ |            ^       |
//	         +-+            +- SQE <+   (SQE: a send failed on UC or UD)
type QPState = uapi.QPState

const (
	QPReset = uapi.QPSReset
	QPInit  = uapi.QPSInit
	QPRTR   = uapi.QPSRTR // ready to receive
	QPRTS   = uapi.QPSRTS // ready to send
	QPSQD   = uapi.QPSSQD // send queue drained
	QPSQE   = uapi.QPSSQE // send queue error
	QPErr   = uapi.QPSErr
)

// PortState is the logical state of a port.
type PortState = uapi.PortState

const (
	PortNop         = uapi.PortNop
	PortDown        = uapi.PortDown
	PortInit        = uapi.PortInit
	PortArmed       = uapi.PortArmed
	PortActive      = uapi.PortActive
	PortActiveDefer = uapi.PortActiveDefer
)

// NodeType is the kind of a device.
type NodeType = uapi.NodeType

// The node types.
const (
	NodeCA          = uapi.NodeCA
	NodeUnspecified = uapi.NodeUnspecified
)

// LinkLayer is the link layer of a port.
type LinkLayer = uapi.LinkLayer

const (
	LinkUnspecified = uapi.LinkLayerUnspecified
	LinkInfiniBand  = uapi.LinkLayerInfiniBand
	LinkEthernet    = uapi.LinkLayerEthernet
)

// GIDType is the encapsulation of packets sent from a GID.
type GIDType = uapi.GIDType

const (
	GIDTypeIB     = uapi.GIDTypeIB // InfiniBand and RoCE v1
	GIDTypeRoCEv1 = uapi.GIDTypeRoCEV1
	GIDTypeRoCEv2 = uapi.GIDTypeRoCEV2
)

// ODPGeneral holds the general capabilities of on-demand paging.
type ODPGeneral = uapi.ODPGeneralCaps

const (
	ODPSupport  = uapi.ODPSupport
	ODPImplicit = uapi.ODPSupportImplicit // regions may cover the whole address space
)

// ODPOps holds the operations that work on memory registered on demand.
type ODPOps = uapi.ODPTransportCaps

const (
	ODPSend        = uapi.ODPSupportSend
	ODPRecv        = uapi.ODPSupportRecv
	ODPWrite       = uapi.ODPSupportWrite
	ODPRead        = uapi.ODPSupportRead
	ODPAtomic      = uapi.ODPSupportAtomic
	ODPSRQRecv     = uapi.ODPSupportSRQRecv
	ODPFlush       = uapi.ODPSupportFlush
	ODPAtomicWrite = uapi.ODPSupportAtomicWrite
)

// MRAdvice is the announced use of memory registered on demand (enum ib_uverbs_advise_mr_advice).
type MRAdvice = uapi.AdviseMRAdvice

const (
	AdvicePrefetch      = uapi.AdviseMRAdvicePrefetch      // for reading
	AdvicePrefetchWrite = uapi.AdviseMRAdvicePrefetchWrite // for writing
	// for reading; prefetches only pages that are present
	AdvicePrefetchNoFault = uapi.AdviseMRAdvicePrefetchNoFault
)

// MRAdviceFlags are the flags of AdviseMR (enum ib_uverbs_advise_mr_flag).
type MRAdviceFlags = uapi.AdviseMRFlags

const (
	AdviceFlush = uapi.AdviseMRFlagFlush // complete the prefetch before the call returns
)

// AtomicCap is the scope of atomic operations.
type AtomicCap = uapi.AtomicCap

const (
	AtomicNone   = uapi.AtomicNone
	AtomicHCA    = uapi.AtomicHCA // atomic among the queue pairs of this device
	AtomicGlobal = uapi.AtomicGlob
)

// QPAttrMask names the valid fields of a QPAttr.
type QPAttrMask = uapi.QPAttrMask

const (
	QPAttrState            = uapi.QPAttrState
	QPAttrCurState         = uapi.QPAttrCurState
	QPAttrEnSQDAsyncNotify = uapi.QPAttrEnSQDAsyncNotify
	QPAttrAccessFlags      = uapi.QPAttrAccessFlags
	QPAttrPKeyIndex        = uapi.QPAttrPKeyIndex
	QPAttrPort             = uapi.QPAttrPort
	QPAttrQKey             = uapi.QPAttrQKey
	QPAttrAV               = uapi.QPAttrAV
	QPAttrPathMTU          = uapi.QPAttrPathMTU
	QPAttrTimeout          = uapi.QPAttrTimeout
	QPAttrRetryCnt         = uapi.QPAttrRetryCnt
	QPAttrRNRRetry         = uapi.QPAttrRNRRetry
	QPAttrRQPSN            = uapi.QPAttrRQPSN
	QPAttrMaxRdAtomic      = uapi.QPAttrMaxQPRDAtomic
	QPAttrAltPath          = uapi.QPAttrAltPath
	QPAttrMinRNRTimer      = uapi.QPAttrMinRNRTimer
	QPAttrSQPSN            = uapi.QPAttrSQPSN
	QPAttrMaxDestRdAtomic  = uapi.QPAttrMaxDestRDAtomic
	QPAttrPathMigState     = uapi.QPAttrPathMigState
	QPAttrCap              = uapi.QPAttrCap
	QPAttrDestQPN          = uapi.QPAttrDestQPN
	QPAttrRateLimit        = uapi.QPAttrRateLimit
)

// WROpcode is the operation of a send work request.
type WROpcode = uapi.WROpcode

const (
	WRRDMAWrite        = uapi.WRRDMAWrite
	WRRDMAWriteWithImm = uapi.WRRDMAWriteWithImm
	WRSend             = uapi.WRSend
	WRSendWithImm      = uapi.WRSendWithImm
	WRRDMARead         = uapi.WRRDMARead
	WRAtomicCmpAndSwp  = uapi.WRAtomicCmpAndSwp
	WRAtomicFetchAdd   = uapi.WRAtomicFetchAndAdd
	WRLocalInv         = uapi.WRLocalInv
	WRBindMW           = uapi.WRBindMW
	WRSendWithInv      = uapi.WRSendWithInv
	WRFlush            = uapi.WRFlush
	WRAtomicWrite      = uapi.WRAtomicWrite
	WRRegMR            = WROpcode(0x20) // not available to user processes
)

// SendFlags are the options of a send work request.
type SendFlags = uapi.SendFlags

const (
	// SendFence delays the request until all earlier READs and atomic operations of the queue pair have stored their
	// data. It orders nothing else: neither other queue pairs nor the caller's accesses to memory. (IBA 10.8.3.3)
	SendFence     = uapi.SendFence
	SendSignaled  = uapi.SendSignaled
	SendSolicited = uapi.SendSolicited
	SendInline    = uapi.SendInline
)

// WCStatus is the outcome of a work request.
type WCStatus = uapi.WCStatus

const (
	WCSuccess        = uapi.WCSuccess
	WCLocLenErr      = uapi.WCLocLenErr
	WCLocQPOpErr     = uapi.WCLocQPOpErr
	WCLocEECOpErr    = uapi.WCLocEECOpErr
	WCLocProtErr     = uapi.WCLocProtErr
	WCWRFlushErr     = uapi.WCWRFlushErr
	WCMWBindErr      = uapi.WCMWBindErr
	WCBadRespErr     = uapi.WCBadRespErr
	WCLocAccessErr   = uapi.WCLocAccessErr
	WCRemInvReqErr   = uapi.WCRemInvReqErr
	WCRemAccessErr   = uapi.WCRemAccessErr
	WCRemOpErr       = uapi.WCRemOpErr
	WCRetryExcErr    = uapi.WCRetryExcErr
	WCRNRRetryExcErr = uapi.WCRNRRetryExcErr
	WCLocRDDViolErr  = uapi.WCLocRDDViolErr
	WCRemInvRDReqErr = uapi.WCRemInvRDReqErr
	WCRemAbortErr    = uapi.WCRemAbortErr
	WCInvEECNErr     = uapi.WCInvEECNErr
	WCInvEECStateErr = uapi.WCInvEECStateErr
	WCFatalErr       = uapi.WCFatalErr
	WCRespTimeoutErr = uapi.WCRespTimeoutErr
	WCGeneralErr     = uapi.WCGeneralErr
)

// WCOpcode is the operation that a completion reports.
type WCOpcode = uapi.WCOpcode

const (
	WCSend            = uapi.WCSend
	WCRDMAWrite       = uapi.WCRDMAWrite
	WCRDMARead        = uapi.WCRDMARead
	WCCompSwap        = uapi.WCCompSwap
	WCFetchAdd        = uapi.WCFetchAdd
	WCBindMW          = uapi.WCBindMW
	WCLocalInv        = uapi.WCLocalInv
	WCFlush           = uapi.WCFlush
	WCAtomicWrite     = uapi.WCAtomicWrite
	WCRegMR           = WCOpcode(10) // not available to user processes
	WCRecv            = uapi.WCRecv
	WCRecvRDMAWithImm = uapi.WCRecvRDMAWithImm
)

// WCFlags marks the valid fields of a completion.
type WCFlags = uapi.WCFlags

const (
	WCGRH            = uapi.WCFlagGRH
	WCWithImm        = uapi.WCFlagWithImm
	WCWithInvalidate = uapi.WCFlagWithInvalidate
)

// EventType is the kind of an asynchronous event.
type EventType = uapi.EventType

const (
	EventCQErr            = uapi.EventCQErr
	EventQPFatal          = uapi.EventQPFatal
	EventQPReqErr         = uapi.EventQPReqErr
	EventQPAccessErr      = uapi.EventQPAccessErr
	EventCommEst          = uapi.EventCommEst
	EventSQDrained        = uapi.EventSQDrained
	EventPathMig          = uapi.EventPathMig
	EventPathMigErr       = uapi.EventPathMigErr
	EventDeviceFatal      = uapi.EventDeviceFatal
	EventPortActive       = uapi.EventPortActive
	EventPortErr          = uapi.EventPortErr
	EventLIDChange        = uapi.EventLIDChange
	EventPKeyChange       = uapi.EventPKeyChange
	EventSMChange         = uapi.EventSMChange
	EventSRQErr           = uapi.EventSRQErr
	EventSRQLimitReached  = uapi.EventSRQLimitReached
	EventQPLastWQEReached = uapi.EventQPLastWQEReached
	EventClientReregister = uapi.EventClientReregister
	EventGIDChange        = uapi.EventGIDChange
	// EventDeviceSpeedChange is an event of the device, without a port.
	EventDeviceSpeedChange = uapi.EventDeviceSpeedChange
)
