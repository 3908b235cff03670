package uapi

// The top bits of object, method and attribute numbers are a namespace. Namespace 0 belongs to the core, and the other
// namespaces belong to the driver.
const (
	IDNSMask  = 0xf000 // UVERBS_ID_NS_MASK
	IDNSShift = 12     // UVERBS_ID_NS_SHIFT
	// IDDriverNS is the first number of the driver's namespace (UVERBS_ID_DRIVER_NS; older headers:
	// UVERBS_UDATA_DRIVER_DATA_FLAG).
	IDDriverNS = 1 << IDNSShift
	// IDDriverNSWithUHW is the first number in the driver's namespace after AttrUHWIn and AttrUHWOut
	// (UVERBS_ID_DRIVER_NS_WITH_UHW).
	IDDriverNSWithUHW = IDDriverNS + 2
)

// ObjectID is the type of the object of an ioctl (enum uverbs_default_objects).
type ObjectID uint16

// The object types (enum uverbs_default_objects).
const (
	ObjectDevice      ObjectID = iota // DEVICE
	ObjectPD                          // PD
	ObjectCompChannel                 // COMP_CHANNEL
	ObjectCQ                          // CQ
	ObjectQP                          // QP
	ObjectSRQ                         // SRQ
	ObjectAH                          // AH
	ObjectMR                          // MR
	ObjectMW                          // MW
	ObjectFlow                        // FLOW
	ObjectXRCD                        // XRCD
	ObjectRWQIndTbl                   // RWQ_IND_TBL
	ObjectWQ                          // WQ
	ObjectFlowAction                  // FLOW_ACTION
	ObjectDM                          // DM
	ObjectCounters                    // COUNTERS
	ObjectAsyncEvent                  // ASYNC_EVENT
	ObjectDMAH                        // DMAH
	ObjectDMABuf                      // DMABUF
	ObjectCompCntr                    // COMP_CNTR
)

// MethodID is the number of a method. Each object type numbers its own methods.
type MethodID uint16

// The methods of ObjectDevice (enum uverbs_methods_device).
const (
	MethodInvokeWrite MethodID = iota
	MethodInfoHandles
	MethodQueryPort
	MethodGetContext
	MethodQueryContext
	MethodQueryGIDTable
	MethodQueryGIDEntry
	MethodQueryPortSpeed
	MethodQueryCompCntrCaps
)

// The methods of ObjectQP (enum uverbs_methods_qp).
const (
	MethodQPCreate MethodID = iota
	MethodQPDestroy
	MethodQPAttachCompCntr
)

// The methods of ObjectSRQ (enum uverbs_methods_srq).
const (
	MethodSRQCreate MethodID = iota
	MethodSRQDestroy
)

// The methods of ObjectCQ (enum uverbs_methods_cq).
const (
	MethodCQCreate MethodID = iota
	MethodCQDestroy
)

// The methods of ObjectWQ (enum uverbs_methods_wq).
const (
	MethodWQCreate MethodID = iota
	MethodWQDestroy
)

// The methods of ObjectFlowAction (enum uverbs_methods_actions_flow_action_ops).
const (
	MethodFlowActionESPCreate MethodID = iota
	MethodFlowActionDestroy
	MethodFlowActionESPModify
)

// The methods of ObjectDM (enum uverbs_methods_dm).
const (
	MethodDMAlloc MethodID = iota
	MethodDMFree
)

// The methods of ObjectDMAH (enum uverbs_methods_dmah).
const (
	MethodDMAHAlloc MethodID = iota
	MethodDMAHFree
)

// The methods of ObjectDMABuf (enum uverbs_methods_dmabuf).
const (
	MethodDMABufAlloc MethodID = iota
)

// The methods of ObjectCompCntr (enum uverbs_methods_comp_cntr).
const (
	MethodCompCntrCreate MethodID = iota
	MethodCompCntrDestroy
	MethodCompCntrModify
	MethodCompCntrRead
)

// The methods of ObjectMR (enum uverbs_methods_mr).
const (
	MethodDMMRReg MethodID = iota
	MethodMRDestroy
	MethodAdviseMR
	MethodQueryMR
	MethodRegDMABufMR
	MethodRegMR
)

// The methods of ObjectCounters (enum uverbs_methods_actions_counters_ops).
const (
	MethodCountersCreate MethodID = iota
	MethodCountersDestroy
	MethodCountersRead
)

// The methods of ObjectPD (enum uverbs_methods_pd).
const (
	MethodPDDestroy MethodID = iota
)

// The methods of ObjectMW (enum uverbs_methods_mw).
const (
	MethodMWDestroy MethodID = iota
)

// The methods of ObjectXRCD (enum uverbs_methods_xrcd).
const (
	MethodXRCDDestroy MethodID = iota
)

// The methods of ObjectAH (enum uverbs_methods_ah).
const (
	MethodAHDestroy MethodID = iota
)

// The methods of ObjectRWQIndTbl (enum uverbs_methods_rwq_ind_tbl).
const (
	MethodRWQIndTblDestroy MethodID = iota
)

// The methods of ObjectFlow (enum uverbs_methods_flow).
const (
	MethodFlowDestroy MethodID = iota
)

// The methods of ObjectAsyncEvent (enum uverbs_method_async_event).
const (
	MethodAsyncEventAlloc MethodID = iota
)
