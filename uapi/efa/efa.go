// Package efa has the driver-private part of the user ABI of Amazon's Elastic Fabric Adapter, and the layout of its
// queues, for package driver/efa.
//
// The sources are efa-abi.h of the kernel, and efa_io_defs.h and efa_io_regs_defs.h of rdma-core 65. The structs have
// explicit padding, so that uapi.Decode and uapi.Encode apply to them. The tests compare sizes, offsets and values with
// those of the C compiler; see uapi/internal/genlayout.
//
// # Queues
//
// A program maps the queues of a queue pair from the command file:
//
//	doorbell page  two producer counts of 32 bits, stored by the program; the device compares 16 bits
//	send queue     TXMetaDesc and its data, in slots of 64 or 128 bytes
//	receive queue  RXDesc, 16 bytes for each scatter element
//
// A completion queue is an array of RXCDesc (or RXCDescEx) and TXCDesc. It has no producer index: the phase bit of an
// entry changes each time that the device goes through the array. The device knows no consumer index, unless the queue
// has a completion channel, and then a doorbell.
package efa

import "verbena/uapi"

// ABIVersion is the version of the ABI (EFA_UVERBS_ABI_VERSION).
const ABIVersion = 1

// AllocUcontextCmd is the driver's part of a GetContext (struct efa_ibv_alloc_ucontext_cmd).
type AllocUcontextCmd struct {
	SupportedCaps uint32
	Reserved20    [4]uint8
}

// The flags of AllocUcontextCmd.SupportedCaps: the limits that the library respects.
const (
	AllocUcontextCmdSuppCapsTXBatch uint32 = 1 << 0
	AllocUcontextCmdSuppCapsMinSQWR uint32 = 1 << 1
)

// AllocUcontextResp is the driver's part of a GetContextResp (struct efa_ibv_alloc_ucontext_resp).
type AllocUcontextResp struct {
	CompMask          uint32
	CmdsSuppUdataMask uint32
	SubCQsPerCQ       uint16
	InlineBufSize     uint16 // bytes
	MaxLLQSize        uint32 // bytes of a send queue
	MaxTXBatch        uint16 // bytes of requests for each doorbell, in units of 64; 0 means no limit
	MinSQWR           uint16
	InlineBufSizeEx   uint16 // bytes, in slots of 128 bytes
	ReservedB0        [2]uint8
}

// The flags of AllocUcontextResp.CmdsSuppUdataMask: the commands with a driver's part (enum
// efa_ibv_user_cmds_supp_udata).
const (
	UserCmdsSuppUdataQueryDevice uint32 = 1 << 0
	UserCmdsSuppUdataCreateAH    uint32 = 1 << 1
)

// AllocPDResp is the driver's part of an AllocPDResp (struct efa_ibv_alloc_pd_resp).
type AllocPDResp struct {
	CompMask   uint32
	PDN        uint16
	Reserved30 [2]uint8
}

// CreateCQ is the driver's part of a CreateCQ (struct efa_ibv_create_cq).
type CreateCQ struct {
	CompMask    uint32
	CQEntrySize uint32 // bytes
	NumSubCQs   uint16
	Flags       uint8
	Reserved58  [5]uint8
}

// The flags of CreateCQ.Flags.
const (
	CreateCQWithCompletionChannel uint8  = 1 << 0
	CreateCQWithSGID              uint8  = 1 << 1
	CreateCQWithSQComp64BitReqID  uint8  = 1 << 2
	CreateCQRespDBOff             uint32 = 1 << 0 // in CreateCQResp.CompMask: the queue has a doorbell
	RegsCQDBConsumerIndexMask     uint32 = 0xffff
	RegsCQDBCmdSNMask             uint32 = 3 << 29
	RegsCQDBArmMask               uint32 = 1 << 31
)

// CreateCQResp is the driver's part of a CreateCQResp (struct efa_ibv_create_cq_resp).
type CreateCQResp struct {
	CompMask   uint32
	Reserved20 [4]uint8
	QMmapKey   uint64
	QMmapSize  uint64
	CQIdx      uint16
	ReservedD0 [2]uint8
	DBOff      uint32
	DBMmapKey  uint64
}

// CreateQP is the driver's part of a CreateQP (struct efa_ibv_create_qp).
type CreateQP struct {
	CompMask     uint32
	RQRingSize   uint32 // bytes
	SQRingSize   uint32 // bytes
	DriverQPType uint32
	Flags        uint16
	SL           uint8
	Reserved98   [5]uint8
}

// QPDriverTypeSRD is the value of CreateQP.DriverQPType for a queue pair of type DRIVER (EFA_QP_DRIVER_TYPE_SRD).
const QPDriverTypeSRD uint32 = 0

// The flags of CreateQP.Flags.
const (
	CreateQPWithUnsolicitedWriteRecv uint16 = 1 << 0
	CreateQPWithSQ64BitReqID         uint16 = 1 << 1
)

// CreateQPResp is the driver's part of a CreateQPResp (struct efa_ibv_create_qp_resp).
type CreateQPResp struct {
	CompMask       uint32
	RQDBOffset     uint32 // offset in the page of the doorbells
	SQDBOffset     uint32
	LLQDescOffset  uint32 // offset in the first page of the send queue
	RQMmapKey      uint64
	RQMmapSize     uint64
	RQDBMmapKey    uint64
	SQDBMmapKey    uint64
	LLQDescMmapKey uint64
	SendSubCQIdx   uint16
	RecvSubCQIdx   uint16
	Reserved1E0    [4]uint8
}

// CreateAHResp is the driver's part of a CreateAHResp (struct efa_ibv_create_ah_resp).
type CreateAHResp struct {
	CompMask         uint32
	EFAAddressHandle uint16
	Reserved30       [2]uint8
}

// ExQueryDeviceResp is the driver's part of an ExQueryDeviceResp (struct efa_ibv_ex_query_device_resp).
type ExQueryDeviceResp struct {
	CompMask    uint32
	MaxSQWR     uint32
	MaxRQWR     uint32
	MaxSQSGE    uint16
	MaxRQSGE    uint16
	MaxRDMASize uint32 // bytes
	DeviceCaps  uint32
}

// The flags of ExQueryDeviceResp.DeviceCaps.
const (
	QueryDeviceCapsRDMARead             uint32 = 1 << 0
	QueryDeviceCapsRNRRetry             uint32 = 1 << 1
	QueryDeviceCapsCQNotifications      uint32 = 1 << 2
	QueryDeviceCapsCQWithSGID           uint32 = 1 << 3
	QueryDeviceCapsDataPolling128       uint32 = 1 << 4
	QueryDeviceCapsRDMAWrite            uint32 = 1 << 5
	QueryDeviceCapsUnsolicitedWriteRecv uint32 = 1 << 6
	QueryDeviceCapsCQWithExtMem         uint32 = 1 << 7
	QueryDeviceCapsCompCntr             uint32 = 1 << 8
	QueryDeviceCapsSQ64BitReqID         uint32 = 1 << 9
)

// The method of the object MR, and its attributes (enum efa_mr_methods, enum efa_query_mr_attrs).
const (
	IBMethodMRQuery uapi.MethodID = 1 << 12

	IBAttrQueryMRHandle           uapi.AttrID = 1 << 12
	IBAttrQueryMRRespICIDValidity uapi.AttrID = IBAttrQueryMRHandle + 1
	IBAttrQueryMRRespRecvICID     uapi.AttrID = IBAttrQueryMRHandle + 2
	IBAttrQueryMRRespRDMAReadICID uapi.AttrID = IBAttrQueryMRHandle + 3
	IBAttrQueryMRRespRDMARecvICID uapi.AttrID = IBAttrQueryMRHandle + 4
)
