package uapi

// ABIVersion is the abi_version that /sys/class/infiniband_verbs reports
// (IB_USER_VERBS_ABI_VERSION).
const ABIVersion = 6

// CmdThreshold is the first command number that exists only in the extended
// form (IB_USER_VERBS_CMD_THRESHOLD).
const CmdThreshold = 50

const (
	// CmdCommandMask selects the command number in CmdHdr.Command
	// (IB_USER_VERBS_CMD_COMMAND_MASK).
	CmdCommandMask = 0xff
	// CmdFlagExtended in CmdHdr.Command means that an ExCmdHdr follows
	// (IB_USER_VERBS_CMD_FLAG_EXTENDED).
	CmdFlagExtended = 0x80000000
)

// CmdHdr starts every command written to a uverbs file
// (struct ib_uverbs_cmd_hdr).
//
// For a plain command, both lengths count 32-bit words. InWords includes the header itself. With CmdFlagExtended, both
// lengths count 64-bit words and exclude CmdHdr and ExCmdHdr.
type CmdHdr struct {
	Command  uint32 // Command or ExCommand, and CmdFlagExtended
	InWords  uint16
	OutWords uint16
}

// ExCmdHdr follows CmdHdr in an extended command (struct ib_uverbs_ex_cmd_hdr). The provider lengths count 64-bit
// words. The provider lengths are additional to the lengths in CmdHdr.
type ExCmdHdr struct {
	Response         uint64 // user address of the buffer for the core and provider responses
	ProviderInWords  uint16
	ProviderOutWords uint16
	CmdHdrReserved   uint32 // zero
}

// Command is the number of a plain command (enum ib_uverbs_write_cmds).
type Command uint32

// The plain commands (IB_USER_VERBS_CMD_*).
const (
	CmdGetContext  Command = iota // GET_CONTEXT
	CmdQueryDevice                // QUERY_DEVICE
	CmdQueryPort                  // QUERY_PORT
	CmdAllocPD                    // ALLOC_PD
	CmdDeallocPD                  // DEALLOC_PD
	CmdCreateAH                   // CREATE_AH
	// CmdModifyAH was never implemented.
	CmdModifyAH // MODIFY_AH
	// CmdQueryAH was never implemented.
	CmdQueryAH   // QUERY_AH
	CmdDestroyAH // DESTROY_AH
	CmdRegMR     // REG_MR
	// CmdRegSMR was never implemented.
	CmdRegSMR  // REG_SMR
	CmdReregMR // REREG_MR
	// CmdQueryMR was never implemented; see MethodQueryMR.
	CmdQueryMR // QUERY_MR
	CmdDeregMR // DEREG_MR
	CmdAllocMW // ALLOC_MW
	// CmdBindMW was never implemented, because work requests bind windows.
	CmdBindMW            // BIND_MW
	CmdDeallocMW         // DEALLOC_MW
	CmdCreateCompChannel // CREATE_COMP_CHANNEL
	CmdCreateCQ          // CREATE_CQ
	CmdResizeCQ          // RESIZE_CQ
	CmdDestroyCQ         // DESTROY_CQ
	CmdPollCQ            // POLL_CQ
	// CmdPeekCQ was never implemented.
	CmdPeekCQ      // PEEK_CQ
	CmdReqNotifyCQ // REQ_NOTIFY_CQ
	CmdCreateQP    // CREATE_QP
	CmdQueryQP     // QUERY_QP
	CmdModifyQP    // MODIFY_QP
	CmdDestroyQP   // DESTROY_QP
	CmdPostSend    // POST_SEND
	CmdPostRecv    // POST_RECV
	CmdAttachMcast // ATTACH_MCAST
	CmdDetachMcast // DETACH_MCAST
	CmdCreateSRQ   // CREATE_SRQ
	CmdModifySRQ   // MODIFY_SRQ
	CmdQuerySRQ    // QUERY_SRQ
	CmdDestroySRQ  // DESTROY_SRQ
	CmdPostSRQRecv // POST_SRQ_RECV
	CmdOpenXRCD    // OPEN_XRCD
	CmdCloseXRCD   // CLOSE_XRCD
	CmdCreateXSRQ  // CREATE_XSRQ
	CmdOpenQP      // OPEN_QP
)

// ExCommand is the number of an extended command, without CmdFlagExtended.
type ExCommand uint32

// The extended commands (IB_USER_VERBS_EX_CMD_*). Commands below CmdThreshold extend the plain command with the same
// number.
const (
	ExCmdQueryDevice = ExCommand(CmdQueryDevice) // EX_QUERY_DEVICE
	ExCmdCreateCQ    = ExCommand(CmdCreateCQ)    // EX_CREATE_CQ
	ExCmdCreateQP    = ExCommand(CmdCreateQP)    // EX_CREATE_QP
	ExCmdModifyQP    = ExCommand(CmdModifyQP)    // EX_MODIFY_QP
)

// The next extended commands have no plain form.
const (
	ExCmdCreateFlow       ExCommand = CmdThreshold + iota // EX_CREATE_FLOW
	ExCmdDestroyFlow                                      // EX_DESTROY_FLOW
	ExCmdCreateWQ                                         // EX_CREATE_WQ
	ExCmdModifyWQ                                         // EX_MODIFY_WQ
	ExCmdDestroyWQ                                        // EX_DESTROY_WQ
	ExCmdCreateRWQIndTbl                                  // EX_CREATE_RWQ_IND_TBL
	ExCmdDestroyRWQIndTbl                                 // EX_DESTROY_RWQ_IND_TBL
	ExCmdModifyCQ                                         // EX_MODIFY_CQ
)
