package uapi

// ExCreateWQ creates a work queue (struct ib_uverbs_ex_create_wq).
type ExCreateWQ struct {
	CompMask    uint32
	WQType      WQType
	UserHandle  uint64 // reported in AsyncEventDesc
	PDHandle    uint32
	CQHandle    uint32
	MaxWR       uint32
	MaxSGE      uint32
	CreateFlags WQFlags
	Reserved    uint32
}

// ExCreateWQResp answers ExCreateWQ (struct ib_uverbs_ex_create_wq_resp).
type ExCreateWQResp struct {
	CompMask       uint32
	ResponseLength uint32 // bytes that are valid
	WQHandle       uint32
	MaxWR          uint32 // granted, at least what was asked for
	MaxSGE         uint32
	WQN            uint32
}

// ExDestroyWQ destroys a work queue (struct ib_uverbs_ex_destroy_wq).
type ExDestroyWQ struct {
	CompMask uint32
	WQHandle uint32
}

// ExDestroyWQResp answers ExDestroyWQ (struct ib_uverbs_ex_destroy_wq_resp).
type ExDestroyWQResp struct {
	CompMask       uint32
	ResponseLength uint32 // bytes that are valid
	EventsReported uint32 // asynchronous events of the WQ that were read
	Reserved       uint32
}

// ExModifyWQ changes a work queue (struct ib_uverbs_ex_modify_wq). It has no
// response.
type ExModifyWQ struct {
	AttrMask    WQAttrMask
	WQHandle    uint32
	WQState     WQState
	CurrWQState WQState
	Flags       WQFlags
	FlagsMask   WQFlags
}

// MaxLogIndTblSize bounds ExCreateRWQIndTable.LogIndTblSize
// (IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE).
const MaxLogIndTblSize = 13

// ExCreateRWQIndTable creates a receive indirection table
// (struct ib_uverbs_ex_create_rwq_ind_table). 1 << LogIndTblSize handles of
// work queues follow, four bytes each, padded to eight.
type ExCreateRWQIndTable struct {
	CompMask      uint32
	LogIndTblSize uint32
}

// ExCreateRWQIndTableResp answers ExCreateRWQIndTable
// (struct ib_uverbs_ex_create_rwq_ind_table_resp).
type ExCreateRWQIndTableResp struct {
	CompMask       uint32
	ResponseLength uint32 // bytes that are valid
	IndTblHandle   uint32
	IndTblNum      uint32
}

// ExDestroyRWQIndTable destroys a receive indirection table
// (struct ib_uverbs_ex_destroy_rwq_ind_table).
type ExDestroyRWQIndTable struct {
	CompMask     uint32
	IndTblHandle uint32
}

// WQType is the kind of a work queue (enum ib_uverbs_wq_type).
type WQType uint32

// The work queue types (IB_UVERBS_WQT_*).
const (
	WQTRQ WQType = iota // receive queue
)

// WQState is the state of a work queue (enum ibv_wq_state).
type WQState uint32

// The work queue states (IBV_WQS_*).
const (
	WQSReset WQState = iota
	WQSRdy
	WQSErr
	WQSUnknown // the C library's, when the kernel did not say
)

// WQAttrMask says what ExModifyWQ changes (enum ibv_wq_attr_mask).
type WQAttrMask uint32

// The attributes of a work queue (IBV_WQ_ATTR_*).
const (
	WQAttrState     WQAttrMask = 1 << 0
	WQAttrCurrState WQAttrMask = 1 << 1
	WQAttrFlags     WQAttrMask = 1 << 2
)

// WQFlags are the options of a work queue (enum ib_uverbs_wq_flags).
type WQFlags uint32

// The options of a work queue (IB_UVERBS_WQ_FLAGS_*).
const (
	WQFlagsCVLANStripping     WQFlags = 1 << 0
	WQFlagsScatterFCS         WQFlags = 1 << 1
	WQFlagsDelayDrop          WQFlags = 1 << 2
	WQFlagsPCIWriteEndPadding WQFlags = 1 << 3
)
