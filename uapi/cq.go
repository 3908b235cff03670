package uapi

// CreateCompChannel opens a completion channel
// (struct ib_uverbs_create_comp_channel).
type CreateCompChannel struct {
	Response uint64 // user address of CreateCompChannelResp
}

// CreateCompChannelResp is the response to CreateCompChannel (struct ib_uverbs_create_comp_channel_resp).
type CreateCompChannelResp struct {
	FD uint32
}

// CreateCQ creates a completion queue (struct ib_uverbs_create_cq).
type CreateCQ struct {
	Response    uint64 // user address of CreateCQResp
	UserHandle  uint64 // contained in CompEventDesc and AsyncEventDesc
	CQE         uint32 // entries wanted
	CompVector  uint32
	CompChannel int32 // file descriptor; negative for none
	Reserved    uint32
}

// ExCreateCQ is the extended CreateCQ (struct ib_uverbs_ex_create_cq).
type ExCreateCQ struct {
	UserHandle  uint64
	CQE         uint32
	CompVector  uint32
	CompChannel int32
	CompMask    uint32
	Flags       CQFlags
	Reserved    uint32
}

// CreateCQResp is the response to CreateCQ (struct ib_uverbs_create_cq_resp).
type CreateCQResp struct {
	CQHandle uint32
	CQE      uint32 // actual number of entries
}

// ExCreateCQResp is the response to ExCreateCQ (struct ib_uverbs_ex_create_cq_resp).
type ExCreateCQResp struct {
	Base           CreateCQResp
	CompMask       uint32
	ResponseLength uint32 // number of valid bytes, including Base
}

// ResizeCQ changes the size of a CQ (struct ib_uverbs_resize_cq).
type ResizeCQ struct {
	Response uint64 // user address of ResizeCQResp
	CQHandle uint32
	CQE      uint32
}

// ResizeCQResp is the response to ResizeCQ (struct ib_uverbs_resize_cq_resp).
type ResizeCQResp struct {
	CQE      uint32 // actual number of entries
	Reserved uint32
}

// PollCQ polls completions from a CQ (struct ib_uverbs_poll_cq).
type PollCQ struct {
	Response uint64 // user address of PollCQResp and of NE entries after it
	CQHandle uint32
	NE       uint32 // entries wanted
}

// PollCQResp is the response to PollCQ (struct ib_uverbs_poll_cq_resp). Count entries of type WC follow it.
type PollCQResp struct {
	Count    uint32
	Reserved uint32
}

// ReqNotifyCQ arms a CQ (struct ib_uverbs_req_notify_cq). The command has no response.
type ReqNotifyCQ struct {
	CQHandle      uint32
	SolicitedOnly uint32 // not zero: report only solicited or failed completions
}

// DestroyCQ destroys a CQ (struct ib_uverbs_destroy_cq).
type DestroyCQ struct {
	Response uint64 // user address of DestroyCQResp
	CQHandle uint32
	Reserved uint32
}

// DestroyCQResp is the response to DestroyCQ (struct ib_uverbs_destroy_cq_resp). The response contains the number of
// events that the program has read. The C library waits until the program has acknowledged this number of events.
type DestroyCQResp struct {
	CompEventsReported  uint32
	AsyncEventsReported uint32
}

// CQModeration delays completion events (struct ib_uverbs_cq_moderation).
type CQModeration struct {
	CQCount  uint16 // completions per event
	CQPeriod uint16 // microseconds
}

// ExModifyCQ changes a CQ (struct ib_uverbs_ex_modify_cq). The command has no response.
type ExModifyCQ struct {
	CQHandle uint32
	AttrMask CQAttrMask
	Attr     CQModeration
	Reserved uint32
}

// CQFlags are the options of ExCreateCQ (enum ib_uverbs_ex_create_cq_flags).
type CQFlags uint32

// The CQ options (IB_UVERBS_CQ_FLAGS_*).
const (
	CQFlagsTimestampCompletion CQFlags = 1 << 0
	CQFlagsIgnoreOverrun       CQFlags = 1 << 1
)

// CQAttrMask selects the attributes that ExModifyCQ changes (enum ibv_cq_attr_mask).
type CQAttrMask uint32
