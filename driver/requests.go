package driver

import (
	"time"

	"verbena/ib"
	"verbena/uapi"
)

// RequestLog receives the events of one traced queue. Add copies the event. Calls may be concurrent. Add must not
// sleep, and must not call the device.
type RequestLog interface{ Add(*RequestEvent) }

// QueueKind is the kind of a traced queue.
type QueueKind uint8

// The following constants are the kinds.
const (
	QueuePair QueueKind = iota
	CompletionQueue
	SharedReceiveQueue
)

// QueueRef describes a queue that may be traced.
type QueueRef struct {
	Kind    QueueKind
	QP      QPRef // for a completion queue or a shared receive queue, only Device, Num and Context are set
	Entries int   // capacity of a completion queue or a shared receive queue
	Time    time.Time
	Log     RequestLog // the present log of the queue, or nil
	// The logs of the completion queues and of the shared receive queue of a queue pair, or nil.
	SendCQ, RecvCQ, SRQ RequestLog
}

// RequestEventKind is the kind of a RequestEvent.
type RequestEventKind uint8

// The following constants are the kinds. The fields Time and Kind are always set.
const (
	// RequestsWait: the requests up to Number were posted at Began, and wait for their first packet.
	RequestsWait RequestEventKind = iota + 1
	// RequestStarted: the first packet of a send work request is sent. Began is the time of the post, or 0 if an
	// earlier RequestsWait has it.
	RequestStarted
	// RequestDone: a send work request has ended. Began is the time of its first packet, or 0 without a packet.
	RequestDone
	// ReceiveDone: a receive has ended. Began is the time of the first packet of its message.
	ReceiveDone
	// RequestsRepeated: everything from PSN on is sent again. Cause is the reason, Count the remaining retries.
	RequestsRepeated
	// RequestsDelayed: the peer has no receive. The requests are sent again after Count microseconds.
	RequestsDelayed
	// QueueArmed: the next completion notifies the consumer. Depth completions are in the queue. FlagSolicited means
	// that only a solicited or failed completion notifies.
	QueueArmed
	// QueuePolled: the completions up to Consumed are no longer in the queue.
	QueuePolled
	// QueueEvent: the asynchronous event Count was raised.
	QueueEvent
	// QueueDestroyed: the queue no longer exists.
	QueueDestroyed
)

// RepeatCause is the reason for a retransmission.
type RepeatCause uint8

// The following constants are the reasons.
const (
	RepeatNAK     RepeatCause = iota // the peer has missed a packet
	RepeatTimeout                    // no acknowledgement within the local ACK timeout
	RepeatProbe                      // no acknowledgement yet: one packet is sent again
	NumRepeatCauses
)

// Flags of a RequestEvent.
const (
	FlagSignaled  = 1 << iota // the completion was added to CQ, at Position
	FlagNotified              // the completion has notified the consumer of CQ
	FlagSolicited             // see QueueArmed
	FlagFenced                // the request has IBV_SEND_FENCE
	FlagLost                  // the completion queue had no room for the completion
	FlagShared                // the receive was taken from the shared receive queue
)

// NoNumber is the Number of a request that was flushed before it was numbered.
const NoNumber = ^uint32(0)

// RequestEvent is an event of a traced queue. Each kind uses some of the fields.
type RequestEvent struct {
	Time  int64 // in nanoseconds since 1970
	Began int64 // likewise
	WRID  uint64
	// Number counts the send work requests of a queue pair, modulo 2^32, since its last RESET.
	Number uint32
	// PSN is the first PSN of a send work request, and the last PSN of a receive's message. Packets is the number of
	// PSNs.
	PSN, Packets uint32
	Length       uint32 // bytes of the message
	Peer         uint32 // queue pair at the other end
	// Depth is the number of requests in the send queue, or of receives left in the receive queue, after the event. For
	// QueueArmed it is the number of completions.
	Depth uint32
	// Reads is the number of READs and atomics in flight before the first packet of a request.
	Reads uint16
	// Position counts the completions of CQ, modulo 2^32, from its creation or the begin of its trace. Consumed is the
	// number of completions that the consumer has taken out, as of the event. The engine sees it only then.
	CQ                 RequestLog
	Position, Consumed uint32

	Count  uint32
	Kind   RequestEventKind
	Flags  uint8
	Cause  RepeatCause
	Opcode uapi.WROpcode
	Status uapi.WCStatus
}

// Event returns the asynchronous event of a QueueEvent.
func (e *RequestEvent) Event() ib.EventType { return ib.EventType(e.Count) }
