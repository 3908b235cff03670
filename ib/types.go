package ib

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	GID     GID
	Type    GIDType
	Netdev  string // name of the interface that has the address
	IfIndex int
}

// DeviceAttr holds the attributes and limits of a device (struct ib_device_attr).
type DeviceAttr struct {
	NodeType                                         NodeType // 0 means NodeCA
	FWVer                                            uint64
	NodeGUID, SysImageGUID                           uint64 // host byte order
	MaxMRSize                                        uint64
	PageSizeCap                                      uint64
	VendorID, VendorPartID, HWVer                    uint32
	MaxQP, MaxQPWR                                   int
	DeviceCapFlags                                   DeviceCapFlags
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

// ODPCaps holds the capabilities of on-demand paging (struct ib_odp_caps).
type ODPCaps struct {
	General         ODPGeneral
	RC, UC, UD, XRC ODPOps // by transport
}

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

// GlobalRoute is the part of an address that RoCE uses (struct ib_global_route).
type GlobalRoute struct {
	DGID         GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
}

// AHAttr is the address of a destination (struct rdma_ah_attr).
type AHAttr struct {
	GRH         GlobalRoute
	HasGRH      bool
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  uint8
	Port        uint8
}

// CQAttr holds the parameters of a new completion queue for the driver: see [CQInit].
type CQAttr struct {
	Entries int
	Vector  int // completion vector that reports the completions; any number
	Flags   CQFlags
}

// QPCap holds the capacities of a queue pair.
type QPCap struct {
	MaxSendWR, MaxRecvWR   uint32
	MaxSendSGE, MaxRecvSGE uint32
	MaxInlineData          uint32 // bytes; a driver may refuse any number above 0, and reports no limit
}

// QPInitAttr holds the parameters of a new queue pair (struct ib_qp_init_attr).
type QPInitAttr struct {
	SendCQ, RecvCQ *CQ
	Cap            QPCap
	SigAll         bool // every send work request generates a completion
	Type           QPType
	Port           uint8 // GSI only
	SRQ            *SRQ  // source of the receives in place of PostRecv, of any domain of the device; may be nil
	XRCD           *XRCD // domain of a QPTypeXRCTgt, which has no queues
	// Event is called for asynchronous events of the queue pair. Event may not sleep. May be nil.
	Event func(qp *QP, e EventType)
}

// QPAttr holds the attributes of a queue pair (struct ib_qp_attr).
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
	RNRRetry         uint8 // 7: unlimited
	RateLimit        uint32
}

// SGE is a scatter/gather element: an address, a length and the local key of a region.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a send work request (struct ib_send_wr and its variants).
type SendWR struct {
	ID     uint64
	Opcode WROpcode
	Flags  SendFlags
	SGList []SGE
	// Inline is the payload if Flags has SendInline. For WRAtomicWrite it is always the 8-byte value. The post copies
	// Inline.
	Inline []byte
	// Imm is immediate data in host byte order. InvalidateRKey uses the same header field on the wire.
	Imm            uint32
	InvalidateRKey uint32

	// RDMA and atomics. Atomics operate on 8 bytes in host byte order at RemoteAddr, which must be a multiple of 8.
	// Atomics store the previous value in SGList. They fail with WCLocLenErr if SGList has fewer than 8 bytes. A driver
	// may also fail those with more.
	RemoteAddr       uint64
	RKey             uint32
	CompareAdd, Swap uint64

	// The next fields are for UD.
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

// WC is a completion (struct ib_wc). If Status is not success, only ID, Status, Opcode as described below, QPNum, QP
// and VendorErr are defined. (ibv_poll_cq(3))
type WC struct {
	ID     uint64
	Status WCStatus
	// Opcode is the completed operation. Opcode is valid for the statuses success and flushed, and undefined for other
	// errors.
	Opcode    WCOpcode
	VendorErr uint32
	// ByteLen is the length of a received message, or of the data of a READ or an atomic. ByteLen is undefined for other
	// sends and for errors. (ibv_poll_cq(3))
	ByteLen uint32
	// QPNum is the number of the queue pair, and QP is the queue pair itself. QP is nil if the queue pair was destroyed
	// before the completion was polled.
	QPNum          uint32
	QP             *QP
	Imm            uint32 // host byte order
	InvalidateRKey uint32
	SrcQP          uint32 // the sender's number, in a receive of UD or SRD
	Flags          WCFlags
	PKeyIndex      uint16
	SLID           uint16
	// SL is the service level. A RoCEv2 datagram has no service level. For such a datagram, a driver may report the
	// type of the network header: 1 for IPv6, 2 for IPv4.
	SL   uint8
	Port uint8
	// Solicited is set if the completion is one that NotifySolicited reports because of its sender. Not all drivers set
	// Solicited.
	Solicited bool
}

// NotifyFlags are the options of ReqNotify.
type NotifyFlags uint8

const (
	NotifySolicited NotifyFlags = 1 << iota
	NotifyNextComp
	NotifyReportMissed
)

// Event is an asynchronous event of a device or one of its ports.
type Event struct {
	Device *Device
	Type   EventType
	Port   int // 0 if the event concerns the whole device
}
