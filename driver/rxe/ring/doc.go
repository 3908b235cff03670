// Package ring provides the queues of the rxe driver: work and completion queues in memory that a user process can
// write, and the flush of the requests after the service has died. The package knows neither queue pairs nor devices.
//
// # Layout
//
// A [Ring] has the layout of struct rxe_queue_buf of the kernel's Soft-RoCE, so that the rxe provider of libibverbs
// works with it. Each index has a separate cache line.
//
//	byte   0  log2 of the slot's size    for the process; the service never reads it
//	       4  mask: slots - 1            for the process; the service never reads it
//	     128  producer index             next slot to fill
//	     256  consumer index             next slot to take; equal to the producer index: empty
//	     384  slot 0, slot 1, ...        a power of two of them, each a power of two of bytes, at least 64
//
// One slot stays empty, which distinguishes a full ring from an empty one: [Ring.Capacity] is slots - 1. Indices are
// slot numbers, and wrap at the number of slots.
//
//	               producer: Push                  consumer: Peek, SetConsumer
//	send queue     process; PostSend in here       requester
//	receive queue  process; PostRecv in here       responder
//	completions    completer and responder         process; Poll in here
//
// The rings of a process are in memory that the process shares with the service ([Alloc]). The rings of a verbs
// consumer inside the service are in ordinary memory. The code is the same.
//
// # Trust
//
// The service trusts no value in shared memory. The process may store any value at any time: in the header, in the
// index of the other end, and in slots that it has handed to the service. Therefore
//
//   - the size and the number of slots are kept in the Ring, and only written to the header;
//   - an index is masked after the load: a wrong index still refers to a slot of the ring;
//   - the engine keeps the index of its own end and passes it to Push or Peek. PostSend, PostRecv and Poll, which act
//     at the end of the verbs consumer, load the index ([Ring.Producer], [Ring.Consumer]), since the process may act
//     there too;
//   - Peek copies a slot once, and the copy is checked.
//
// A process that stores a wrong index gets completions for work requests that it has not posted, or loses completions.
// The work is still limited: a loop that empties a ring ends after Capacity elements.
//
// # Memory order
//
// The two ends share the slots. Only the indices order their accesses:
//
//   - a producer stores its index with release semantics after it has written the slot. The consumer loads the index
//     with acquire semantics before it reads the slot. A consumer that sees the index therefore sees the slot;
//   - a consumer stores its index with release semantics after it has copied the slot. The producer loads the index
//     with acquire semantics before it writes the slot. A producer that sees the index therefore overwrites no slot
//     that is still being read.
//
// Only its own end stores an index, so no compare-and-swap is needed. The loads and stores of sync/atomic are
// sequentially consistent, which includes acquire and release. The library on the other end uses acquire loads and
// release stores, or stronger ones. Neither orders a store to one index and a load of the other. Therefore an end that
// wants to sleep polls again after it has requested a notification (ib.CQ.ReqNotify).
//
// # Callers
//
// Methods of a Ring take no lock and do not sleep, except Free. They may be called under a lock and in any callback.
// Calls for one end must not overlap. Calls for different ends may. The owner ensures this with its own locks, and also
// that no caller uses a ring after Free. [New] allocates and may sleep.
//
// # Removed memory
//
// A process may truncate the file of its rings. An access to the removed pages then faults, which would end the
// service. Each access to shared memory turns the fault into ok = false (see [runtime/debug.SetPanicOnFault]). The
// queue is then unusable. An operation that was in progress has happened in part or not at all, and its other results
// are undefined. A ring in memory of this process has no such guard, and its ok is always true.
//
// # Without a service
//
// Package queuedir lists the rings of each queue pair in the same memory. When the service has died, [Flush] acts as
// the consumer of the work queues and as the producer of the completion queues, and completes outstanding requests with
// a flush error.
package ring
