package uapi

import (
	"strconv"
	"strings"
)

// name returns names[v], or typ(v) if there is none.
func name(names []string, v uint64, typ string) string {
	if v < uint64(len(names)) && names[v] != "" {
		return names[v]
	}
	return typ + "(" + strconv.FormatUint(v, 10) + ")"
}

// flags joins the names of the bits in v with "|"; what has no name follows in
// hexadecimal. No bit at all is "0".
func flags(names []string, v uint64) string {
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

var commandNames = []string{
	CmdGetContext:        "GET_CONTEXT",
	CmdQueryDevice:       "QUERY_DEVICE",
	CmdQueryPort:         "QUERY_PORT",
	CmdAllocPD:           "ALLOC_PD",
	CmdDeallocPD:         "DEALLOC_PD",
	CmdCreateAH:          "CREATE_AH",
	CmdModifyAH:          "MODIFY_AH",
	CmdQueryAH:           "QUERY_AH",
	CmdDestroyAH:         "DESTROY_AH",
	CmdRegMR:             "REG_MR",
	CmdRegSMR:            "REG_SMR",
	CmdReregMR:           "REREG_MR",
	CmdQueryMR:           "QUERY_MR",
	CmdDeregMR:           "DEREG_MR",
	CmdAllocMW:           "ALLOC_MW",
	CmdBindMW:            "BIND_MW",
	CmdDeallocMW:         "DEALLOC_MW",
	CmdCreateCompChannel: "CREATE_COMP_CHANNEL",
	CmdCreateCQ:          "CREATE_CQ",
	CmdResizeCQ:          "RESIZE_CQ",
	CmdDestroyCQ:         "DESTROY_CQ",
	CmdPollCQ:            "POLL_CQ",
	CmdPeekCQ:            "PEEK_CQ",
	CmdReqNotifyCQ:       "REQ_NOTIFY_CQ",
	CmdCreateQP:          "CREATE_QP",
	CmdQueryQP:           "QUERY_QP",
	CmdModifyQP:          "MODIFY_QP",
	CmdDestroyQP:         "DESTROY_QP",
	CmdPostSend:          "POST_SEND",
	CmdPostRecv:          "POST_RECV",
	CmdAttachMcast:       "ATTACH_MCAST",
	CmdDetachMcast:       "DETACH_MCAST",
	CmdCreateSRQ:         "CREATE_SRQ",
	CmdModifySRQ:         "MODIFY_SRQ",
	CmdQuerySRQ:          "QUERY_SRQ",
	CmdDestroySRQ:        "DESTROY_SRQ",
	CmdPostSRQRecv:       "POST_SRQ_RECV",
	CmdOpenXRCD:          "OPEN_XRCD",
	CmdCloseXRCD:         "CLOSE_XRCD",
	CmdCreateXSRQ:        "CREATE_XSRQ",
	CmdOpenQP:            "OPEN_QP",
}

// String returns the name in C without IB_USER_VERBS_CMD_.
func (c Command) String() string { return name(commandNames, uint64(c), "Command") }

var exCommandNames = []string{
	ExCmdQueryDevice:      "EX_QUERY_DEVICE",
	ExCmdCreateCQ:         "EX_CREATE_CQ",
	ExCmdCreateQP:         "EX_CREATE_QP",
	ExCmdModifyQP:         "EX_MODIFY_QP",
	ExCmdCreateFlow:       "EX_CREATE_FLOW",
	ExCmdDestroyFlow:      "EX_DESTROY_FLOW",
	ExCmdCreateWQ:         "EX_CREATE_WQ",
	ExCmdModifyWQ:         "EX_MODIFY_WQ",
	ExCmdDestroyWQ:        "EX_DESTROY_WQ",
	ExCmdCreateRWQIndTbl:  "EX_CREATE_RWQ_IND_TBL",
	ExCmdDestroyRWQIndTbl: "EX_DESTROY_RWQ_IND_TBL",
	ExCmdModifyCQ:         "EX_MODIFY_CQ",
}

// String returns the name in C without IB_USER_VERBS_ and CMD_.
func (c ExCommand) String() string { return name(exCommandNames, uint64(c), "ExCommand") }

var eventTypeNames = []string{
	EventCQErr:             "CQ error",
	EventQPFatal:           "QP fatal error",
	EventQPReqErr:          "QP request error",
	EventQPAccessErr:       "QP access error",
	EventCommEst:           "communication established",
	EventSQDrained:         "send queue drained",
	EventPathMig:           "path migrated",
	EventPathMigErr:        "path migration error",
	EventDeviceFatal:       "device fatal error",
	EventPortActive:        "port active",
	EventPortErr:           "port error",
	EventLIDChange:         "LID change",
	EventPKeyChange:        "P_Key change",
	EventSMChange:          "SM change",
	EventSRQErr:            "SRQ error",
	EventSRQLimitReached:   "SRQ limit reached",
	EventQPLastWQEReached:  "last WQE reached",
	EventClientReregister:  "client reregister",
	EventGIDChange:         "GID change",
	EventWQFatal:           "WQ fatal error",
	EventDeviceSpeedChange: "device speed change",
}

// String says what happened.
func (e EventType) String() string { return name(eventTypeNames, uint64(e), "EventType") }

var wcStatusNames = []string{
	WCSuccess:          "success",
	WCLocLenErr:        "local length error",
	WCLocQPOpErr:       "local QP operation error",
	WCLocEECOpErr:      "local EE context operation error",
	WCLocProtErr:       "local protection error",
	WCWRFlushErr:       "work request flushed",
	WCMWBindErr:        "memory window bind error",
	WCBadRespErr:       "bad response",
	WCLocAccessErr:     "local access error",
	WCRemInvReqErr:     "remote invalid request",
	WCRemAccessErr:     "remote access error",
	WCRemOpErr:         "remote operation error",
	WCRetryExcErr:      "transport retry counter exceeded",
	WCRNRRetryExcErr:   "RNR retry counter exceeded",
	WCLocRDDViolErr:    "local RDD violation",
	WCRemInvRDReqErr:   "remote invalid RD request",
	WCRemAbortErr:      "remote aborted",
	WCInvEECNErr:       "invalid EE context number",
	WCInvEECStateErr:   "invalid EE context state",
	WCFatalErr:         "fatal error",
	WCRespTimeoutErr:   "response timeout",
	WCGeneralErr:       "general error",
	WCTMErr:            "tag matching error",
	WCTMRndvIncomplete: "tag matching rendezvous incomplete",
}

// String says what went wrong.
func (s WCStatus) String() string { return name(wcStatusNames, uint64(s), "WCStatus") }

var wcOpcodeNames = []string{
	WCSend:            "SEND",
	WCRDMAWrite:       "RDMA_WRITE",
	WCRDMARead:        "RDMA_READ",
	WCCompSwap:        "COMP_SWAP",
	WCFetchAdd:        "FETCH_ADD",
	WCBindMW:          "BIND_MW",
	WCLocalInv:        "LOCAL_INV",
	WCTSO:             "TSO",
	WCFlush:           "FLUSH",
	WCAtomicWrite:     "ATOMIC_WRITE",
	WCRecv:            "RECV",
	WCRecvRDMAWithImm: "RECV_RDMA_WITH_IMM",
}

// String returns the name in C without IBV_WC_.
func (o WCOpcode) String() string { return name(wcOpcodeNames, uint64(o), "WCOpcode") }

var wcFlagNames = []string{
	"GRH", "WITH_IMM", "WITH_INVALIDATE", "IP_CSUM_OK", "WITH_SMAC", "WITH_VLAN",
	"WITH_NETWORK_HDR_TYPE",
}

// String returns the names in C without IB_WC_.
func (f WCFlags) String() string { return flags(wcFlagNames, uint64(f)) }

var ibvWCFlagNames = []string{
	"GRH", "WITH_IMM", "IP_CSUM_OK", "WITH_INV", "TM_SYNC_REQ", "TM_MATCH", "TM_DATA_VALID",
}

// String returns the names in C without IBV_WC_.
func (f IBVWCFlags) String() string { return flags(ibvWCFlagNames, uint64(f)) }

var wrOpcodeNames = []string{
	WRRDMAWrite:               "RDMA_WRITE",
	WRRDMAWriteWithImm:        "RDMA_WRITE_WITH_IMM",
	WRSend:                    "SEND",
	WRSendWithImm:             "SEND_WITH_IMM",
	WRRDMARead:                "RDMA_READ",
	WRAtomicCmpAndSwp:         "ATOMIC_CMP_AND_SWP",
	WRAtomicFetchAndAdd:       "ATOMIC_FETCH_AND_ADD",
	WRLocalInv:                "LOCAL_INV",
	WRBindMW:                  "BIND_MW",
	WRSendWithInv:             "SEND_WITH_INV",
	WRTSO:                     "TSO",
	WRRDMAReadWithInv:         "RDMA_READ_WITH_INV",
	WRMaskedAtomicCmpAndSwp:   "MASKED_ATOMIC_CMP_AND_SWP",
	WRMaskedAtomicFetchAndAdd: "MASKED_ATOMIC_FETCH_AND_ADD",
	WRFlush:                   "FLUSH",
	WRAtomicWrite:             "ATOMIC_WRITE",
}

// String returns the name in C without IB_UVERBS_WR_.
func (o WROpcode) String() string { return name(wrOpcodeNames, uint64(o), "WROpcode") }

var sendFlagNames = []string{"FENCE", "SIGNALED", "SOLICITED", "INLINE", "IP_CSUM"}

// String returns the names in C without IBV_SEND_.
func (f SendFlags) String() string { return flags(sendFlagNames, uint64(f)) }

var accessFlagNames = []string{
	0: "LOCAL_WRITE", 1: "REMOTE_WRITE", 2: "REMOTE_READ", 3: "REMOTE_ATOMIC", 4: "MW_BIND",
	5: "ZERO_BASED", 6: "ON_DEMAND", 7: "HUGETLB", 8: "FLUSH_GLOBAL", 9: "FLUSH_PERSISTENT",
	20: "RELAXED_ORDERING",
}

// String returns the names in C without IB_UVERBS_ACCESS_.
func (f AccessFlags) String() string { return flags(accessFlagNames, uint64(f)) }

var qpTypeNames = []string{
	QPTSMI: "SMI", QPTGSI: "GSI", QPTRC: "RC", QPTUC: "UC", QPTUD: "UD", QPTRawPacket: "RAW_PACKET",
	QPTXRCIni: "XRC_INI", QPTXRCTgt: "XRC_TGT", QPTDriver: "DRIVER",
}

// String returns the name in C without IB_UVERBS_QPT_.
func (t QPType) String() string { return name(qpTypeNames, uint64(t), "QPType") }

var qpStateNames = []string{
	QPSReset: "RESET", QPSInit: "INIT", QPSRTR: "RTR", QPSRTS: "RTS", QPSSQD: "SQD",
	QPSSQE: "SQE", QPSErr: "ERR", QPSUnknown: "UNKNOWN",
}

// String returns the name in C without IBV_QPS_.
func (s QPState) String() string { return name(qpStateNames, uint64(s), "QPState") }

var qpAttrNames = []string{
	0: "STATE", 1: "CUR_STATE", 2: "EN_SQD_ASYNC_NOTIFY", 3: "ACCESS_FLAGS", 4: "PKEY_INDEX",
	5: "PORT", 6: "QKEY", 7: "AV", 8: "PATH_MTU", 9: "TIMEOUT", 10: "RETRY_CNT",
	11: "RNR_RETRY", 12: "RQ_PSN", 13: "MAX_QP_RD_ATOMIC", 14: "ALT_PATH",
	15: "MIN_RNR_TIMER", 16: "SQ_PSN", 17: "MAX_DEST_RD_ATOMIC", 18: "PATH_MIG_STATE",
	19: "CAP", 20: "DEST_QPN", 25: "RATE_LIMIT",
}

// String returns the names in C without IBV_QP_.
func (m QPAttrMask) String() string { return flags(qpAttrNames, uint64(m)) }

var migStateNames = []string{MigMigrated: "MIGRATED", MigRearm: "REARM", MigArmed: "ARMED"}

// String returns the name in C without IBV_MIG_.
func (s MigState) String() string { return name(migStateNames, uint64(s), "MigState") }

var srqTypeNames = []string{SRQTBasic: "BASIC", SRQTXRC: "XRC", SRQTTM: "TM"}

// String returns the name in C without IB_UVERBS_SRQT_.
func (t SRQType) String() string { return name(srqTypeNames, uint64(t), "SRQType") }

var portStateNames = []string{
	PortNop: "NOP", PortDown: "DOWN", PortInit: "INIT", PortArmed: "ARMED",
	PortActive: "ACTIVE", PortActiveDefer: "ACTIVE_DEFER",
}

// String returns the name in C without IBV_PORT_, as
// /sys/class/infiniband/DEV/ports/N/state has it.
func (s PortState) String() string { return name(portStateNames, uint64(s), "PortState") }

var portPhysStateNames = []string{
	PortPhysSleep: "Sleep", PortPhysPolling: "Polling", PortPhysDisabled: "Disabled",
	PortPhysTraining: "PortConfigurationTraining", PortPhysLinkUp: "LinkUp",
	PortPhysLinkErrorRecovery: "LinkErrorRecovery", PortPhysTest: "Phy Test",
}

// String returns the name as /sys/class/infiniband/DEV/ports/N/phys_state has
// it.
func (s PortPhysState) String() string { return name(portPhysStateNames, uint64(s), "PortPhysState") }

var linkLayerNames = []string{
	LinkLayerUnspecified: "Unspecified", LinkLayerInfiniBand: "InfiniBand",
	LinkLayerEthernet: "Ethernet",
}

// String returns the name as /sys/class/infiniband/DEV/ports/N/link_layer has
// it.
func (l LinkLayer) String() string { return name(linkLayerNames, uint64(l), "LinkLayer") }

var gidTypeNames = []string{GIDTypeIB: "IB", GIDTypeRoCEV1: "RoCE v1", GIDTypeRoCEV2: "RoCE v2"}

// String returns a name for logs. In sysfs gid_attrs/types the first two share
// the name "IB/RoCE v1".
func (t GIDType) String() string { return name(gidTypeNames, uint64(t), "GIDType") }

var nodeTypeNames = []string{
	NodeCA: "CA", NodeSwitch: "switch", NodeRouter: "router", NodeRNIC: "RNIC",
	NodeUSNIC: "usNIC", NodeUSNICUDP: "usNIC UDP", NodeUnspecified: "unspecified",
}

// String returns the name as /sys/class/infiniband/DEV/node_type has it.
func (t NodeType) String() string {
	if t < 0 {
		return "unknown"
	}
	return name(nodeTypeNames, uint64(t), "NodeType")
}

var atomicCapNames = []string{AtomicNone: "NONE", AtomicHCA: "HCA", AtomicGlob: "GLOB"}

// String returns the name in C without IBV_ATOMIC_.
func (c AtomicCap) String() string { return name(atomicCapNames, uint64(c), "AtomicCap") }

var objectNames = []string{
	ObjectDevice:      "DEVICE",
	ObjectPD:          "PD",
	ObjectCompChannel: "COMP_CHANNEL",
	ObjectCQ:          "CQ",
	ObjectQP:          "QP",
	ObjectSRQ:         "SRQ",
	ObjectAH:          "AH",
	ObjectMR:          "MR",
	ObjectMW:          "MW",
	ObjectFlow:        "FLOW",
	ObjectXRCD:        "XRCD",
	ObjectRWQIndTbl:   "RWQ_IND_TBL",
	ObjectWQ:          "WQ",
	ObjectFlowAction:  "FLOW_ACTION",
	ObjectDM:          "DM",
	ObjectCounters:    "COUNTERS",
	ObjectAsyncEvent:  "ASYNC_EVENT",
	ObjectDMAH:        "DMAH",
	ObjectDMABuf:      "DMABUF",
}

// String returns the name in C without UVERBS_OBJECT_.
func (o ObjectID) String() string { return name(objectNames, uint64(o), "ObjectID") }

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
	},
	ObjectPD:  {MethodPDDestroy: "PD_DESTROY"},
	ObjectCQ:  {MethodCQCreate: "CQ_CREATE", MethodCQDestroy: "CQ_DESTROY"},
	ObjectQP:  {MethodQPCreate: "QP_CREATE", MethodQPDestroy: "QP_DESTROY"},
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
}

// MethodName returns the name of method m of object type o, in C without
// UVERBS_METHOD_.
func MethodName(o ObjectID, m MethodID) string {
	if int(o) < len(methodNames) {
		if names := methodNames[o]; int(m) < len(names) {
			return names[m]
		}
	}
	return o.String() + " " + name(nil, uint64(m), "MethodID")
}
