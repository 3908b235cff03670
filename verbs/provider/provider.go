// Package provider defines the interface between package verbs and the code for one kind of device. Such code is called
// a provider, as in libibverbs. A provider creates queues with driver-private data in the commands. A provider also
// reads and writes work requests and completions in the layout of its device.
//
// Each provider is a subpackage of this package, and is listed in [verbena/verbs]. Package verbs ensures that only one
// goroutine at a time uses a queue.
package provider

import (
	"errors"

	"verbena/uapi"
	"verbena/verbs/internal/cmd"
)

// Provider creates the queues of one kind of device.
type Provider interface {
	// Name returns the name of the provider, such as rxe.
	Name() string
	// Matches reports whether the provider supports a device.
	Matches(i Info) bool
	// DriverID returns the number of the kernel's driver, for ioctls.
	DriverID() uapi.DriverID

	// CreateCQ creates a completion queue. CreateCQ and the following methods may sleep.
	CreateCQ(d *cmd.Device, req uapi.CreateCQ) (CQ, uapi.CreateCQResp, error)
	// CreateQP creates a queue pair.
	CreateQP(d *cmd.Device, req uapi.CreateQP) (QP, uapi.CreateQPResp, error)
	// CreateSRQ creates a shared receive queue.
	CreateSRQ(d *cmd.Device, req uapi.CreateSRQ) (SRQ, uapi.CreateSRQResp, error)
	// CreateAH creates an address handle.
	CreateAH(d *cmd.Device, pd uint32, attr uapi.AHAttr) (AH, error)
}

// Opener is a Provider with state for each open device.
type Opener interface {
	// Open returns the provider of one open device. resp is the driver-private response of GetContext, in
	// ContextResponse bytes.
	Open(d *cmd.Device, resp []byte) (Provider, error)
}

// ContextResponse is the room for the driver-private response of GetContext, in bytes.
const ContextResponse = 64

// Info is the known data of a device before it is opened.
type Info struct {
	Name   string        // such as rxe0
	Driver uapi.DriverID // DriverUnknown if unknown
	ABI    int           // version of the driver-private part of the user ABI
}

// ErrFull is the error of a post to a full queue.
var ErrFull = errors.New("the queue is full")

// CQ is a completion queue in memory that the device writes. Only Resize and Close sleep.
type CQ interface {
	// Poll moves at most len(wc) completions, oldest first, to wc and returns their number.
	Poll(wc []WC) int
	// Resize changes the capacity to at least entries, and returns the new capacity. Completions remain in the queue.
	Resize(entries int) (int, error)
	// Close removes the mapping. The queue has already been destroyed, or its device has been removed.
	Close() error
}

// QP is a queue pair with queues in memory that the device reads. Only Close sleeps.
type QP interface {
	// Send adds a work request to the queue. From then on the device may read the request. Send returns ErrFull if the
	// queue is full.
	Send(wr *SendWR) error
	// Ring rings the doorbell for the added work requests.
	Ring() error
	// Recv adds a work request to the receive queue. Recv returns ErrFull if the queue is full.
	Recv(wr *RecvWR) error
	// Reset drops outstanding requests. Reset is called after the queue pair has been moved to RESET.
	Reset()
	// Close removes the mappings.
	Close() error
}

// SRQ is a shared receive queue. Only Close and Modify sleep.
type SRQ interface {
	Recv(wr *RecvWR) error
	// Modify changes the capacity, the limit, or both. Modify may sleep.
	Modify(req uapi.ModifySRQ) error
	Close() error
}

// AH is an address handle: the handle in commands, and the number in work requests.
type AH struct{ Handle, Num uint32 }

// SGE is a range of registered memory.
type SGE struct {
	Addr   uint64
	Length uint32 // in bytes
	LKey   uint32
}

// SendWR is a work request for a send queue. Package verbs has checked it as far as possible without the provider.
type SendWR struct {
	ID     uint64
	Opcode uapi.WROpcode // enum ibv_wr_opcode
	Flags  uapi.SendFlags
	SGE    []SGE  // the memory to send from, or to read into
	Inline []byte // data that are sent in place of SGE; Send copies the data to the queue
	Imm    uint32
	Key    uint32 // to invalidate

	RemoteAddr       uint64
	RKey             uint32
	CompareAdd, Swap uint64

	AH                    AH
	RemoteQPN, RemoteQKey uint32

	Bind  Bind
	Flush Flush
}

// Bind holds the parameters of a bind of a memory window.
type Bind struct {
	WindowKey uint32 // key of the window
	NewKey    uint32
	LKey      uint32 // key of the region
	Addr      uint64
	Length    uint64 // in bytes
	Access    uapi.AccessFlags
}

// Flush holds the parameters of a FLUSH: range and placement.
type Flush struct {
	Length    uint32 // in bytes
	Placement uapi.FlushPlacement
	Level     uapi.FlushSelectivity
}

// RecvWR is a work request for a receive queue.
type RecvWR struct {
	ID  uint64
	SGE []SGE // the memory for a received message
}

// WC is a completion. (struct ibv_wc)
type WC struct {
	ID        uint64
	Status    Status
	Opcode    uapi.WCOpcode // undefined unless Status is Success
	ByteLen   uint32        // length of the received or read data
	QPN       uint32
	SrcQPN    uint32 // for datagrams
	Flags     uapi.WCFlags
	Imm       uint32 // with WithImm
	Key       uint32 // the invalidated key, if WithInvalidate is set
	VendorErr uint32
	PKeyIndex uint16
}

// Status is the status of a completed work request (enum ibv_wc_status). All values except Success are errors.
type Status uint32

// String returns the name of the status.
func (s Status) String() string { return uapi.WCStatus(s).String() }

// Error describes the status.
func (s Status) Error() string {
	if int(s) < len(statusDescriptions) && statusDescriptions[s] != "" {
		return statusDescriptions[s]
	}
	return s.String()
}

var statusDescriptions = [...]string{
	uapi.WCSuccess:        "success",
	uapi.WCLocLenErr:      "local length error: a message does not fit what was posted for it",
	uapi.WCLocQPOpErr:     "local QP operation error: the request is malformed, or the QP has no right to it",
	uapi.WCLocEECOpErr:    "local EE context operation error",
	uapi.WCLocProtErr:     "local protection error: a local key, its range or its rights are wrong",
	uapi.WCWRFlushErr:     "work request flushed: the QP was in the error state",
	uapi.WCMWBindErr:      "memory window bind error: the range or the rights exceed the region, or it was registered without BindWindows",
	uapi.WCBadRespErr:     "bad response of the peer",
	uapi.WCLocAccessErr:   "local access error: the peer's request broke the rights of local memory",
	uapi.WCRemInvReqErr:   "remote invalid request: the peer cannot do this request, or has no room for the message",
	uapi.WCRemAccessErr:   "remote access error: a remote key, its range or its rights are wrong",
	uapi.WCRemOpErr:       "remote operation error: the peer's QP failed",
	uapi.WCRetryExcErr:    "transport retries exceeded: the peer does not answer",
	uapi.WCRNRRetryExcErr: "RNR retries exceeded: the peer has posted no receive",
	uapi.WCRemAbortErr:    "the operation was aborted by the peer",
	uapi.WCFatalErr:       "fatal error of the device",
	uapi.WCRespTimeoutErr: "response time-out",
	uapi.WCGeneralErr:     "general error",
}
