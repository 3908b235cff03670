package uapi

// CreateSRQ creates a shared receive queue (struct ib_uverbs_create_srq).
type CreateSRQ struct {
	Response   uint64 // user address of CreateSRQResp
	UserHandle uint64 // reported in AsyncEventDesc
	PDHandle   uint32
	MaxWR      uint32
	MaxSGE     uint32
	SRQLimit   uint32
}

// CreateXSRQ creates an SRQ of any type (struct ib_uverbs_create_xsrq).
type CreateXSRQ struct {
	Response   uint64 // user address of CreateSRQResp
	UserHandle uint64
	SRQType    SRQType
	PDHandle   uint32
	MaxWR      uint32
	MaxSGE     uint32
	SRQLimit   uint32
	MaxNumTags uint32 // SRQTTM only
	XRCDHandle uint32 // SRQTXRC only
	CQHandle   uint32 // only for SRQTXRC and SRQTTM
}

// CreateSRQResp is the response to CreateSRQ and CreateXSRQ (struct ib_uverbs_create_srq_resp).
type CreateSRQResp struct {
	SRQHandle uint32
	// The next fields are the actual capacities, which are at least the requested ones.
	MaxWR  uint32
	MaxSGE uint32
	SRQN   uint32 // SRQTXRC only
}

// ModifySRQ changes an SRQ (struct ib_uverbs_modify_srq). The command has no response.
type ModifySRQ struct {
	SRQHandle uint32
	AttrMask  SRQAttrMask
	MaxWR     uint32
	SRQLimit  uint32
}

// QuerySRQ requests the attributes of an SRQ (struct ib_uverbs_query_srq).
type QuerySRQ struct {
	Response  uint64 // user address of QuerySRQResp
	SRQHandle uint32
	Reserved  uint32
}

// QuerySRQResp is the response to QuerySRQ (struct ib_uverbs_query_srq_resp).
type QuerySRQResp struct {
	MaxWR    uint32
	MaxSGE   uint32
	SRQLimit uint32
	Reserved uint32
}

// DestroySRQ destroys an SRQ (struct ib_uverbs_destroy_srq).
type DestroySRQ struct {
	Response  uint64 // user address of DestroySRQResp
	SRQHandle uint32
	Reserved  uint32
}

// DestroySRQResp is the response to DestroySRQ (struct ib_uverbs_destroy_srq_resp).
type DestroySRQResp struct {
	EventsReported uint32 // number of asynchronous events of the SRQ that the program has read
}

// SRQType is the kind of an SRQ (enum ib_uverbs_srq_type).
type SRQType uint32

// The SRQ types (IB_UVERBS_SRQT_*).
const (
	SRQTBasic SRQType = iota // BASIC
	SRQTXRC                  // XRC
	// SRQTTM is an SRQ with tag matching.
	SRQTTM // TM
)

// SRQAttrMask selects the attributes that ModifySRQ changes (enum ibv_srq_attr_mask).
type SRQAttrMask uint32

// The attributes of an SRQ (IBV_SRQ_*).
const (
	SRQAttrMaxWR SRQAttrMask = 1 << 0
	SRQAttrLimit SRQAttrMask = 1 << 1
)
