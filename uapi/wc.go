package uapi

// WC is one work completion (struct ib_uverbs_wc). A WC is an entry of PollCQResp. A WC is also a slot of an rxe
// completion ring, in which it is padded to RXECQESize bytes.
type WC struct {
	WRID         uint64
	Status       WCStatus
	Opcode       WCOpcode // undefined unless Status is WCSuccess
	VendorErr    uint32
	ByteLen      uint32
	Ex           ImmData // valid with WCFlagWithImm or WCFlagWithInvalidate
	QPNum        uint32
	SrcQP        uint32
	WCFlags      WCFlags
	PKeyIndex    uint16
	SLID         uint16
	SL           uint8
	DLIDPathBits uint8
	PortNum      uint8
	Reserved     uint8
}

// WCStatus is the outcome of a work request (enum ibv_wc_status).
type WCStatus uint32

// The completion statuses (IBV_WC_*).
const (
	WCSuccess        WCStatus = iota // success
	WCLocLenErr                      // local length error
	WCLocQPOpErr                     // local QP operation error
	WCLocEECOpErr                    // local EE context operation error
	WCLocProtErr                     // local protection error
	WCWRFlushErr                     // work request flushed
	WCMWBindErr                      // memory window bind error
	WCBadRespErr                     // bad response
	WCLocAccessErr                   // local access error
	WCRemInvReqErr                   // remote invalid request
	WCRemAccessErr                   // remote access error
	WCRemOpErr                       // remote operation error
	WCRetryExcErr                    // transport retry counter exceeded
	WCRNRRetryExcErr                 // RNR retry counter exceeded
	WCLocRDDViolErr                  // local RDD violation
	WCRemInvRDReqErr                 // remote invalid RD request
	WCRemAbortErr                    // remote aborted
	WCInvEECNErr                     // invalid EE context number
	WCInvEECStateErr                 // invalid EE context state
	WCFatalErr                       // fatal error
	WCRespTimeoutErr                 // response timeout
	WCGeneralErr                     // general error
	// WCTMErr is a status of the C library, not of the kernel.
	WCTMErr // tag matching error
	// WCTMRndvIncomplete is a status of the C library, not of the kernel.
	WCTMRndvIncomplete // tag matching rendezvous incomplete
)

// WCOpcode is the operation that completed (enum ib_uverbs_wc_opcode, enum ibv_wc_opcode).
type WCOpcode uint32

// The completion opcodes (IB_UVERBS_WC_*, IBV_WC_*). Receive opcodes have the bit WCRecv set.
const (
	WCSend        WCOpcode = 0 // SEND
	WCRDMAWrite   WCOpcode = 1 // RDMA_WRITE
	WCRDMARead    WCOpcode = 2 // RDMA_READ
	WCCompSwap    WCOpcode = 3 // COMP_SWAP
	WCFetchAdd    WCOpcode = 4 // FETCH_ADD
	WCBindMW      WCOpcode = 5 // BIND_MW
	WCLocalInv    WCOpcode = 6 // LOCAL_INV
	WCTSO         WCOpcode = 7 // TSO
	WCFlush       WCOpcode = 8 // FLUSH
	WCAtomicWrite WCOpcode = 9 // ATOMIC_WRITE

	WCRecv            WCOpcode = 1 << 7     // RECV
	WCRecvRDMAWithImm WCOpcode = WCRecv + 1 // RECV_RDMA_WITH_IMM
)

// WCFlags qualify a completion, in the kernel's numbering (enum ib_wc_flags).
//
// The kernel copies the flags to user space unchanged, although libibverbs uses different numbers from bit 2 on. For a
// C program, a WCFlagWithInvalidate from the kernel's rxe is IBVWCIPCsumOK. A driver that writes completions for C
// programs should write IBVWCFlags.
type WCFlags uint32

// The completion flags (IB_WC_*).
const (
	WCFlagGRH                WCFlags = 1 << 0
	WCFlagWithImm            WCFlags = 1 << 1
	WCFlagWithInvalidate     WCFlags = 1 << 2
	WCFlagIPCsumOK           WCFlags = 1 << 3
	WCFlagWithSMAC           WCFlags = 1 << 4
	WCFlagWithVLAN           WCFlags = 1 << 5
	WCFlagWithNetworkHdrType WCFlags = 1 << 6
)

// IBVWCFlags qualify a completion, in the numbering of libibverbs
// (enum ibv_wc_flags).
type IBVWCFlags uint32

// The completion flags of libibverbs (IBV_WC_*).
const (
	IBVWCGRH         IBVWCFlags = 1 << 0
	IBVWCWithImm     IBVWCFlags = 1 << 1
	IBVWCIPCsumOK    IBVWCFlags = 1 << 2
	IBVWCWithInv     IBVWCFlags = 1 << 3
	IBVWCTMSyncReq   IBVWCFlags = 1 << 4
	IBVWCTMMatch     IBVWCFlags = 1 << 5
	IBVWCTMDataValid IBVWCFlags = 1 << 6
)
