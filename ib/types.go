package ib

import (
	"fmt"
	"net/netip"
	"strings"
)

// The numeric values of all enumerations here are those of the kernel's ib_verbs.h and of the user ABI.

// AccessFlags are the rights of a memory region or queue pair.
type AccessFlags uint32

const (
	AccessLocalWrite   AccessFlags = 1 << 0
	AccessRemoteWrite  AccessFlags = 1 << 1
	AccessRemoteRead   AccessFlags = 1 << 2
	AccessRemoteAtomic AccessFlags = 1 << 3
	AccessMWBind       AccessFlags = 1 << 4
	AccessZeroBased    AccessFlags = 1 << 5 // addresses count from the first byte
	AccessOnDemand     AccessFlags = 1 << 6
	AccessHugeTLB      AccessFlags = 1 << 7
	// AccessFlushGlobal and AccessFlushPersistent let a peer FLUSH with these placements. (IBA A19) Any queue pair may
	// have both; a region only what the device offers (DeviceCapFlushPersistent).
	AccessFlushGlobal     AccessFlags = 1 << 8
	AccessFlushPersistent AccessFlags = 1 << 9
	// AccessOptional is the range of flags that a driver may ignore (IBV_ACCESS_OPTIONAL_RANGE), among them
	// relaxed ordering.
	AccessOptional AccessFlags = 0x3ff00000
)

// Writable reports whether the device may store into memory that is registered with these rights.
func (a AccessFlags) Writable() bool {
	return a&(AccessLocalWrite|AccessRemoteWrite|AccessRemoteAtomic|AccessMWBind) != 0
}

// QPType is the service that a queue pair gives.
type QPType uint8

const (
	QPTypeSMI     QPType = 0
	QPTypeGSI     QPType = 1
	QPTypeRC      QPType = 2
	QPTypeUC      QPType = 3
	QPTypeUD      QPType = 4
	QPTypeRaw     QPType = 8
	QPTypeXRCInit QPType = 9
	QPTypeXRCTgt  QPType = 10
)

func (t QPType) String() string {
	switch t {
	case QPTypeSMI:
		return "SMI"
	case QPTypeGSI:
		return "GSI"
	case QPTypeRC:
		return "RC"
	case QPTypeUC:
		return "UC"
	case QPTypeUD:
		return "UD"
	case QPTypeRaw:
		return "RAW_PACKET"
	case QPTypeXRCInit:
		return "XRC_INI"
	case QPTypeXRCTgt:
		return "XRC_TGT"
	}
	return fmt.Sprintf("QPType(%d)", uint8(t))
}

// QPState is a queue pair's state (IBA 10.3.1).
//
//	          +------- any state ------> ERR, RESET
//	          |
//	RESET -> INIT -> RTR -> RTS <-> SQD
//	          ^ |            ^       |
//	          +-+            +- SQE <+   (SQE: a send failed on UC or UD)
type QPState uint8

const (
	QPReset QPState = iota
	QPInit
	QPRTR // ready to receive
	QPRTS // ready to send
	QPSQD // send queue drained
	QPSQE // send queue error
	QPErr
)

func (s QPState) String() string {
	if n := [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("QPState(%d)", uint8(s))
}

// MTU is a path MTU by its code on the wire: 1 to 5 for 256 to 4096 bytes.
type MTU uint8

const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Valid reports whether m is one of the five codes.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes is the payload that a packet can carry.
func (m MTU) Bytes() int { return 128 << m }

// PortState is the logical state of a port.
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (s PortState) String() string {
	if n := [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("PortState(%d)", uint8(s))
}

// GID is a port's address: for RoCEv2 an IPv6 address, or an IPv4 address mapped into one.
type GID [16]byte

// GIDFromAddr is the GID of an IP address.
func GIDFromAddr(a netip.Addr) GID { return GID(a.As16()) }

// Addr is the IP address of a RoCEv2 GID, IPv4 where it is mapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the entry is empty.
func (g GID) IsZero() bool { return g == GID{} }

// String prints the GID as sysfs does: eight groups of four hexadecimal digits.
func (g GID) String() string {
	var b strings.Builder
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// GIDType tells how packets of a GID are framed.
type GIDType uint8

const (
	GIDTypeIB GIDType = iota // InfiniBand, and RoCE v1
	GIDTypeRoCEv1
	GIDTypeRoCEv2
)

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	GID     GID
	Type    GIDType
	Netdev  string // the interface that the address belongs to
	IfIndex int
}

// DeviceAttr are the attributes and limits of a device (struct ib_device_attr).
type DeviceAttr struct {
	FWVer                                            uint64
	NodeGUID, SysImageGUID                           uint64 // host byte order
	MaxMRSize                                        uint64
	PageSizeCap                                      uint64
	VendorID, VendorPartID, HWVer                    uint32
	MaxQP, MaxQPWR                                   int
	DeviceCapFlags                                   uint64
	MaxSendSGE, MaxRecvSGE, MaxSGERd                 int
	MaxCQ, MaxCQE                                    int
	MaxMR, MaxPD, MaxMW                              int
	MaxQPRdAtom, MaxEERdAtom                         int
	MaxResRdAtom                                     int
	MaxQPInitRdAtom, MaxEEInitRdAtom                 int
	AtomicCap                                        AtomicCap
	MaxEE, MaxRDD, MaxRawIPv6QP, MaxRawEthyQP        int
	MaxMcastGrp, MaxMcastQPAttach, MaxTotalMcastAtch int
	MaxAH                                            int
	MaxSRQ, MaxSRQWR, MaxSRQSGE                      int
	MaxPKeys                                         uint16
	LocalCAAckDelay                                  uint8
	PhysPorts                                        int
	ODP                                              ODPCaps
}

// ODPCaps tell what on-demand paging covers (struct ib_odp_caps).
type ODPCaps struct {
	General         ODPGeneral
	RC, UC, UD, XRC ODPOps // by transport
}

// ODPGeneral is whether there is on-demand paging (enum ib_odp_general_cap_bits).
type ODPGeneral uint64

const (
	ODPSupport  ODPGeneral = 1 << 0
	ODPImplicit ODPGeneral = 1 << 1 // also of the whole address space
)

// ODPOps are operations whose memory may be registered on demand (enum ib_odp_transport_cap_bits).
type ODPOps uint32

const (
	ODPSend        ODPOps = 1 << 0
	ODPRecv        ODPOps = 1 << 1
	ODPWrite       ODPOps = 1 << 2
	ODPRead        ODPOps = 1 << 3
	ODPAtomic      ODPOps = 1 << 4
	ODPSRQRecv     ODPOps = 1 << 5
	ODPFlush       ODPOps = 1 << 6
	ODPAtomicWrite ODPOps = 1 << 7
)

// MRAdvice is what is soon to be done with memory that is registered on demand (enum ib_uverbs_advise_mr_advice).
type MRAdvice uint32

const (
	AdvicePrefetch        MRAdvice = 0 // read
	AdvicePrefetchWrite   MRAdvice = 1 // written
	AdvicePrefetchNoFault MRAdvice = 2 // read, where it is there already
)

// MRAdviceFlags are the flags of an advice (enum ib_uverbs_advise_mr_flag).
type MRAdviceFlags uint32

// AdviceFlush: the advice has been followed when the call returns.
const AdviceFlush MRAdviceFlags = 1 << 0

// AtomicCap is how far atomic operations are atomic.
type AtomicCap uint8

const (
	AtomicNone AtomicCap = iota
	AtomicHCA            // among the queue pairs of this device
	AtomicGlobal
)

// PortAttr is the state of a port (struct ib_port_attr).
type PortAttr struct {
	State          PortState
	MaxMTU         MTU
	ActiveMTU      MTU
	GIDTableLen    int
	PKeyTableLen   int
	CapFlags       uint32
	MaxMsgSize     uint32
	BadPKeyCounter uint32
	QKeyViolations uint32
	LID, SMLID     uint16
	LMC, MaxVLNum  uint8
	SMSL           uint8
	SubnetTimeout  uint8
	InitTypeReply  uint8
	ActiveWidth    uint8
	ActiveSpeed    uint16
	PhysState      uint8
	Netdev         string
	LinkLayer      LinkLayer
}

// LinkLayer is what a port's link runs on.
type LinkLayer uint8

const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

// GlobalRoute is the part of an address that RoCE uses (struct ib_global_route).
type GlobalRoute struct {
	DGID         GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
}

// AHAttr is an address (struct rdma_ah_attr).
type AHAttr struct {
	GRH         GlobalRoute
	HasGRH      bool
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  uint8
	Port        uint8
}

// CQAttr is what a completion queue is made with.
type CQAttr struct {
	Entries    int
	CompVector int
	Flags      uint32
}

// QPCap are the capacities of a queue pair.
type QPCap struct {
	MaxSendWR, MaxRecvWR   uint32
	MaxSendSGE, MaxRecvSGE uint32
	MaxInlineData          uint32 // bytes
}

// QPInitAttr is what a queue pair is made with (struct ib_qp_init_attr).
type QPInitAttr struct {
	SendCQ, RecvCQ *CQ
	Cap            QPCap
	SigAll         bool // every send work request makes a completion
	Type           QPType
	Port           uint8 // GSI only
	SRQ            *SRQ  // where receive work requests come from instead of PostRecv; may be nil
	XRCD           *XRCD // QPTypeXRCTgt, which has no queues
	// Event is called with the queue pair's asynchronous events. It may not sleep. May be nil.
	Event func(qp *QP, e EventType)
}

// QPAttrMask names the valid fields of a QPAttr (enum ib_qp_attr_mask).
type QPAttrMask uint32

const (
	QPAttrState            QPAttrMask = 1 << 0
	QPAttrCurState         QPAttrMask = 1 << 1
	QPAttrEnSQDAsyncNotify QPAttrMask = 1 << 2
	QPAttrAccessFlags      QPAttrMask = 1 << 3
	QPAttrPKeyIndex        QPAttrMask = 1 << 4
	QPAttrPort             QPAttrMask = 1 << 5
	QPAttrQKey             QPAttrMask = 1 << 6
	QPAttrAV               QPAttrMask = 1 << 7
	QPAttrPathMTU          QPAttrMask = 1 << 8
	QPAttrTimeout          QPAttrMask = 1 << 9
	QPAttrRetryCnt         QPAttrMask = 1 << 10
	QPAttrRNRRetry         QPAttrMask = 1 << 11
	QPAttrRQPSN            QPAttrMask = 1 << 12
	QPAttrMaxRdAtomic      QPAttrMask = 1 << 13
	QPAttrAltPath          QPAttrMask = 1 << 14
	QPAttrMinRNRTimer      QPAttrMask = 1 << 15
	QPAttrSQPSN            QPAttrMask = 1 << 16
	QPAttrMaxDestRdAtomic  QPAttrMask = 1 << 17
	QPAttrPathMigState     QPAttrMask = 1 << 18
	QPAttrCap              QPAttrMask = 1 << 19
	QPAttrDestQPN          QPAttrMask = 1 << 20
	QPAttrRateLimit        QPAttrMask = 1 << 25
)

// QPAttr are the attributes of a queue pair (struct ib_qp_attr).
type QPAttr struct {
	State, CurState  QPState
	PathMTU          MTU
	PathMigState     uint8
	QKey             uint32
	RQPSN, SQPSN     uint32
	DestQPN          uint32
	AccessFlags      AccessFlags
	Cap              QPCap
	AH, AltAH        AHAttr
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	EnSQDAsyncNotify bool
	SQDraining       bool
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8 // code, IBA table 45
	Port, AltPort    uint8
	Timeout          uint8 // local ACK timeout: 4.096 us * 2^Timeout, 0 for none
	AltTimeout       uint8
	RetryCnt         uint8
	RNRRetry         uint8 // 7: for ever
	RateLimit        uint32
}

// SGE is a scatter or gather element: memory by the address and local key of a region.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// WROpcode is what a send work request does.
type WROpcode uint32

const (
	WRRDMAWrite        WROpcode = 0
	WRRDMAWriteWithImm WROpcode = 1
	WRSend             WROpcode = 2
	WRSendWithImm      WROpcode = 3
	WRRDMARead         WROpcode = 4
	WRAtomicCmpAndSwp  WROpcode = 5
	WRAtomicFetchAdd   WROpcode = 6
	WRLocalInv         WROpcode = 7
	WRBindMW           WROpcode = 8
	WRSendWithInv      WROpcode = 9
	WRFlush            WROpcode = 14
	WRAtomicWrite      WROpcode = 15
	WRRegMR            WROpcode = 0x20 // not for user processes
)

// SendFlags modify a send work request.
type SendFlags uint32

const (
	SendFence     SendFlags = 1 << 0
	SendSignaled  SendFlags = 1 << 1
	SendSolicited SendFlags = 1 << 2
	SendInline    SendFlags = 1 << 3
)

// SendWR is a send work request (struct ib_send_wr and its variants).
type SendWR struct {
	ID     uint64
	Opcode WROpcode
	Flags  SendFlags
	SGList []SGE
	// Inline is sent instead of SGList where Flags has SendInline, and always the 8 bytes of WRAtomicWrite; it is copied
	// while posting.
	Inline []byte
	// Imm is immediate data in host byte order; InvalidateRKey shares its place on the wire.
	Imm            uint32
	InvalidateRKey uint32

	// RDMA and atomics
	RemoteAddr       uint64
	RKey             uint32
	CompareAdd, Swap uint64

	// UD
	AH         *AH
	RemoteQPN  uint32
	RemoteQKey uint32

	RemoteSRQN uint32   // QPTypeXRCInit
	Bind       *BindMW  // WRBindMW
	Reg        *FastReg // WRRegMR
	Flush      Flush    // WRFlush
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID     uint64
	SGList []SGE
}

// WCStatus is how a work request ended.
type WCStatus uint32

const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

var wcStatusText = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "work request flushed", "memory window bind error", "bad response",
	"local access error", "remote invalid request", "remote access error", "remote operation error",
	"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation",
	"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout", "general error",
}

func (s WCStatus) String() string {
	if int(s) < len(wcStatusText) {
		return wcStatusText[s]
	}
	return fmt.Sprintf("WCStatus(%d)", uint32(s))
}

// WCOpcode is the operation that a completion is of.
type WCOpcode uint32

const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRegMR           WCOpcode = 10
	WCRecv            WCOpcode = 1 << 7
	WCRecvRDMAWithImm WCOpcode = 1<<7 | 1
)

// WCFlags say which fields of a completion hold something.
type WCFlags uint32

const (
	WCGRH            WCFlags = 1 << 0
	WCWithImm        WCFlags = 1 << 1
	WCWithInvalidate WCFlags = 1 << 2
)

// WC is a completion (struct ib_wc).
type WC struct {
	ID             uint64
	Status         WCStatus
	Opcode         WCOpcode
	VendorErr      uint32
	ByteLen        uint32
	QP             *QP
	Imm            uint32 // host byte order
	InvalidateRKey uint32
	SrcQP          uint32
	Flags          WCFlags
	PKeyIndex      uint16
	SLID           uint16
	// SL is the service level. Of a datagram over RoCEv2, which has none, a driver may report the type of its network
	// header instead: 1 IPv6, 2 IPv4.
	SL   uint8
	Port uint8
}

// NotifyFlags are the arguments of a request for notification.
type NotifyFlags uint8

const (
	NotifySolicited NotifyFlags = 1 << iota
	NotifyNextComp
	NotifyReportMissed
)

// EventType is an asynchronous event (enum ib_event_type).
type EventType uint8

const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
)

var eventText = [...]string{
	"CQ error", "QP fatal error", "QP request error", "QP access error", "communication established",
	"send queue drained", "path migrated", "path migration error", "device fatal error", "port active",
	"port error", "LID change", "P_Key change", "SM change", "SRQ error", "SRQ limit reached",
	"last WQE reached", "client reregister", "GID change",
}

func (e EventType) String() string {
	if int(e) < len(eventText) {
		return eventText[e]
	}
	return fmt.Sprintf("EventType(%d)", uint8(e))
}

// Event is an asynchronous event of a device or one of its ports.
type Event struct {
	Device *Device
	Type   EventType
	Port   int // 0: the whole device
}
