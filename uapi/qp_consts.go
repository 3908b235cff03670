package uapi

// QPType is the transport service of a QP (enum ib_uverbs_qp_type).
type QPType uint8

// The QP types (IB_UVERBS_QPT_*).
const (
	// QPTSMI is reserved for the kernel (enum ib_qp_type). Programs cannot create such a QP.
	QPTSMI QPType = 0 // SMI
	// QPTGSI is reserved for the kernel as well.
	QPTGSI QPType = 1 // GSI
	// QPTRC is a reliable connection.
	QPTRC QPType = 2 // RC
	// QPTUC is an unreliable connection.
	QPTUC QPType = 3 // UC
	// QPTUD is an unreliable datagram queue pair.
	QPTUD QPType = 4 // UD
	// QPTRawPacket sends Ethernet frames.
	QPTRawPacket QPType = 8  // RAW_PACKET
	QPTXRCIni    QPType = 9  // XRC_INI
	QPTXRCTgt    QPType = 10 // XRC_TGT
	// QPTDriver is a type that the driver defines.
	QPTDriver QPType = 0xff // DRIVER
)

// QPState is a state of the QP state machine (enum ibv_qp_state). Package ib
// has the transitions.
type QPState uint8

// The QP states (IBV_QPS_*).
const (
	QPSReset QPState = iota // RESET
	// QPSInit means initialised: receives may be posted.
	QPSInit // INIT
	// QPSRTR means ready to receive.
	QPSRTR // RTR
	// QPSRTS means ready to send.
	QPSRTS // RTS
	// QPSSQD means that the send queue is drained or draining.
	QPSSQD // SQD
	// QPSSQE means that the send queue has failed.
	QPSSQE // SQE
	// QPSErr means that every work request is flushed.
	QPSErr // ERR
	// QPSUnknown is the C library's value for a state that the kernel did not report.
	QPSUnknown // UNKNOWN
)

// MigState is the path migration state (enum ibv_mig_state).
type MigState uint8

// The path migration states (IBV_MIG_*).
const (
	MigMigrated MigState = iota // MIGRATED
	MigRearm                    // REARM
	MigArmed                    // ARMED
)

// QPAttrMask selects attributes of a QP (enum ibv_qp_attr_mask).
type QPAttrMask uint32

// The attributes of a QP (IBV_QP_*).
const (
	QPAttrState            QPAttrMask = 1 << 0
	QPAttrCurState         QPAttrMask = 1 << 1
	QPAttrEnSQDAsyncNotify QPAttrMask = 1 << 2
	QPAttrAccessFlags      QPAttrMask = 1 << 3
	QPAttrPKeyIndex        QPAttrMask = 1 << 4
	QPAttrPort             QPAttrMask = 1 << 5
	QPAttrQKey             QPAttrMask = 1 << 6
	QPAttrAV               QPAttrMask = 1 << 7
	QPAttrPathMTU          QPAttrMask = 1 << 8
	QPAttrTimeout          QPAttrMask = 1 << 9
	QPAttrRetryCnt         QPAttrMask = 1 << 10
	QPAttrRNRRetry         QPAttrMask = 1 << 11
	QPAttrRQPSN            QPAttrMask = 1 << 12
	QPAttrMaxQPRDAtomic    QPAttrMask = 1 << 13
	QPAttrAltPath          QPAttrMask = 1 << 14
	QPAttrMinRNRTimer      QPAttrMask = 1 << 15
	QPAttrSQPSN            QPAttrMask = 1 << 16
	QPAttrMaxDestRDAtomic  QPAttrMask = 1 << 17
	QPAttrPathMigState     QPAttrMask = 1 << 18
	QPAttrCap              QPAttrMask = 1 << 19
	QPAttrDestQPN          QPAttrMask = 1 << 20
	QPAttrRateLimit        QPAttrMask = 1 << 25 // extended form only
)

// CreateQPMask selects the valid fields among the fields that were added to ExCreateQP later (enum
// ib_uverbs_create_qp_mask).
type CreateQPMask uint32

// The fields that were added to ExCreateQP later (IB_UVERBS_CREATE_QP_MASK_*).
const (
	CreateQPMaskIndTable CreateQPMask = 1 << 0 // RWQIndTblHandle

	// CreateQPSupCompMask has all defined bits (IB_UVERBS_CREATE_QP_SUP_COMP_MASK).
	CreateQPSupCompMask = CreateQPMaskIndTable
)

// QPCreateFlags are the options of a new QP (enum ib_uverbs_qp_create_flags).
type QPCreateFlags uint32

// The options of a new QP (IB_UVERBS_QP_CREATE_*).
const (
	QPCreateBlockMulticastLoopback QPCreateFlags = 1 << 1
	QPCreateScatterFCS             QPCreateFlags = 1 << 8
	QPCreateCVLANStripping         QPCreateFlags = 1 << 9
	QPCreatePCIWriteEndPadding     QPCreateFlags = 1 << 11
	QPCreateSQSigAll               QPCreateFlags = 1 << 12 // ioctl form only
)
