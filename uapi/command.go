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
	// CmdFlagExtended in CmdHdr.Command says that an ExCmdHdr follows
	// (IB_USER_VERBS_CMD_FLAG_EXTENDED).
	CmdFlagExtended = 0x80000000
)

// CmdHdr starts every command written to a uverbs file
// (struct ib_uverbs_cmd_hdr).
//
// For a plain command both lengths count 32-bit words and InWords includes
// the header itself. With CmdFlagExtended they count 64-bit words and exclude
// CmdHdr and ExCmdHdr.
type CmdHdr struct {
	Command  uint32 // Command or ExCommand, and CmdFlagExtended
	InWords  uint16
	OutWords uint16
}

// ExCmdHdr follows CmdHdr in an extended command (struct ib_uverbs_ex_cmd_hdr).
// The provider lengths count 64-bit words and come on top of those in CmdHdr.
type ExCmdHdr struct {
	Response         uint64 // user address that receives core and provider response
	ProviderInWords  uint16
	ProviderOutWords uint16
	CmdHdrReserved   uint32 // zero
}

// Command is the number of a plain command (enum ib_uverbs_write_cmds).
type Command uint32

// The plain commands (IB_USER_VERBS_CMD_*).
const (
	CmdGetContext Command = iota
	CmdQueryDevice
	CmdQueryPort
	CmdAllocPD
	CmdDeallocPD
	CmdCreateAH
	CmdModifyAH // never implemented
	CmdQueryAH  // never implemented
	CmdDestroyAH
	CmdRegMR
	CmdRegSMR // never implemented
	CmdReregMR
	CmdQueryMR // never implemented; see MethodQueryMR
	CmdDeregMR
	CmdAllocMW
	CmdBindMW // never implemented; windows are bound by work requests
	CmdDeallocMW
	CmdCreateCompChannel
	CmdCreateCQ
	CmdResizeCQ
	CmdDestroyCQ
	CmdPollCQ
	CmdPeekCQ // never implemented
	CmdReqNotifyCQ
	CmdCreateQP
	CmdQueryQP
	CmdModifyQP
	CmdDestroyQP
	CmdPostSend
	CmdPostRecv
	CmdAttachMcast
	CmdDetachMcast
	CmdCreateSRQ
	CmdModifySRQ
	CmdQuerySRQ
	CmdDestroySRQ
	CmdPostSRQRecv
	CmdOpenXRCD
	CmdCloseXRCD
	CmdCreateXSRQ
	CmdOpenQP
)

// ExCommand is the number of an extended command, without CmdFlagExtended.
type ExCommand uint32

// The extended commands (IB_USER_VERBS_EX_CMD_*). Those below CmdThreshold
// extend the plain command of the same number.
const (
	ExCmdQueryDevice = ExCommand(CmdQueryDevice)
	ExCmdCreateCQ    = ExCommand(CmdCreateCQ)
	ExCmdCreateQP    = ExCommand(CmdCreateQP)
	ExCmdModifyQP    = ExCommand(CmdModifyQP)
)

// The extended commands that have no plain form.
const (
	ExCmdCreateFlow ExCommand = CmdThreshold + iota
	ExCmdDestroyFlow
	ExCmdCreateWQ
	ExCmdModifyWQ
	ExCmdDestroyWQ
	ExCmdCreateRWQIndTbl
	ExCmdDestroyRWQIndTbl
	ExCmdModifyCQ
)
