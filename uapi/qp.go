package uapi

// CreateQP creates a queue pair (struct ib_uverbs_create_qp).
type CreateQP struct {
	Response      uint64 // user address of CreateQPResp
	UserHandle    uint64 // reported in AsyncEventDesc
	PDHandle      uint32 // handle of the PD, or of the XRC domain for QPTXRCTgt
	SendCQHandle  uint32
	RecvCQHandle  uint32
	SRQHandle     uint32 // valid if IsSRQ
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32 // bytes
	SQSigAll      uint8  // not zero: every send generates a completion
	QPType        QPType
	IsSRQ         uint8
	Reserved      uint8
}

// ExCreateQP is the extended CreateQP (struct ib_uverbs_ex_create_qp).
type ExCreateQP struct {
	UserHandle      uint64
	PDHandle        uint32
	SendCQHandle    uint32
	RecvCQHandle    uint32
	SRQHandle       uint32
	MaxSendWR       uint32
	MaxRecvWR       uint32
	MaxSendSGE      uint32
	MaxRecvSGE      uint32
	MaxInlineData   uint32
	SQSigAll        uint8
	QPType          QPType
	IsSRQ           uint8
	Reserved        uint8
	CompMask        CreateQPMask
	CreateFlags     QPCreateFlags
	RWQIndTblHandle uint32
	SourceQPN       uint32
}

// OpenQP opens the target QP of an XRC domain (struct ib_uverbs_open_qp). The
// response is CreateQPResp.
type OpenQP struct {
	Response   uint64
	UserHandle uint64
	PDHandle   uint32 // handle of the XRC domain
	QPN        uint32
	QPType     QPType
	Reserved   [7]uint8
}

// CreateQPResp is the response to CreateQP and OpenQP (struct ib_uverbs_create_qp_resp).
type CreateQPResp struct {
	QPHandle uint32
	QPN      uint32
	// The next fields are the actual capacities, which are at least the requested ones.
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32 // bytes
	Reserved      uint32
}

// ExCreateQPResp is the response to ExCreateQP (struct ib_uverbs_ex_create_qp_resp).
type ExCreateQPResp struct {
	Base           CreateQPResp
	CompMask       uint32
	ResponseLength uint32 // number of valid bytes, including Base
}

// QPDest is the path of a QP in QueryQPResp and ModifyQP
// (struct ib_uverbs_qp_dest).
type QPDest struct {
	DGID         [16]uint8
	FlowLabel    uint32
	DLID         uint16
	Reserved     uint16
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8 // enum ibv_rate
	IsGlobal     uint8 // not zero if the fields of the GRH are valid
	PortNum      uint8
}

// QueryQP requests the attributes of a QP (struct ib_uverbs_query_qp).
type QueryQP struct {
	Response uint64 // user address of QueryQPResp
	QPHandle uint32
	AttrMask QPAttrMask // a hint: the kernel may return more attributes
}

// QueryQPResp is the response to QueryQP (struct ib_uverbs_query_qp_resp).
type QueryQPResp struct {
	Dest            QPDest
	AltDest         QPDest
	MaxSendWR       uint32
	MaxRecvWR       uint32
	MaxSendSGE      uint32
	MaxRecvSGE      uint32
	MaxInlineData   uint32 // bytes
	QKey            uint32
	RQPSN           uint32
	SQPSN           uint32
	DestQPNum       uint32
	QPAccessFlags   AccessFlags
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	QPState         QPState
	CurQPState      QPState
	PathMTU         uint8 // enum ibv_mtu
	PathMigState    MigState
	SQDraining      uint8
	MaxRDAtomic     uint8
	MaxDestRDAtomic uint8
	MinRNRTimer     uint8
	PortNum         uint8
	Timeout         uint8 // 4.096 us * 2^n; 0 means no timeout
	RetryCnt        uint8
	RNRRetry        uint8 // 7 means unlimited retries
	AltPortNum      uint8
	AltTimeout      uint8
	SQSigAll        uint8
	Reserved        [5]uint8
}

// ModifyQP changes attributes of a QP (struct ib_uverbs_modify_qp). The kernel reads only the fields that AttrMask
// selects. The command has no response.
type ModifyQP struct {
	Dest             QPDest
	AltDest          QPDest
	QPHandle         uint32
	AttrMask         QPAttrMask
	QKey             uint32
	RQPSN            uint32
	SQPSN            uint32
	DestQPNum        uint32
	QPAccessFlags    AccessFlags
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	QPState          QPState
	CurQPState       QPState
	PathMTU          uint8 // enum ibv_mtu
	PathMigState     MigState
	EnSQDAsyncNotify uint8
	MaxRDAtomic      uint8
	MaxDestRDAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8 // 4.096 us * 2^n; 0 means no timeout
	RetryCnt         uint8
	RNRRetry         uint8 // 7 means unlimited retries
	AltPortNum       uint8
	AltTimeout       uint8
	Reserved         [2]uint8
}

// ExModifyQP is the extended ModifyQP (struct ib_uverbs_ex_modify_qp).
type ExModifyQP struct {
	Base      ModifyQP
	RateLimit uint32 // kbit/s
	Reserved  uint32
}

// ExModifyQPResp is the response to ExModifyQP (struct ib_uverbs_ex_modify_qp_resp).
type ExModifyQPResp struct {
	CompMask       uint32
	ResponseLength uint32
}

// DestroyQP destroys a QP (struct ib_uverbs_destroy_qp).
type DestroyQP struct {
	Response uint64 // user address of DestroyQPResp
	QPHandle uint32
	Reserved uint32
}

// DestroyQPResp is the response to DestroyQP (struct ib_uverbs_destroy_qp_resp).
type DestroyQPResp struct {
	EventsReported uint32 // number of asynchronous events of the QP that the program has read
}

// QPCap is the type of the attributes AttrCreateQPCap and AttrCreateQPRespCap (struct ib_uverbs_qp_cap).
type QPCap struct {
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32 // bytes
}
