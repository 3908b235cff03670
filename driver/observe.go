package driver

import (
	"fmt"
	"net/netip"
	"time"

	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// Observer receives the failures of a device's queue pairs as values, each at the moment at which the device
// detects it, and the events of traced queues. A device without failures calls only StateChanged and TraceQueue.
//
// The methods are called on the thread that runs the queue pair, or on the thread that receives packets. That
// thread may hold locks: a method must not sleep, and must not call the device. Calls for different queue
// pairs may be concurrent.
type Observer interface {
	// CompletionFailed reports a completion with an error status, before the consumer can poll it.
	CompletionFailed(FailedCompletion)
	// RequestRefused reports a request of the peer that the responder does not execute (IBA 9.7.4.1).
	RequestRefused(RefusedRequest)
	// PacketsDropped reports received packets that the device drops without an answer. The device does not report
	// packets that are dropped in an ordinary recovery from a loss, such as duplicates.
	PacketsDropped(DroppedPackets)
	// PacketsUnsent reports packets that the network or the port did not accept.
	PacketsUnsent(UnsentPackets)
	// StateChanged reports each change of a queue pair's state, and its destruction.
	StateChanged(StateChange)
	// CompletionLost reports a completion that a completion queue had no room for. The completion queue and its queue
	// pairs then fail.
	CompletionLost(LostCompletion)
	// KeyEnded reports a key that no longer gives access to memory.
	KeyEnded(EndedKey)
	// TraceQueue returns the log for the events of a new queue, or nil if they are not traced. TraceQueue is called
	// again for existing queues by Device.RefreshTraces.
	TraceQueue(QueueRef) RequestLog
}

// QPRef identifies a queue pair in a report, with its connection.
type QPRef struct {
	Device string
	Num    uint32
	Type   ib.QPType
	State  ib.QPState
	// Context is nil for a consumer in this process. An Observer must not keep a Context: it leads to the memory of all
	// objects of the program.
	Context ib.UserContext
	// The connection. Local and Peer are zero, and DestQPN is 0, for a datagram service and before RTR.
	Local, Peer netip.Addr
	DestQPN     uint32
}

// Rule is the rule that a work request or a packet violates.
type Rule uint8

// The following constants are the rules. RuleUnknown means that the device did not determine the rule.
const (
	RuleUnknown       Rule = iota
	RuleKey                // no region or window has the key
	RuleDomain             // the key belongs to another protection domain
	RuleRight              // the key does not have the right
	RuleRange              // the range exceeds the range of the key
	RuleWindowQP           // the window is bound to another queue pair
	RuleRevoked            // the key is being invalidated or deregistered
	RuleMemory             // the key allows the access, and the process's memory refused it
	RuleOpcode             // the type of queue pair does not support the operation
	RuleInline             // the operation cannot be inline
	RuleInlineLength       // inline data exceed the queue pair's max_inline_data
	RuleSGEs               // more elements than the queue pair or shared receive queue allows
	RuleMessageLength      // the message exceeds the port's max_msg_sz
	RuleReadDepth          // a READ or atomic with max_rd_atomic 0
	RuleAddress            // the address handle is invalid or has no path
	RuleDatagram           // the datagram exceeds the path MTU
	RuleAtomicLength       // an atomic operation needs 8 bytes
	RuleFlushType          // invalid placement or level of a FLUSH
	RuleSequence           // the opcode does not follow the one before it
	RuleQPRight            // the queue pair's access flags do not allow the operation
	RuleAlignment          // the address of an atomic operation is not a multiple of 8
	RuleRespDepth          // more READs and atomics outstanding than max_dest_rd_atomic
	RulePacketLength       // the packet's length does not fit the path MTU
	RuleWriteLength        // the bytes of an RDMA WRITE do not match its RETH
	RuleReceiveLength      // the message exceeds the receive
	RuleNoReceive          // no receive is posted
	RuleInjected           // a fault rule makes the receiver seem not ready
	RuleSRQ                // XRC: no shared receive queue of the target's domain has the number
	RuleInvalidate         // the key of an invalidation cannot be invalidated
	RulePSN                // unreliable connection: packets before it are missing
	NumRules
)

// Violation is a violated rule with its values. A value is 0 if the rule does not need it.
type Violation struct {
	Rule   Rule
	Key    uint32
	Right  ib.AccessFlags // the missing right, or the rights needed
	Addr   uint64         // start of the range that was asked for
	Window bool           // the key is of a memory window
	Length uint64         // bytes, elements or operations that were asked for
	First  uint64         // start of the key's range
	Limit  uint64         // bytes, elements or operations that are allowed; the length of the key's range
	More   bool           // Length is a lower bound: the rest of the message has not arrived
}

// ForeignPSN counts answers with a PSN that the requester has never sent. PSN is that of the last one. A peer that
// expects other PSNs than the requester sends them.
type ForeignPSN struct {
	PSN roce.PSN
	N   int
}

// FailedCompletion is a completion with an error status.
type FailedCompletion struct {
	Time   time.Time
	QP     QPRef // with the state before the failure
	Recv   bool  // a receive; otherwise a send work request
	WRID   uint64
	Opcode uapi.WROpcode // only for a send work request
	Status uapi.WCStatus
	// Length is the length of a send work request's message in bytes.
	Length uint64
	// PSN is the oldest PSN without an acknowledgement. Attempts is the number of its transmissions, without probes.
	// Since is the time since which an acknowledgement is missing. Attempts is 0 if no packet was sent.
	PSN      roce.PSN
	Attempts int
	Since    time.Time
	// Foreign describes the answers with a PSN that this queue pair has never sent, from the moment PSN became the oldest.
	Foreign ForeignPSN
	// Acknowledged is set if the peer has acknowledged a packet of this connection before.
	Acknowledged bool
	// Timeout is the local ACK timeout of the connection.
	Timeout time.Duration
	// Violation is the violated rule of a request that failed locally.
	Violation Violation
}

// RefusedRequest is a request packet that a responder did not execute.
type RefusedRequest struct {
	Time   time.Time
	QP     QPRef // the responder, with the state before the refusal
	PSN    roce.PSN
	Opcode roce.Opcode
	// Late is set if the packet was accepted, and its data could not be stored or read afterwards. Opcode is then unknown.
	Late bool
	// Syndrome is the syndrome of the NAK or RNR NAK, if Answered is set. An unreliable service does not answer.
	Syndrome  roce.Syndrome
	Answered  bool
	Violation Violation
}

// DropReason is the reason for which a device drops a packet.
type DropReason uint8

// The following constants are the reasons.
const (
	DropMalformed DropReason = iota // length or headers do not fit the opcode
	DropNoQP                        // no queue pair has the number
	DropService                     // the opcode belongs to another transport service
	DropPKey                        // wrong partition key
	DropState                       // the queue pair does not receive in its state
	DropSource                      // the packet is not from the connection's peer
	DropQKey                        // wrong Q_Key
	DropPort                        // the port is down
	DropStalled                     // the program's memory does not respond
	NumDropReasons
)

// DroppedPackets is a run of packets to one queue pair that were dropped for the same reason.
type DroppedPackets struct {
	Time    time.Time
	QP      QPRef // Context is nil, and only Device and Num are set, if no queue pair has the number
	Source  netip.Addr
	Reason  DropReason
	Packets int
	// Opcode and PSN belong to the first packet, and SourceQP is the sender's number in it; 0 except for a datagram.
	Opcode   roce.Opcode
	PSN      roce.PSN
	SourceQP uint32
}

// UnsentPackets is a run of packets that were not sent.
type UnsentPackets struct {
	Time    time.Time
	QP      QPRef
	Packets int
	// Longest is the length of the longest packet in bytes, with all headers. Err is the error of the network, or nil if
	// the port is down. MTU is the MTU of the interface in bytes.
	Longest int
	Err     error
	MTU     int
}

// StateReason is the reason for a change of a queue pair's state.
type StateReason uint8

// The following constants are the reasons.
const (
	ByProgram     StateReason = iota // its program has modified it
	BySend                           // a work request failed
	ByPeer                           // a request of the peer failed
	ByDevice                         // the device is in error, or is being reset
	ByContext                        // the context of its program ends
	ByCQ                             // a completion was lost
	ByQueueMemory                    // its program has taken the memory of its queues away
	ByDestroy                        // the queue pair was destroyed
	numStateReasons
)

var stateReasons = [numStateReasons]string{
	ByProgram: "its program has modified it", BySend: "a work request failed", ByPeer: "a request of its peer failed",
	ByDevice: "the device is in error, or is being reset", ByContext: "the context of its program ends",
	ByCQ:          "a completion was lost: a completion queue has no room, or is gone",
	ByQueueMemory: "its program has taken the memory of its queues away", ByDestroy: "it was destroyed",
}

func (r StateReason) String() string {
	if r < numStateReasons {
		return stateReasons[r]
	}
	return fmt.Sprintf("StateReason(%d)", uint8(r))
}

// StateCause is the reason for a change of state. Status is the status of the failed request for BySend and ByPeer.
type StateCause struct {
	Reason StateReason
	Status uapi.WCStatus
}

func (c StateCause) String() string {
	if c.Reason == BySend || c.Reason == ByPeer {
		return c.Reason.String() + ": " + c.Status.String()
	}
	return c.Reason.String()
}

// StateChange is a change of a queue pair's state. To equals QP.State. After ByDestroy there are no further
// reports about the queue pair.
type StateChange struct {
	Time     time.Time
	QP       QPRef
	From, To ib.QPState
	Cause    StateCause
}

// LostCompletion is a completion that was lost.
type LostCompletion struct {
	Time   time.Time
	QP     QPRef
	Recv   bool
	WRID   uint64
	Status uapi.WCStatus // the status that the consumer does not see
	// Entries is the capacity of the completion queue, and Waiting is the number of completions in it.
	Entries, Waiting int
}

// KeyEnd is the reason for which a key does not give access to memory any more.
type KeyEnd uint8

// The following constants are the reasons.
const (
	RegionDeregistered KeyEnd = iota // the region was deregistered
	RegionChanged                    // the region has another key or other rights (ibv_rereg_mr)
	Invalidated                      // by a LOCAL_INV, or by a SEND with Invalidate from the peer
	WindowRebound                    // the window was bound again
	WindowDeallocated                // the window was deallocated
	NumKeyEnds
)

// EndedKey is a key that was taken away.
type EndedKey struct {
	Time    time.Time
	Device  string
	Context ib.UserContext // nil for a consumer in this process
	Key     uint32
	How     KeyEnd
}
