package efa

// SendOpType is the operation of a send request (enum efa_io_send_op_type).
type SendOpType uint8

// The operations (EFA_IO_*).
const (
	IOSend      SendOpType = 0
	IORDMARead  SendOpType = 1
	IORDMAWrite SendOpType = 2
)

// The values of CDescCommonQTypeMask in CDescCommon.Flags (enum efa_io_queue_type).
const (
	IOSendQueue uint8 = 1
	IORecvQueue uint8 = 2
)

// CompStatus is the status of a completion (enum efa_io_comp_status).
type CompStatus uint8

// The statuses (EFA_IO_COMP_STATUS_*).
const (
	IOCompStatusOK                         CompStatus = 0
	IOCompStatusFlushed                    CompStatus = 1
	IOCompStatusLocalErrorQPInternalError  CompStatus = 2
	IOCompStatusLocalErrorUnsupportedOp    CompStatus = 3
	IOCompStatusLocalErrorInvalidAH        CompStatus = 4
	IOCompStatusLocalErrorInvalidLKey      CompStatus = 5
	IOCompStatusLocalErrorBadLength        CompStatus = 6
	IOCompStatusRemoteErrorBadAddress      CompStatus = 7
	IOCompStatusRemoteErrorAbort           CompStatus = 8
	IOCompStatusRemoteErrorBadDestQPN      CompStatus = 9
	IOCompStatusRemoteErrorRNR             CompStatus = 10
	IOCompStatusRemoteErrorBadLength       CompStatus = 11
	IOCompStatusRemoteErrorBadStatus       CompStatus = 12
	IOCompStatusLocalErrorUnrespRemote     CompStatus = 13
	IOCompStatusRemoteErrorUnknownPeer     CompStatus = 14
	IOCompStatusLocalErrorUnreachRemote    CompStatus = 15
	IOCompStatusRemoteErrorFeatureMismatch CompStatus = 18
)

// The limits of a send request.
const (
	IOTXDescNumBufs          = 2  // gather elements of a SEND
	IOTXDescNumRDMABufs      = 1  // gather or scatter elements of an RDMA READ or WRITE
	IOTXDescInlineMaxSize    = 32 // bytes, in slots of 64 bytes
	IOTXDescInlineMaxSize128 = 80 // bytes, in slots of 128 bytes
)

// TXMetaDesc is the start of a send request (struct efa_io_tx_meta_desc).
type TXMetaDesc struct {
	ReqID         uint16
	Ctrl1         uint8
	Ctrl2         uint8
	DestQPNum     uint16
	Length        uint16 // bytes of inline data, or number of elements
	ImmediateData uint32
	AH            uint16
	Ctrl3         uint8
	Reserved      uint8
	QKey          uint32
	Reserved2     [6]uint8
	ReqIDEx       [3]uint16
}

// The masks of TXMetaDesc.Ctrl1 (IOTXMetaDescOpTypeMask to IOTXMetaDescMetaDescMask) and of Ctrl2.
const (
	IOTXMetaDescOpTypeMask        uint8 = 0x0f
	IOTXMetaDescHasImmMask        uint8 = 1 << 4
	IOTXMetaDescInlineMsgMask     uint8 = 1 << 5
	IOTXMetaDescMetaExtensionMask uint8 = 1 << 6
	IOTXMetaDescMetaDescMask      uint8 = 1 << 7

	IOTXMetaDescPhaseMask   uint8 = 1 << 0
	IOTXMetaDescFirstMask   uint8 = 1 << 2
	IOTXMetaDescLastMask    uint8 = 1 << 3
	IOTXMetaDescCompReqMask uint8 = 1 << 4
)

// TXBufDesc is a gather element (struct efa_io_tx_buf_desc).
type TXBufDesc struct {
	Length    uint32
	LKey      uint32
	BufAddrLo uint32
	BufAddrHi uint32
}

// IOTXBufDescLKeyMask is the mask of TXBufDesc.LKey.
const IOTXBufDescLKeyMask uint32 = 1<<24 - 1

// RemoteMemAddr is the memory at the peer (struct efa_io_remote_mem_addr).
type RemoteMemAddr struct {
	Length    uint32
	RKey      uint32
	BufAddrLo uint32
	BufAddrHi uint32
}

// The next constants are the sizes of a slot of the send queue, and the offset of the data in a slot, in bytes (struct
// efa_io_tx_wqe, struct efa_io_tx_wqe_128). The data of an RDMA READ or WRITE are a RemoteMemAddr and a TXBufDesc or
// inline data. The data of a SEND are elements of TXBufDesc or inline data.
const (
	TXWQESize       = 64
	TXWQE128Size    = 128
	TXWQEDataOffset = 32
)

// RXDesc is a scatter element of a receive (struct efa_io_rx_desc).
type RXDesc struct {
	BufAddrLo uint32
	BufAddrHi uint32
	ReqID     uint16
	Length    uint16
	LKeyCtrl  uint32
}

// The masks of RXDesc.LKeyCtrl.
const (
	IORXDescLKeyMask  uint32 = 1<<24 - 1
	IORXDescFirstMask uint32 = 1 << 30
	IORXDescLastMask  uint32 = 1 << 31
)

// CDescCommon is the start of a completion (struct efa_io_cdesc_common).
type CDescCommon struct {
	ReqID  uint16
	Status CompStatus
	Flags  uint8
	QPNum  uint16
}

// The masks of CDescCommon.Flags.
const (
	IOCDescCommonPhaseMask       uint8 = 1 << 0
	IOCDescCommonQTypeMask       uint8 = 3 << 1
	IOCDescCommonHasImmMask      uint8 = 1 << 3
	IOCDescCommonOpTypeMask      uint8 = 7 << 4
	IOCDescCommonUnsolicitedMask uint8 = 1 << 7
)

// TXCDesc is the completion of a send request (struct efa_io_tx_cdesc).
type TXCDesc struct {
	Common   CDescCommon
	ReqIDEx  [3]uint16
	Reserved [4]uint8
}

// RXCDesc is the completion of a receive (struct efa_io_rx_cdesc).
type RXCDesc struct {
	Common   CDescCommon
	Length   uint16 // low 16 bits
	AH       uint16 // handle of the sender's address
	SrcQPNum uint16
	Imm      uint32
}

// UnknownAH is the value of RXCDesc.AH if the domain of the receiver has no handle of the sender's address.
const UnknownAH uint16 = 0xffff

// RXCDescEx is the completion of a receive in a queue with entries of 32 bytes (struct efa_io_rx_cdesc_ex). U is the
// address of a sender with UnknownAH, or, of an RDMA WRITE, the high 16 bits of the length.
type RXCDescEx struct {
	Base RXCDesc
	U    [16]uint8
}
