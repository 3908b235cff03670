package uapi

import (
	"encoding/binary"
	"net/netip"
)

// The next constants are sizes and offsets of the rxe queues, in bytes. The kernel rounds the size of a slot up to a
// power of two. RXEQueueBuf.Log2ElemSize contains the result.
const (
	RXESendWQESize      = 208 // size of a send request without its elements
	RXESendWQEDMAOffset = 184
	RXESendWQESGEOffset = 208 // offset of the elements, or of the inline data
	RXERecvWQESize      = 40
	RXERecvWQEDMAOffset = 16
	RXERecvWQESGEOffset = 40
	RXECQESize          = 64 // a WC of 48 bytes and padding

	RXEQueueProducerOffset = 128
	RXEQueueConsumerOffset = 256
	RXEQueueDataOffset     = 384
)

// RXENetworkType is the network type of an RXEAV (RXE_NETWORK_TYPE_*).
type RXENetworkType uint8

// RXEGlobalRoute is the GRH of an RXEAV (struct rxe_global_route).
type RXEGlobalRoute struct {
	DGID         [16]uint8 // union rxe_gid
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	Pad          uint8
}

// RXESockaddr is the address union of an RXEAV: a struct sockaddr_in or sockaddr_in6.
type RXESockaddr [28]byte

// The next constants are Linux address families.
const (
	afInet  = 2
	afInet6 = 10
)

// NewRXESockaddr returns the socket address of a. Port, flow label and scope are zero. The result is zero if a is not
// valid.
func NewRXESockaddr(a netip.Addr) (s RXESockaddr) {
	switch {
	case a.Is4():
		binary.NativeEndian.PutUint16(s[:], afInet)
		ip := a.As4()
		copy(s[4:], ip[:])
	case a.Is6():
		binary.NativeEndian.PutUint16(s[:], afInet6)
		ip := a.As16()
		copy(s[8:], ip[:])
	}
	return s
}

// Addr returns the IP address in s, without its scope. The result is not valid if the family of s is unknown.
func (s *RXESockaddr) Addr() netip.Addr {
	switch binary.NativeEndian.Uint16(s[:]) {
	case afInet:
		return netip.AddrFrom4([4]byte(s[4:]))
	case afInet6:
		return netip.AddrFrom16([16]byte(s[8:]))
	}
	return netip.Addr{}
}

// RXEAV is an address vector in the form that rxe stores (struct rxe_av).
type RXEAV struct {
	PortNum     uint8
	NetworkType RXENetworkType
	DMAC        [6]uint8
	GRH         RXEGlobalRoute
	SGIDAddr    RXESockaddr
	DGIDAddr    RXESockaddr
}

// RXESendWR is the work request in a send slot (struct rxe_send_wr).
type RXESendWR struct {
	WRID      uint64
	Reserved  uint32
	Opcode    WROpcode
	SendFlags SendFlags
	Ex        ImmData
	// WR is the C union. RDMA, Flush, Atomic, UD and MW return its variants.
	WR [15]uint64
}

// RXESendWRFlush is the part of RXESendWR for flushes (rxe_send_wr.wr.flush).
type RXESendWRFlush struct {
	RemoteAddr uint64
	Length     uint32 // bytes
	RKey       uint32
	Type       FlushPlacement
	Level      FlushSelectivity
	Pad        [6]uint8
}

// RXESendWRRDMA is the part of RXESendWR for RDMA reads, RDMA writes and
// atomic writes (rxe_send_wr.wr.rdma).
type RXESendWRRDMA struct {
	RemoteAddr uint64
	RKey       uint32
	Reserved   uint32
}

// RXESendWRAtomic is the part of RXESendWR for atomics
// (rxe_send_wr.wr.atomic).
type RXESendWRAtomic struct {
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	RKey       uint32
	Reserved   uint32
}

// RXESendWRUD is the part of RXESendWR for datagrams (rxe_send_wr.wr.ud).
type RXESendWRUD struct {
	RemoteQPN  uint32
	RemoteQKey uint32
	PKeyIndex  uint16
	Reserved   uint16
	AHNum      uint32 // RXECreateAHResp.AHNum; 0 if an old provider uses AV instead
	Pad        [4]uint32
	AV         RXEAV
}

// RXESendWRMW is the part of RXESendWR for binding a memory window
// (rxe_send_wr.wr.mw).
type RXESendWRMW struct {
	Addr   uint64
	Length uint64 // bytes
	MRLKey uint32
	MWRKey uint32
	RKey   uint32 // the window's new R_Key
	Access AccessFlags
}

// RXESGE is one scatter/gather element in a slot (struct rxe_sge).
type RXESGE struct {
	Addr   uint64
	Length uint32 // bytes
	LKey   uint32
}

// MMInfo contains the arguments of mmap for a queue (struct mminfo).
type MMInfo struct {
	Offset uint64 // for mmap of the uverbs file
	Size   uint32 // bytes
	Pad    uint32
}

// RXEDMAInfo describes the data of a slot (struct rxe_dma_info). After it come NumSGE elements of type RXESGE or, with
// SendInline, Length bytes of data. The data of WRAtomicWrite are always inline.
type RXEDMAInfo struct {
	Length    uint32 // bytes
	Resid     uint32 // number of remaining bytes; written by the engine
	CurSGE    uint32 // written by the engine
	NumSGE    uint32
	SGEOffset uint32 // written by the engine
	Reserved  uint32
}

// RXESendWQE is a slot of a send ring, without its data
// (struct rxe_send_wqe).
type RXESendWQE struct {
	WR RXESendWR
	// The engine writes Status and the next fields up to DMA.
	Status      uint32
	State       uint32
	IOVA        uint64
	Mask        uint32
	FirstPSN    uint32
	LastPSN     uint32
	AckLength   uint32
	SSN         uint32
	HasRDAtomic uint32
	DMA         RXEDMAInfo
}

// RXERecvWQE is a slot of a receive ring, without its elements
// (struct rxe_recv_wqe).
type RXERecvWQE struct {
	WRID     uint64
	Reserved uint32
	Padding  uint32
	DMA      RXEDMAInfo
}

// RXECreateAHResp is the driver's part of CreateAHResp
// (struct rxe_create_ah_resp).
type RXECreateAHResp struct {
	AHNum    uint32
	Reserved uint32
}

// RXECreateCQResp is the driver's part of CreateCQResp
// (struct rxe_create_cq_resp).
type RXECreateCQResp struct {
	MI MMInfo
}

// RXEResizeCQResp is the driver's part of ResizeCQResp
// (struct rxe_resize_cq_resp).
type RXEResizeCQResp struct {
	MI MMInfo
}

// RXECreateQPResp is the driver's part of CreateQPResp
// (struct rxe_create_qp_resp).
type RXECreateQPResp struct {
	RQMI MMInfo // zero if the QP uses an SRQ
	SQMI MMInfo
}

// RXECreateSRQResp is the driver's part of CreateSRQResp
// (struct rxe_create_srq_resp).
type RXECreateSRQResp struct {
	MI       MMInfo
	SRQNum   uint32
	Reserved uint32
}

// RXEModifySRQCmd is the driver's part of ModifySRQ
// (struct rxe_modify_srq_cmd).
type RXEModifySRQCmd struct {
	MMapInfoAddr uint64 // user address of the buffer for the MMInfo of a resized ring
}

// RXEQueueBuf is the header of every rxe ring (struct rxe_queue_buf). The slots start at RXEQueueDataOffset. Both the
// program and the driver map it. Access to the indices must be atomic, and a reader must not trust any field.
type RXEQueueBuf struct {
	Log2ElemSize  uint32 // log2 of the bytes per slot
	IndexMask     uint32 // number of slots - 1; the number of slots is a power of two
	Pad1          [30]uint32
	ProducerIndex uint32 // index of the next slot to fill
	Pad2          [31]uint32
	ConsumerIndex uint32 // index of the next slot to consume; if equal to ProducerIndex, the ring is empty
	Pad3          [31]uint32
}
