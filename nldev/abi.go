package nldev

// The following constants are sizes and numbers of linux/netlink.h.
const (
	headerSize = 16 // struct nlmsghdr
	attrSize   = 4  // struct nlattr

	typeMin   = 0x10 // NLMSG_MIN_TYPE: lower types are control messages
	typeError = 2    // NLMSG_ERROR
	typeDone  = 3    // NLMSG_DONE

	flagRequest = 0x001 // NLM_F_REQUEST
	flagMulti   = 0x002 // NLM_F_MULTI
	flagAck     = 0x004 // NLM_F_ACK
	flagDump    = 0x300 // NLM_F_ROOT | NLM_F_MATCH; either flag requests a dump
	flagCapped  = 0x100 // NLM_F_CAPPED, set in an NLMSG_ERROR

	attrFlagNested = 0x8000 // NLA_F_NESTED
	attrTypeMask   = 0x3fff // NLA_TYPE_MASK
)

// clientNldev is RDMA_NL_NLDEV, the netlink family in bits 10 to 15 of the type of a message.
const (
	clientNldev = 5
	clientShift = 10
	commandMask = 1<<clientShift - 1
)

// The following constants are the sizes of the kernel's string buffers in bytes, including the terminating NUL.
const (
	nameSize        = 64 // IB_DEVICE_NAME_MAX
	netdevSize      = 16 // IFNAMSIZ
	chardevTypeSize = 32 // RDMA_NLDEV_ATTR_CHARDEV_TYPE_SIZE
	emptyString     = 1  // RDMA_NLDEV_ATTR_EMPTY_STRING, the policy of strings that are not valid in a request
)

// Values of attributes.
const (
	counterModeNone = 0 // RDMA_COUNTER_MODE_NONE
	counterModeAuto = 1 // RDMA_COUNTER_MODE_AUTO
)

// enum rdma_nldev_command.
const (
	cmdGet          = 1
	cmdSet          = 2
	cmdNewLink      = 3
	cmdDelLink      = 4
	cmdPortGet      = 5
	cmdSysGet       = 6
	cmdSysSet       = 7
	cmdResGet       = 9
	cmdResQPGet     = 10
	cmdResCMIDGet   = 11
	cmdResCQGet     = 12
	cmdResMRGet     = 13
	cmdResPDGet     = 14
	cmdGetChardev   = 15
	cmdStatSet      = 16
	cmdStatGet      = 17
	cmdStatDel      = 18
	cmdResQPGetRaw  = 19
	cmdResCQGetRaw  = 20
	cmdResMRGetRaw  = 21
	cmdResCtxGet    = 22
	cmdResSRQGet    = 23
	cmdStatStatus   = 24
	cmdResSRQGetRaw = 25
	cmdNewDev       = 26
	cmdDelDev       = 27
	cmdMonitor      = 28
	cmdCount        = 29 // RDMA_NLDEV_NUM_OPS
)

// enum rdma_nldev_attr.
const (
	attrUnspec = iota
	attrDevIndex
	attrDevName
	attrPortIndex
	attrCapFlags
	attrFWVersion
	attrNodeGUID
	attrSysImageGUID
	attrSubnetPrefix
	attrLID
	attrSMLID
	attrLMC
	attrPortState
	attrPortPhysState
	attrDevNodeType
	attrResSummary
	attrResSummaryEntry
	attrResSummaryEntryName
	attrResSummaryEntryCurr
	attrResQP
	attrResQPEntry
	attrResLQPN
	attrResRQPN
	attrResRQPSN
	attrResSQPSN
	attrResPathMigState
	attrResType
	attrResState
	attrResPID
	attrResKernName
	attrResCMID
	attrResCMIDEntry
	attrResPS
	attrResSrcAddr
	attrResDstAddr
	attrResCQ
	attrResCQEntry
	attrResCQE
	attrResUsecnt
	attrResPollCTX
	attrResMR
	attrResMREntry
	attrResRKEY
	attrResLKEY
	attrResIOVA
	attrResMrlen
	attrResPD
	attrResPDEntry
	attrResLocalDMALKEY
	attrResUnsafeGlobalRKEY
	attrNdevIndex
	attrNdevName
	attrDriver
	attrDriverEntry
	attrDriverString
	attrDriverPrintType
	attrDriverS32
	attrDriverU32
	attrDriverS64
	attrDriverU64
	attrResPDN
	attrResCQN
	attrResMRN
	attrResCMIDN
	attrResCTXN
	attrLinkType
	attrSysNetnsMode
	attrDevProtocol
	attrNetNSFD
	attrChardevType
	attrChardevName
	attrChardevABI
	attrChardev
	attrUverbsDriverID
	attrStatMode
	attrStatRes
	attrStatAutoModeMask
	attrStatCounter
	attrStatCounterEntry
	attrStatCounterID
	attrStatHwcounters
	attrStatHwcounterEntry
	attrStatHwcounterEntryName
	attrStatHwcounterEntryValue
	attrDevDIM
	attrResRaw
	attrResCTX
	attrResCTXEntry
	attrResSRQ
	attrResSRQEntry
	attrResSRQN
	attrMinRange
	attrMaxRange
	attrSysCopyOnFork
	attrStatHwcounterIndex
	attrStatHwcounterDynamic
	attrSysPrivilegedQkeyMode
	attrDriverDetails
	attrResSubtype
	attrDevType
	attrParentName
	attrNameAssignType
	attrEventType
	attrSysMonitorMode
	attrStatOpcounterEnabled
	attrCount // RDMA_NLDEV_ATTR_MAX
)
