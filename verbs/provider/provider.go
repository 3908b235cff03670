// Package provider is what package verbs asks of the code for a kind of device, a provider as libibverbs has them: to make queues by
// commands with parts of the device's own, and to know how work requests and completions lie in the queues.
//
// A provider is a package below this one, and is listed in [verbena/verbs]. Its queues are used by one goroutine at a time; package
// verbs sees to that.
package provider

import (
	"errors"

	"verbena/uapi"
	"verbena/verbs/internal/cmd"
)

// Provider makes the queues of one kind of device.
type Provider interface {
	// Name is that of the provider, such as rxe.
	Name() string
	// Matches reports whether the provider knows a device.
	Matches(i Info) bool
	// DriverID is that of the kernel's driver, which ioctls name.
	DriverID() uapi.DriverID

	// CreateCQ makes a completion queue as req says. It may sleep, as all that follow.
	CreateCQ(d *cmd.Device, req uapi.CreateCQ) (CQ, uapi.CreateCQResp, error)
	// CreateQP makes a queue pair as req says.
	CreateQP(d *cmd.Device, req uapi.CreateQP) (QP, uapi.CreateQPResp, error)
	// CreateSRQ makes a shared receive queue as req says.
	CreateSRQ(d *cmd.Device, req uapi.CreateSRQ) (SRQ, uapi.CreateSRQResp, error)
	// CreateAH makes an address handle.
	CreateAH(d *cmd.Device, pd uint32, attr uapi.AHAttr) (AH, error)
}

// Info is what is known of a device before it is opened.
type Info struct {
	Name   string        // such as rxe0
	Driver uapi.DriverID // DriverUnknown where nothing says it
	ABI    int           // the version of the driver's part of the user ABI
}

// ErrFull is the error of a post to a queue without room.
var ErrFull = errors.New("the queue is full")

// CQ is a completion queue in memory that the device writes. No method but Resize and Close sleeps.
type CQ interface {
	// Poll takes the oldest completions, at most len(wc), and returns how many.
	Poll(wc []WC) int
	// Resize makes room for at least so many entries, and returns for how many. What is in the queue stays.
	Resize(entries int) (int, error)
	// Close ends the mapping. The queue is destroyed already, or has gone with its device.
	Close() error
}

// QP is a queue pair whose queues lie in memory that the device reads. No method but Close sleeps.
type QP interface {
	// Send adds a work request, which the device may look at from then on. ErrFull without room.
	Send(wr *SendWR) error
	// Ring announces what was added.
	Ring() error
	// Recv adds a work request to the receive queue. ErrFull without room.
	Recv(wr *RecvWR) error
	// Reset forgets what is outstanding: the queue pair was taken to RESET.
	Reset()
	// Close ends the mappings.
	Close() error
}

// SRQ is a shared receive queue. No method but Close and Resize sleeps.
type SRQ interface {
	Recv(wr *RecvWR) error
	// Modify changes the size, the limit, or both. It may sleep.
	Modify(req uapi.ModifySRQ) error
	Close() error
}

// AH is an address handle: its handle, and a number by which work requests name it.
type AH struct{ Handle, Num uint32 }

// SGE is a range of registered memory.
type SGE struct {
	Addr   uint64
	Length uint32 // in bytes
	LKey   uint32
}

// SendWR is a work request for a send queue, checked as far as package verbs can.
type SendWR struct {
	ID     uint64
	Opcode Opcode
	Flags  SendFlags
	SGE    []SGE  // what is sent, or read into
	Inline []byte // what is sent instead, copied into the queue
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

// Bind says what a memory window is bound to.
type Bind struct {
	WindowKey uint32 // of the window
	NewKey    uint32
	LKey      uint32 // of the region
	Addr      uint64
	Length    uint64 // in bytes
	Access    uapi.AccessFlags
}

// Flush says how far what was written is to have got.
type Flush struct {
	Length    uint32 // in bytes
	Placement uapi.FlushPlacement
	Level     uapi.FlushSelectivity
}

// RecvWR is a work request for a receive queue.
type RecvWR struct {
	ID  uint64
	SGE []SGE // where a message goes
}

// WC is a completion. (struct ibv_wc)
type WC struct {
	ID        uint64
	Status    Status
	Opcode    WCOpcode // undefined unless Status is Success
	ByteLen   uint32   // of what was received, or read
	QPN       uint32
	SrcQPN    uint32 // of datagrams
	Flags     WCFlags
	Imm       uint32 // with WithImm
	Key       uint32 // that was invalidated, with WithInvalidate
	VendorErr uint32
	PKeyIndex uint16
}

// Opcode is what a work request does (enum ibv_wr_opcode).
type Opcode = uapi.WROpcode

// SendFlags are the flags of a work request (enum ibv_send_flags).
type SendFlags = uapi.SendFlags

// WCOpcode is what a completed work request did (enum ibv_wc_opcode).
type WCOpcode = uapi.WCOpcode

// WCFlags say which fields of a WC are valid (enum ibv_wc_flags).
type WCFlags = uapi.WCFlags

// Status is how a work request ended (enum ibv_wc_status). All but Success are errors.
type Status uint32

// String is the field's name of the status.
func (s Status) String() string { return uapi.WCStatus(s).String() }

// Error describes the status in words.
func (s Status) Error() string {
	if int(s) < len(descriptions) && descriptions[s] != "" {
		return descriptions[s]
	}
	return s.String()
}

var descriptions = [...]string{
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
