package uapi

// AttrID is the number of an attribute. Each method numbers its own attributes.
type AttrID uint16

// The attributes for the driver's data. Every method with data for the driver has these attributes.
const (
	AttrUHWIn  AttrID = IDDriverNS     // UVERBS_ATTR_UHW_IN
	AttrUHWOut AttrID = IDDriverNS + 1 // UVERBS_ATTR_UHW_OUT
)

// The attributes of MethodInvokeWrite
// (enum uverbs_attrs_invoke_write_cmd_attr_ids).
const (
	AttrCoreIn AttrID = iota
	AttrCoreOut
	AttrWriteCmd
)

// The attributes of MethodQueryPort
// (enum uverbs_attrs_query_port_cmd_attr_ids).
const (
	AttrQueryPortPortNum AttrID = iota
	AttrQueryPortResp
)

// The attributes of MethodQueryPortSpeed
// (enum uverbs_attrs_query_port_speed_cmd_attr_ids).
const (
	AttrQueryPortSpeedPortNum AttrID = iota
	AttrQueryPortSpeedResp
)

// The attributes of MethodGetContext
// (enum uverbs_attrs_get_context_attr_ids).
const (
	AttrGetContextNumCompVectors AttrID = iota
	AttrGetContextCoreSupport
	AttrGetContextFDArr
)

// The attributes of MethodQueryContext
// (enum uverbs_attrs_query_context_attr_ids).
const (
	AttrQueryContextNumCompVectors AttrID = iota
	AttrQueryContextCoreSupport
)

// The attributes of MethodCQCreate
// (enum uverbs_attrs_create_cq_cmd_attr_ids).
const (
	AttrCreateCQHandle AttrID = iota
	AttrCreateCQCQE
	AttrCreateCQUserHandle
	AttrCreateCQCompChannel
	AttrCreateCQCompVector
	AttrCreateCQFlags
	AttrCreateCQRespCQE
	AttrCreateCQEventFD
	AttrCreateCQBufferVA
	AttrCreateCQBufferLength
	AttrCreateCQBufferFD
	AttrCreateCQBufferOffset
	AttrCreateCQBufUmem
)

// The attributes of MethodCQDestroy
// (enum uverbs_attrs_destroy_cq_cmd_attr_ids).
const (
	AttrDestroyCQHandle AttrID = iota
	AttrDestroyCQResp
)

// The attributes of MethodQPCreate
// (enum uverbs_attrs_create_qp_cmd_attr_ids).
const (
	AttrCreateQPHandle AttrID = iota
	AttrCreateQPXRCDHandle
	AttrCreateQPPDHandle
	AttrCreateQPSRQHandle
	AttrCreateQPSendCQHandle
	AttrCreateQPRecvCQHandle
	AttrCreateQPIndTableHandle
	AttrCreateQPUserHandle
	AttrCreateQPCap
	AttrCreateQPType
	AttrCreateQPFlags
	AttrCreateQPSourceQPN
	AttrCreateQPEventFD
	AttrCreateQPRespCap
	AttrCreateQPRespQPNum
	AttrCreateQPBufUmem
	AttrCreateQPRQBufUmem
	AttrCreateQPSQBufUmem
)

// The attributes of MethodQPDestroy
// (enum uverbs_attrs_destroy_qp_cmd_attr_ids).
const (
	AttrDestroyQPHandle AttrID = iota
	AttrDestroyQPResp
)

// The attributes of MethodSRQCreate
// (enum uverbs_attrs_create_srq_cmd_attr_ids).
const (
	AttrCreateSRQHandle AttrID = iota
	AttrCreateSRQPDHandle
	AttrCreateSRQXRCDHandle
	AttrCreateSRQCQHandle
	AttrCreateSRQUserHandle
	AttrCreateSRQMaxWR
	AttrCreateSRQMaxSGE
	AttrCreateSRQLimit
	AttrCreateSRQMaxNumTags
	AttrCreateSRQType
	AttrCreateSRQEventFD
	AttrCreateSRQRespMaxWR
	AttrCreateSRQRespMaxSGE
	AttrCreateSRQRespSRQNum
)

// The attributes of MethodSRQDestroy
// (enum uverbs_attrs_destroy_srq_cmd_attr_ids).
const (
	AttrDestroySRQHandle AttrID = iota
	AttrDestroySRQResp
)

// The attributes of MethodMRDestroy
// (enum uverbs_attrs_mr_destroy_ids).
const (
	AttrDestroyMRHandle AttrID = iota
)

// The attributes of MethodAdviseMR
// (enum uverbs_attrs_advise_mr_cmd_attr_ids).
const (
	AttrAdviseMRPDHandle AttrID = iota
	AttrAdviseMRAdvice
	AttrAdviseMRFlags
	AttrAdviseMRSGEList
)

// The attributes of MethodQueryMR
// (enum uverbs_attrs_query_mr_cmd_attr_ids).
const (
	AttrQueryMRHandle AttrID = iota
	AttrQueryMRRespLKey
	AttrQueryMRRespRKey
	AttrQueryMRRespLength
	AttrQueryMRRespIOVA
)

// The attributes of MethodRegDMABufMR
// (enum uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids).
const (
	AttrRegDMABufMRHandle AttrID = iota
	AttrRegDMABufMRPDHandle
	AttrRegDMABufMROffset
	AttrRegDMABufMRLength
	AttrRegDMABufMRIOVA
	AttrRegDMABufMRFD
	AttrRegDMABufMRAccessFlags
	AttrRegDMABufMRRespLKey
	AttrRegDMABufMRRespRKey
)

// The attributes of MethodRegMR
// (enum uverbs_attrs_reg_mr_cmd_attr_ids).
const (
	AttrRegMRHandle AttrID = iota
	AttrRegMRPDHandle
	AttrRegMRDMAHandle
	AttrRegMRIOVA
	AttrRegMRAddr
	AttrRegMRLength
	AttrRegMRAccessFlags
	AttrRegMRFD
	AttrRegMRFDOffset
	AttrRegMRRespLKey
	AttrRegMRRespRKey
)

// The attributes of MethodInfoHandles
// (enum uverbs_attrs_info_handles_id).
const (
	AttrInfoObjectID AttrID = iota
	AttrInfoTotalHandles
	AttrInfoHandlesList
)

// The attributes of MethodPDDestroy
// (enum uverbs_attrs_pd_destroy_ids).
const (
	AttrDestroyPDHandle AttrID = iota
)

// The attributes of MethodMWDestroy
// (enum uverbs_attrs_mw_destroy_ids).
const (
	AttrDestroyMWHandle AttrID = iota
)

// The attributes of MethodXRCDDestroy
// (enum uverbs_attrs_xrcd_destroy_ids).
const (
	AttrDestroyXRCDHandle AttrID = iota
)

// The attributes of MethodAHDestroy
// (enum uverbs_attrs_ah_destroy_ids).
const (
	AttrDestroyAHHandle AttrID = iota
)

// The attributes of MethodAsyncEventAlloc
// (enum uverbs_attrs_async_event_create).
const (
	AttrAsyncEventAllocFDHandle AttrID = iota
)

// The attributes of MethodQueryGIDTable
// (enum uverbs_attrs_query_gid_table_cmd_attr_ids).
const (
	AttrQueryGIDTableEntrySize AttrID = iota
	AttrQueryGIDTableFlags
	AttrQueryGIDTableRespEntries
	AttrQueryGIDTableRespNumEntries
)

// The attributes of MethodQueryGIDEntry
// (enum uverbs_attrs_query_gid_entry_cmd_attr_ids).
const (
	AttrQueryGIDEntryPort AttrID = iota
	AttrQueryGIDEntryGIDIndex
	AttrQueryGIDEntryFlags
	AttrQueryGIDEntryRespEntry
)
