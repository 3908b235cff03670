package uapi

// SGE is one scatter/gather element (struct ib_uverbs_sge).
type SGE struct {
	Addr   uint64
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is one send work request of PostSend (struct ib_uverbs_send_wr). The NumSGE elements of a request are in a
// separate array after all requests.
type SendWR struct {
	WRID      uint64
	NumSGE    uint32
	Opcode    WROpcode
	SendFlags SendFlags
	Ex        ImmData
	// WR is the C union. RDMA, Atomic and UD return its variants.
	WR [4]uint64
}

// SendWRRDMA is the part of SendWR for RDMA reads and writes
// (ib_uverbs_send_wr.wr.rdma).
type SendWRRDMA struct {
	RemoteAddr uint64
	RKey       uint32
	Reserved   uint32
}

// SendWRAtomic is the part of SendWR for atomics
// (ib_uverbs_send_wr.wr.atomic).
type SendWRAtomic struct {
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	RKey       uint32
	Reserved   uint32
}

// SendWRUD is the part of SendWR for datagrams (ib_uverbs_send_wr.wr.ud).
type SendWRUD struct {
	AH         uint32 // handle
	RemoteQPN  uint32
	RemoteQKey uint32
	Reserved   uint32
}

// PostSend posts send work requests (struct ib_uverbs_post_send). WRCount requests of WQESize bytes follow it, and then
// SGECount elements of type SGE. If WRCount is zero, the command is the doorbell of a driver with mapped queues.
type PostSend struct {
	Response uint64 // user address of PostSendResp
	QPHandle uint32
	WRCount  uint32
	SGECount uint32
	WQESize  uint32
}

// PostSendResp is the response to PostSend (struct ib_uverbs_post_send_resp).
type PostSendResp struct {
	BadWR uint32 // 1 + index of the failed request, or 0 for none
}

// RecvWR is one receive work request (struct ib_uverbs_recv_wr).
type RecvWR struct {
	WRID     uint64
	NumSGE   uint32
	Reserved uint32
}

// PostRecv posts receive work requests (struct ib_uverbs_post_recv). The layout is that of PostSend.
type PostRecv struct {
	Response uint64 // user address of PostRecvResp
	QPHandle uint32
	WRCount  uint32
	SGECount uint32
	WQESize  uint32
}

// PostRecvResp is the response to PostRecv (struct ib_uverbs_post_recv_resp).
type PostRecvResp struct {
	BadWR uint32
}

// PostSRQRecv posts receive work requests to a shared receive queue (struct ib_uverbs_post_srq_recv). The layout is
// that of PostSend.
type PostSRQRecv struct {
	Response  uint64 // user address of PostSRQRecvResp
	SRQHandle uint32
	WRCount   uint32
	SGECount  uint32
	WQESize   uint32
}

// PostSRQRecvResp is the response to PostSRQRecv (struct ib_uverbs_post_srq_recv_resp).
type PostSRQRecvResp struct {
	BadWR uint32
}

// WROpcode is the operation of a send work request
// (enum ib_uverbs_wr_opcode).
type WROpcode uint32

// The operations (IB_UVERBS_WR_*).
const (
	WRRDMAWrite               WROpcode = 0  // RDMA_WRITE
	WRRDMAWriteWithImm        WROpcode = 1  // RDMA_WRITE_WITH_IMM
	WRSend                    WROpcode = 2  // SEND
	WRSendWithImm             WROpcode = 3  // SEND_WITH_IMM
	WRRDMARead                WROpcode = 4  // RDMA_READ
	WRAtomicCmpAndSwp         WROpcode = 5  // ATOMIC_CMP_AND_SWP
	WRAtomicFetchAndAdd       WROpcode = 6  // ATOMIC_FETCH_AND_ADD
	WRLocalInv                WROpcode = 7  // LOCAL_INV
	WRBindMW                  WROpcode = 8  // BIND_MW
	WRSendWithInv             WROpcode = 9  // SEND_WITH_INV
	WRTSO                     WROpcode = 10 // TSO
	WRRDMAReadWithInv         WROpcode = 11 // RDMA_READ_WITH_INV
	WRMaskedAtomicCmpAndSwp   WROpcode = 12 // MASKED_ATOMIC_CMP_AND_SWP
	WRMaskedAtomicFetchAndAdd WROpcode = 13 // MASKED_ATOMIC_FETCH_AND_ADD
	WRFlush                   WROpcode = 14 // FLUSH
	WRAtomicWrite             WROpcode = 15 // ATOMIC_WRITE
)

// SendFlags are the options of a send work request (enum ibv_send_flags).
type SendFlags uint32

// The send options (IBV_SEND_*).
const (
	SendFence     SendFlags = 1 << 0 // waits for earlier READs and atomic operations
	SendSignaled  SendFlags = 1 << 1 // generates a completion
	SendSolicited SendFlags = 1 << 2 // raises a solicited event at the peer
	SendInline    SendFlags = 1 << 3 // the data are in the request
	SendIPCsum    SendFlags = 1 << 4 // computes IP and TCP or UDP checksums
)

// FlushPlacement is the level to which a FLUSH moves the data (enum ib_placement_type, IBA A19.4.1.1).
type FlushPlacement uint8

// The placements (IB_FLUSH_*).
const (
	FlushGlobal     FlushPlacement = 1 << 0 // visible to the peer's CPU and devices
	FlushPersistent FlushPlacement = 1 << 1 // survives power failure
)

// FlushSelectivity is the range that a FLUSH covers (enum ib_selectivity_level, IBA A19.4.1.2).
type FlushSelectivity uint8

// The selectivity levels (IB_FLUSH_*).
const (
	FlushRange FlushSelectivity = iota
	FlushMR                     // the whole memory region
)
