package uapi

// GetContext creates the user context of an open file (struct ib_uverbs_get_context).
type GetContext struct {
	Response uint64 // user address of GetContextResp
}

// GetContextResp is the response to GetContext (struct ib_uverbs_get_context_resp).
type GetContextResp struct {
	AsyncFD        uint32 // descriptor of the new asynchronous event file
	NumCompVectors uint32
}

// QueryDevice requests the device's attributes (struct ib_uverbs_query_device).
type QueryDevice struct {
	Response uint64 // user address of QueryDeviceResp
}

// QueryDeviceResp is the response to QueryDevice (struct ib_uverbs_query_device_resp).
type QueryDeviceResp struct {
	FWVer                 uint64
	NodeGUID              BE64
	SysImageGUID          BE64
	MaxMRSize             uint64 // bytes
	PageSizeCap           uint64 // bit n is set for pages of 2^n bytes
	VendorID              uint32
	VendorPartID          uint32
	HWVer                 uint32
	MaxQP                 uint32
	MaxQPWR               uint32
	DeviceCapFlags        uint32 // the low half of DeviceCapFlags
	MaxSGE                uint32
	MaxSGERD              uint32
	MaxCQ                 uint32
	MaxCQE                uint32
	MaxMR                 uint32
	MaxPD                 uint32
	MaxQPRDAtom           uint32
	MaxEERDAtom           uint32
	MaxResRDAtom          uint32
	MaxQPInitRDAtom       uint32
	MaxEEInitRDAtom       uint32
	AtomicCap             AtomicCap
	MaxEE                 uint32
	MaxRDD                uint32
	MaxMW                 uint32
	MaxRawIPv6QP          uint32
	MaxRawEthyQP          uint32
	MaxMcastGrp           uint32
	MaxMcastQPAttach      uint32
	MaxTotalMcastQPAttach uint32
	MaxAH                 uint32
	MaxFMR                uint32
	MaxMapPerFMR          uint32
	MaxSRQ                uint32
	MaxSRQWR              uint32
	MaxSRQSGE             uint32
	MaxPKeys              uint16
	LocalCAAckDelay       uint8 // 4.096 us * 2^n
	PhysPortCnt           uint8
	Reserved              [4]uint8
}

// ExQueryDevice requests all attributes, old and new (struct ib_uverbs_ex_query_device). The command has no field
// Response, because the extended header contains the address.
type ExQueryDevice struct {
	CompMask uint32
	Reserved uint32
}

// ODPPerTransportCaps is the unnamed struct in ODPCaps
// (ib_uverbs_odp_caps.per_transport_caps).
type ODPPerTransportCaps struct {
	RCODPCaps ODPTransportCaps
	UCODPCaps ODPTransportCaps
	UDODPCaps ODPTransportCaps
}

// ODPCaps describes on-demand paging (struct ib_uverbs_odp_caps).
type ODPCaps struct {
	GeneralCaps      ODPGeneralCaps
	PerTransportCaps ODPPerTransportCaps
	Reserved         uint32
}

// RSSCaps describes receive-side scaling (struct ib_uverbs_rss_caps).
type RSSCaps struct {
	SupportedQPTs              uint32 // bit n is set for QPType n
	MaxRWQIndirectionTables    uint32
	MaxRWQIndirectionTableSize uint32
	Reserved                   uint32
}

// TMCaps describes tag matching (struct ib_uverbs_tm_caps).
type TMCaps struct {
	MaxRndvHdrSize uint32 // bytes
	MaxNumTags     uint32
	Flags          uint32
	MaxOps         uint32
	MaxSGE         uint32
	Reserved       uint32
}

// CQModerationCaps describes completion event moderation
// (struct ib_uverbs_cq_moderation_caps).
type CQModerationCaps struct {
	MaxCQModerationCount  uint16 // completions
	MaxCQModerationPeriod uint16 // microseconds
	Reserved              uint32
}

// ExQueryDeviceResp is the response to ExQueryDevice (struct ib_uverbs_ex_query_device_resp).
type ExQueryDeviceResp struct {
	Base             QueryDeviceResp
	CompMask         uint32
	ResponseLength   uint32 // number of valid bytes, including Base
	ODPCaps          ODPCaps
	TimestampMask    uint64
	HCACoreClock     uint64 // kHz
	DeviceCapFlagsEx DeviceCapFlags
	RSSCaps          RSSCaps
	MaxWQTypeRQ      uint32
	RawPacketCaps    RawPacketCaps
	TMCaps           TMCaps
	CQModerationCaps CQModerationCaps
	MaxDMSize        uint64 // bytes
	XRCODPCaps       ODPTransportCaps
	Reserved         uint32
}

// AtomicCap is the scope in which the device's atomic operations are atomic (enum ibv_atomic_cap).
type AtomicCap uint32

// The atomicity levels (IBV_ATOMIC_*).
const (
	AtomicNone AtomicCap = iota // NONE
	// AtomicHCA means atomic among the QPs of this device.
	AtomicHCA // HCA
	// AtomicGlob means atomic also with respect to the CPU and other devices.
	AtomicGlob // GLOB
)

// NodeType is the kind of a device, as /sys/class/infiniband/DEV/node_type
// reports it (enum ibv_node_type).
type NodeType int8

// The node types (IBV_NODE_*).
const (
	NodeUnknown NodeType = iota - 1 // unknown
	_
	// NodeCA is a channel adapter for InfiniBand or RoCE.
	NodeCA     // CA
	NodeSwitch // switch
	NodeRouter // router
	// NodeRNIC is an iWARP adapter.
	NodeRNIC        // RNIC
	NodeUSNIC       // usNIC
	NodeUSNICUDP    // usNIC UDP
	NodeUnspecified // unspecified
)

// ODPGeneralCaps are the kinds of on-demand paging that a device supports (enum ib_uverbs_odp_general_cap_bits).
type ODPGeneralCaps uint64

// The kinds of on-demand paging (IB_UVERBS_ODP_SUPPORT*).
const (
	ODPSupport         ODPGeneralCaps = 1 << 0
	ODPSupportImplicit ODPGeneralCaps = 1 << 1 // covers the whole address space
)

// ODPTransportCaps are the operations that on-demand paging covers
// (enum ib_uverbs_odp_transport_cap_bits).
type ODPTransportCaps uint32

// The operations (IB_UVERBS_ODP_SUPPORT_*).
const (
	ODPSupportSend        ODPTransportCaps = 1 << 0
	ODPSupportRecv        ODPTransportCaps = 1 << 1
	ODPSupportWrite       ODPTransportCaps = 1 << 2
	ODPSupportRead        ODPTransportCaps = 1 << 3
	ODPSupportAtomic      ODPTransportCaps = 1 << 4
	ODPSupportSRQRecv     ODPTransportCaps = 1 << 5
	ODPSupportFlush       ODPTransportCaps = 1 << 6
	ODPSupportAtomicWrite ODPTransportCaps = 1 << 7
)

// DeviceCapFlags are the device's optional features (enum ib_uverbs_device_cap_flags). QueryDeviceResp contains the
// first 32 bits, and ExQueryDeviceResp contains all 64 bits.
type DeviceCapFlags uint64

// The device features (IB_UVERBS_DEVICE_*). Old kernels may set bits that have no name in this list. The additional
// bits have no meaning.
const (
	DeviceBadPKeyCntr      DeviceCapFlags = 1 << 1
	DeviceBadQKeyCntr      DeviceCapFlags = 1 << 2
	DeviceUDAVPortEnforce  DeviceCapFlags = 1 << 6
	DevicePortActiveEvent  DeviceCapFlags = 1 << 10
	DeviceSysImageGUID     DeviceCapFlags = 1 << 11
	DeviceRCRNRNAKGen      DeviceCapFlags = 1 << 12
	DeviceSRQResize        DeviceCapFlags = 1 << 13
	DeviceMemWindow        DeviceCapFlags = 1 << 17
	DeviceMemMgtExtensions DeviceCapFlags = 1 << 21
	DeviceMemWindowType2B  DeviceCapFlags = 1 << 24
	DeviceFlushGlobal      DeviceCapFlags = 1 << 38
	DeviceFlushPersistent  DeviceCapFlags = 1 << 39
	DeviceAtomicWrite      DeviceCapFlags = 1 << 40
)

// RawPacketCaps are the features of raw packet QPs
// (enum ib_uverbs_raw_packet_caps).
type RawPacketCaps uint32
