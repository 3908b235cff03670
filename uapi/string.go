package uapi

import (
	"strconv"
	"strings"
)

// nameOf returns names[v], or typ(v) if v has no name.
func nameOf(names []string, v uint64, typ string) string {
	if v < uint64(len(names)) && names[v] != "" {
		return names[v]
	}
	return typ + "(" + strconv.FormatUint(v, 10) + ")"
}

// flagNames joins the names of the bits in v with "|". Bits without a name follow in hexadecimal. If no bit is set,
// flagNames returns "0".
func flagNames(names []string, v uint64) string {
	if v == 0 {
		return "0"
	}
	var parts []string
	for i, n := range names {
		if bit := uint64(1) << i; n != "" && v&bit != 0 {
			parts = append(parts, n)
			v &^= bit
		}
	}
	if v != 0 {
		parts = append(parts, "0x"+strconv.FormatUint(v, 16))
	}
	return strings.Join(parts, "|")
}

var wcFlagNames = []string{
	"GRH", "WITH_IMM", "WITH_INVALIDATE", "IP_CSUM_OK", "WITH_SMAC", "WITH_VLAN",
	"WITH_NETWORK_HDR_TYPE",
}

// String returns the names in C without IB_WC_.
func (f WCFlags) String() string { return flagNames(wcFlagNames, uint64(f)) }

var ibvWCFlagNames = []string{
	"GRH", "WITH_IMM", "IP_CSUM_OK", "WITH_INV", "TM_SYNC_REQ", "TM_MATCH", "TM_DATA_VALID",
}

// String returns the names in C without IBV_WC_.
func (f IBVWCFlags) String() string { return flagNames(ibvWCFlagNames, uint64(f)) }

var sendFlagNames = []string{"FENCE", "SIGNALED", "SOLICITED", "INLINE", "IP_CSUM"}

// String returns the names in C without IBV_SEND_.
func (f SendFlags) String() string { return flagNames(sendFlagNames, uint64(f)) }

var accessFlagNames = []string{
	0: "LOCAL_WRITE", 1: "REMOTE_WRITE", 2: "REMOTE_READ", 3: "REMOTE_ATOMIC", 4: "MW_BIND",
	5: "ZERO_BASED", 6: "ON_DEMAND", 7: "HUGETLB", 8: "FLUSH_GLOBAL", 9: "FLUSH_PERSISTENT",
	20: "RELAXED_ORDERING",
}

// String returns the names in C without IB_UVERBS_ACCESS_.
func (f AccessFlags) String() string { return flagNames(accessFlagNames, uint64(f)) }

var qpAttrNames = []string{
	0: "STATE", 1: "CUR_STATE", 2: "EN_SQD_ASYNC_NOTIFY", 3: "ACCESS_FLAGS", 4: "PKEY_INDEX",
	5: "PORT", 6: "QKEY", 7: "AV", 8: "PATH_MTU", 9: "TIMEOUT", 10: "RETRY_CNT",
	11: "RNR_RETRY", 12: "RQ_PSN", 13: "MAX_QP_RD_ATOMIC", 14: "ALT_PATH",
	15: "MIN_RNR_TIMER", 16: "SQ_PSN", 17: "MAX_DEST_RD_ATOMIC", 18: "PATH_MIG_STATE",
	19: "CAP", 20: "DEST_QPN", 25: "RATE_LIMIT",
}

// String returns the names in C without IBV_QP_.
func (m QPAttrMask) String() string { return flagNames(qpAttrNames, uint64(m)) }

var methodNames = [...][]string{
	ObjectDevice: {
		MethodInvokeWrite:    "INVOKE_WRITE",
		MethodInfoHandles:    "INFO_HANDLES",
		MethodQueryPort:      "QUERY_PORT",
		MethodGetContext:     "GET_CONTEXT",
		MethodQueryContext:   "QUERY_CONTEXT",
		MethodQueryGIDTable:  "QUERY_GID_TABLE",
		MethodQueryGIDEntry:  "QUERY_GID_ENTRY",
		MethodQueryPortSpeed: "QUERY_PORT_SPEED",

		MethodQueryCompCntrCaps: "QUERY_COMP_CNTR_CAPS",
	},
	ObjectPD: {MethodPDDestroy: "PD_DESTROY"},
	ObjectCQ: {MethodCQCreate: "CQ_CREATE", MethodCQDestroy: "CQ_DESTROY"},
	ObjectQP: {MethodQPCreate: "QP_CREATE", MethodQPDestroy: "QP_DESTROY",
		MethodQPAttachCompCntr: "QP_ATTACH_COMP_CNTR"},
	ObjectSRQ: {MethodSRQCreate: "SRQ_CREATE", MethodSRQDestroy: "SRQ_DESTROY"},
	ObjectAH:  {MethodAHDestroy: "AH_DESTROY"},
	ObjectMR: {
		MethodDMMRReg:     "DM_MR_REG",
		MethodMRDestroy:   "MR_DESTROY",
		MethodAdviseMR:    "ADVISE_MR",
		MethodQueryMR:     "QUERY_MR",
		MethodRegDMABufMR: "REG_DMABUF_MR",
		MethodRegMR:       "REG_MR",
	},
	ObjectMW:        {MethodMWDestroy: "MW_DESTROY"},
	ObjectFlow:      {MethodFlowDestroy: "FLOW_DESTROY"},
	ObjectXRCD:      {MethodXRCDDestroy: "XRCD_DESTROY"},
	ObjectRWQIndTbl: {MethodRWQIndTblDestroy: "RWQ_IND_TBL_DESTROY"},
	ObjectWQ:        {MethodWQCreate: "WQ_CREATE", MethodWQDestroy: "WQ_DESTROY"},
	ObjectFlowAction: {
		MethodFlowActionESPCreate: "FLOW_ACTION_ESP_CREATE",
		MethodFlowActionDestroy:   "FLOW_ACTION_DESTROY",
		MethodFlowActionESPModify: "FLOW_ACTION_ESP_MODIFY",
	},
	ObjectDM: {MethodDMAlloc: "DM_ALLOC", MethodDMFree: "DM_FREE"},
	ObjectCounters: {
		MethodCountersCreate:  "COUNTERS_CREATE",
		MethodCountersDestroy: "COUNTERS_DESTROY",
		MethodCountersRead:    "COUNTERS_READ",
	},
	ObjectAsyncEvent: {MethodAsyncEventAlloc: "ASYNC_EVENT_ALLOC"},
	ObjectDMAH:       {MethodDMAHAlloc: "DMAH_ALLOC", MethodDMAHFree: "DMAH_FREE"},
	ObjectDMABuf:     {MethodDMABufAlloc: "DMABUF_ALLOC"},
	ObjectCompCntr: {
		MethodCompCntrCreate:  "COMP_CNTR_CREATE",
		MethodCompCntrDestroy: "COMP_CNTR_DESTROY",
		MethodCompCntrModify:  "COMP_CNTR_MODIFY",
		MethodCompCntrRead:    "COMP_CNTR_READ",
	},
}

// MethodName returns the name of method m of object type o. The name is the C name without UVERBS_METHOD_.
func MethodName(o ObjectID, m MethodID) string {
	if int(o) < len(methodNames) {
		if names := methodNames[o]; int(m) < len(names) {
			return names[m]
		}
	}
	return o.String() + " " + nameOf(nil, uint64(m), "MethodID")
}
