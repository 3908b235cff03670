package queue

import (
	"verbena/ib"
	"verbena/uapi"
)

// Send is a send work request, decoded but not checked: a program may have written any value. SGEs and Inline may refer
// to memory of the queue. They are valid until the request is completed.
type Send struct {
	ID     uint64
	Opcode uapi.WROpcode
	Flags  uapi.SendFlags
	Imm    uapi.ImmData // immediate data, or the key to invalidate

	// Length is the number of bytes of the message, as the program states it.
	Length uint64
	// SGEs are the gather elements that are not empty. NumSGE is the number that the program states; SGEs has no more
	// elements than the queue was created for.
	SGEs   []ib.SGE
	NumSGE uint32
	// Inline is the data of a request with SendInline, or of an ATOMIC WRITE. It is shorter than Length if Length
	// exceeds the size for which the queue was created.
	Inline []byte

	RemoteAddr uint64
	RKey       uint32
	CompareAdd uint64
	Swap       uint64
	Bind       Bind
	Flush      Flush

	SRQN uint32 // number of the peer's shared receive queue; of an XRC queue pair

	// The following fields are of a datagram. To is the engine's resolved destination, in the queue of a consumer in
	// this process. Otherwise AH is the number of the address handle, or, if 0, Vector is the address vector.
	To     any
	AH     uint32
	Vector ib.AHAttr
	QPN    uint32
	QKey   uint32

	// LengthLost is true if the program's library has written data without a length (ib.LengthLost).
	LengthLost bool
}

// Bind holds the parameters of a work request that binds a memory window or registers a region.
type Bind struct {
	Addr, Length         uint64
	MRLKey, MWRKey, RKey uint32
	Access               ib.AccessFlags
}

// Flush holds the parameters of a FLUSH beside its address and key.
type Flush struct {
	Length uint32
	Type   uapi.FlushPlacement
	Level  uapi.FlushSelectivity
}

// Recv is a receive work request, decoded but not checked. SGEs are a copy.
type Recv struct {
	ID     uint64
	SGEs   []ib.SGE // elements that are not empty
	NumSGE uint32   // as the program states it; see Send.NumSGE
	Length int      // sum of the lengths of SGEs
}

// AppendSGE appends an element unless it is empty.
func AppendSGE(list []ib.SGE, s ib.SGE) []ib.SGE {
	if s.Length == 0 {
		return list
	}
	return append(list, s)
}

// Length returns the sum of the lengths of the elements.
func Length(list []ib.SGE) (n int) {
	for i := range list {
		n += int(list[i].Length)
	}
	return n
}

// WorkQueue has the methods of send and receive queues. A result ok of false means that the program has taken the
// memory of the queue away.
type WorkQueue interface {
	// Capacity returns the number of requests for which the queue has room. Both ends may call Capacity.
	Capacity() int
	// Take marks the next request as taken. The request must have been fetched. Take is for the consumer.
	Take()
	// Complete returns the slot of the oldest taken request to the producer. Complete is for the consumer.
	Complete() (ok bool)
	// Waiting returns the number of requests that are posted and not taken. A program can make it wrong, but it is at
	// most Capacity. Waiting is for the consumer.
	Waiting() (n uint32, ok bool)
	// Discard completes all requests without taking them. Discard excludes calls of both ends.
	Discard() (ok bool)
	// Free frees the memory. No other method may be called afterwards. Free may sleep.
	Free()
}

// SendQueue is a queue of send work requests.
type SendQueue interface {
	WorkQueue
	// Push posts a copy of a request. pushed is false if the queue is full. Push is for the producer.
	Push(w *Send) (pushed, ok bool)
	// Fetch decodes the n-th request behind the taken ones, counted from 0, into w, and may reuse the slices of w
	// if Fetch of this queue has filled w before. found is false if there is none. Fetch is for the consumer.
	Fetch(n int, w *Send) (found, ok bool)
	// Posted reports whether requests are posted and not taken. The value at changes with each post. Any thread may
	// call Posted.
	Posted() (at uint32, some bool)
	// TakeBack removes the requests that are posted and not taken, unless the program posts at the same time. TakeBack
	// is for the consumer.
	TakeBack()
}

// RecvQueue is a queue of receive work requests.
type RecvQueue interface {
	WorkQueue
	// Push posts a copy of a request. pushed is false if the queue is full. Push is for the producer.
	Push(w *Recv) (pushed, ok bool)
	// Fetch decodes the n-th request behind the taken ones, counted from 0, into w, and reuses the slice of w.
	// found is false if there is none. Fetch is for the consumer.
	Fetch(n int, w *Recv) (found, ok bool)
	// MoveTo copies the requests that are not taken to an empty queue of the same kind with enough room. MoveTo
	// excludes calls of both ends of both queues.
	MoveTo(q RecvQueue) (ok bool)
}

// CompletionQueue is a queue of completions. The engine is its producer. A result ok of false means that the program
// has taken the memory of the queue away.
type CompletionQueue interface {
	// Capacity returns the number of completions for which the queue has room.
	Capacity() int
	// Oldest returns the position of the oldest completion that the consumer has not consumed, and the number of
	// completions from there on. repaired is true if the consumer had consumed completions that did not exist; Oldest
	// has corrected this. Oldest is for the producer.
	Oldest() (at, waiting uint32, repaired, ok bool)
	// Push adds a completion. The queue must have room. Push is for the producer.
	Push(wc *uapi.WC) (ok bool)
	// Fetch copies the n-th completion from a position on, counted from 0. found is false if there is none. Fetch is
	// for the consumer.
	Fetch(at, n uint32, wc *uapi.WC) (found, ok bool)
	// Consume consumes the n completions from a position on. Consume is for the consumer.
	Consume(at, n uint32) (ok bool)
	// Free frees the memory. No other method may be called afterwards. Free may sleep.
	Free()
}

// Recorder is a SendQueue that records the requests in flight, for the time after the service's death.
type Recorder interface {
	// Forget records that a taken request is no longer in flight. Forget is for the consumer.
	Forget(id uint64)
}

// WriteNotifier is a RecvQueue that can leave its requests to SENDs.
type WriteNotifier interface {
	// NotifiesWrites reports whether an RDMA WRITE with immediate data completes without a request of the queue. The
	// completion has WCUnsolicited. The result never changes.
	NotifiesWrites() bool
}

// WCUnsolicited marks the completion of an RDMA WRITE that has taken no receive. Its ID has no meaning.
const WCUnsolicited uapi.WCFlags = 1 << 30

// Armer is a CompletionQueue that programs arm by a store.
type Armer interface {
	// Armed reports whether the completion that was added last is due for an event. Armed is for the producer.
	Armed() bool
}

// Layout is the form of the queues of a kind of adapter in memory that is shared with user processes.
type Layout interface {
	// UserABI returns the driver's number and the version of its private data in the user ABI.
	UserABI() (driverID, version uint32)
	// Limits returns the largest queues.
	Limits() Limits
	// Traits returns the other properties of the adapter.
	Traits() Traits
	// Memory returns the shared memory, in bytes, of a user context without queues, of the work queues of a queue pair
	// with wr requests in each queue and all elements, and of a completion queue with cqe entries.
	Memory(wr uint32, cqe int) (context, work, completions uint64)
	// OpenProgram prepares the queues of a user context, in memory from u.Context.AllocShared, and writes the driver's
	// response. It may sleep.
	OpenProgram(u *ib.Udata) (Program, error)
}

// Traits are the properties of a kind of adapter beside its queues. The zero Traits are those of the kernel's rxe.
type Traits struct {
	// QPTypes are the types of queue pairs, except that of the connection manager; nil means all types of the engine but
	// SRD.
	QPTypes []ib.QPType
	// QPNumberBits, KeyBits and AHBits are the widths of numbers in requests and completions; 0 means no limit.
	QPNumberBits, KeyBits, AHBits uint
	// QPSlotBits is the number of low bits in which the numbers of existing queue pairs differ; 0 means the default of
	// the engine.
	QPSlotBits uint
	// AddressGIDs is true if the GID table has one entry: the first address of the device.
	AddressGIDs bool
	// SharesAH is true if a domain has one number for each destination, which completions of datagrams name.
	SharesAH bool
	// AllRKeys is true if a region without a remote right also has a key for peers. The key gives no right.
	AllRKeys bool
	// MaxRDMASize is the longest RDMA READ or WRITE of SRD, in bytes.
	MaxRDMASize int
	// Attributes and Port change the attributes that the engine reports; nil means no change.
	Attributes func(*ib.DeviceAttr)
	Port       func(*ib.PortAttr)
	// Methods are the driver's own methods.
	Methods []ib.DriverMethod
	// RespondPD and RespondDevice write the driver's responses to the creation of a domain and to the query of the
	// device; nil means no response.
	RespondPD     func(u *ib.Udata)
	RespondDevice func(a *ib.DeviceAttr, u *ib.Udata)
	// StoreDoorbells is true if programs post without a call.
	StoreDoorbells bool
	// MessageCounters is true if the device counts messages and bytes under the names of the kernel's efa.
	MessageCounters bool
}

// Limits are the largest sizes of the queues of a layout.
type Limits struct {
	WR       uint32 // requests in a work queue
	CQE      int    // completions in a completion queue
	UsualCQE int    // completions in a completion queue of a program that has little memory
	SGE      uint32 // elements in a request
	Inline   uint32 // bytes of data in a send work request
}

// Program makes the queues of a user context. The methods that make queues return an error if the memory cannot be
// allocated or the response has no room, and write the locations of the queues to the response. They may sleep.
type Program interface {
	// CreateQP makes the queues of a queue pair of a type and raises c to the actual capacities. Without a receive queue
	// of its own, the queue pair gets an empty one.
	CreateQP(typ ib.QPType, c *ib.QPCap, hasRecv bool, u *ib.Udata) (SendQueue, RecvQueue, error)
	// CreateRecv makes a shared receive queue. Its location is not written to the response.
	CreateRecv(entries int, sges uint32) (RecvQueue, error)
	// RespondSRQ writes the response of the creation of a shared receive queue. HasRoomForSRQ returns an error if the
	// response has no room.
	RespondSRQ(q RecvQueue, num uint32, u *ib.Udata)
	HasRoomForSRQ(u *ib.Udata) error
	// ResizedSRQ returns the address at which the program expects the location of a new shared receive queue.
	// LocationOf returns this location.
	ResizedSRQ(u *ib.Udata) (addr uint64, err error)
	LocationOf(q RecvQueue) []byte
	// CreateCQ makes a completion queue.
	CreateCQ(entries int, u *ib.Udata) (CompletionQueue, error)
	// RespondAH writes the response of the creation of an address handle.
	RespondAH(num uint32, u *ib.Udata)

	// List lists the queues of a queue pair for the time after the service's death, and returns an index. Update and
	// Unlist change and delete the entry. Calls of the three and of Close are serialised by the caller.
	List(q *Queues) (index int, err error)
	Update(index int, q *Queues)
	Unlist(index int)
	// Close frees the memory of the list.
	Close()
}

// Queues are the present queues of a queue pair.
type Queues struct {
	QPN            uint32
	Send           SendQueue
	Recv           RecvQueue
	SendCQ, RecvCQ CompletionQueue // nil if there is none
}

// MoveCompletions moves the completions of a queue to an empty one with enough room. It excludes calls of both ends of
// both queues.
func MoveCompletions(from, to CompletionQueue) (ok bool) {
	at, n, _, ok := from.Oldest()
	for i := uint32(0); ok && i < n; i++ {
		var wc uapi.WC
		if _, ok = from.Fetch(at, i, &wc); ok {
			ok = to.Push(&wc)
		}
	}
	return ok
}
