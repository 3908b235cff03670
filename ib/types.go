package ib

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

// ODPCaps tell what on-demand paging covers (struct ib_odp_caps).
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

// CQAttr is what a driver makes a completion queue with: see [CQInit].
type CQAttr struct {
	Entries int
	Vector  int // which of the device's completion vectors reports: any number
	Flags   CQFlags
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

	// RDMA and atomics. Those work on 8 bytes in the host's order, at a RemoteAddr that is a multiple of 8, and store what was
	// there in SGList.
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

// WC is a completion (struct ib_wc).
type WC struct {
	ID     uint64
	Status WCStatus
	// Opcode is the operation that completed, with success or flushed. After another error it is undefined.
	Opcode    WCOpcode
	VendorErr uint32
	ByteLen   uint32
	// QPNum is the number of the queue pair that it is of, and QP the queue pair: nil in a completion that is polled when the
	// queue pair has been destroyed.
	QPNum          uint32
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

// Event is an asynchronous event of a device or one of its ports.
type Event struct {
	Device *Device
	Type   EventType
	Port   int // 0: the whole device
}
