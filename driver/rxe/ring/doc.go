// Package ring holds the queues of the rxe driver: work and completion queues in memory that a user process can write,
// and the directory of them by which the process learns that its service has died. It knows no queue pair and no
// device.
//
// # Layout
//
// A [Ring] is a struct rxe_queue_buf of the kernel's Soft-RoCE, so that the rxe provider of libibverbs works on it.
// Each index has a cache line of its own.
//
//	byte   0  log2 of the slot's size    for the process; the service never reads it
//	       4  mask: slots - 1            for the process; the service never reads it
//	     128  producer index             next slot to fill
//	     256  consumer index             next slot to take; equal to the producer index: empty
//	     384  slot 0, slot 1, ...        a power of two of them, each a power of two of bytes, at least 64
//
// One slot stays empty, so that a full ring differs from an empty one: [Ring.Capacity] is slots - 1. Indices are those
// of slots and wrap at the number of slots.
//
//	               producer: Push                  consumer: Peek, SetConsumer
//	send queue     process; PostSend in here       requester
//	receive queue  process; PostRecv in here       responder
//	completions    completer and responder         process; Poll in here
//
// The rings of a process are in memory that it shares with the service ([Alloc]); those of a consumer of the verbs
// inside the service are in ordinary memory. The code is the same.
//
// # Trust
//
// Nothing in shared memory is believed. The process may store any value at any time, in the header, in the index that
// is not its own, and in slots that it has handed to the service. Therefore
//
//   - size and number of slots are kept here, and are only written to the header;
//   - an index that is read is masked: it is wrong at worst, never outside the ring;
//   - the engine keeps the index of its own end and passes it to Push or Peek. PostSend, PostRecv and Poll, which act
//     at the end of the consumer of the verbs, load it ([Ring.Producer], [Ring.Consumer]), since the process may act
//     there too;
//   - a slot is copied out once, by Peek, and checked in the copy.
//
// A process that lies about its index gets completions for work requests that it has not posted, or loses completions.
// Work is bounded all the same: a loop that empties a ring ends after Capacity elements.
//
// # Memory order
//
// The two ends share the slots and nothing orders their accesses but the indices:
//
//   - a producer stores its index with release, after it has written the slot; the consumer loads it with acquire,
//     before it reads the slot. A consumer that sees the index therefore sees the slot;
//   - a consumer stores its index with release, after it has copied the slot out; the producer loads it with acquire,
//     before it writes the slot. A producer that sees the index therefore overwrites nothing that is still read.
//
// An index is stored by its own end alone, so that no compare-and-swap is needed. The loads and stores of sync/atomic
// are sequentially consistent, which includes acquire and release; the library on the other end uses acquire loads and
// release stores, or stronger. A store to one index and a load of the other are ordered by neither, so that an end that
// is going to sleep looks again after it has asked to be woken (ib.CQ.ReqNotify).
//
// # Callers
//
// Methods of a Ring take no lock and do not sleep, Free excepted: they may be called under a lock and in any callback.
// Calls for one end must not overlap with one another; calls for different ends may. The owner makes sure of that with
// locks of its own, and that nothing uses a ring after Free. [New], [NewDirectory] and [Directory.Add] allocate and may
// sleep.
//
// # Memory that is taken away
//
// A process may truncate the file that its rings are in. An access to the pages then faults, which would end the
// service: each access to shared memory turns the fault into ok = false (see [runtime/debug.SetPanicOnFault]). The
// queue is of no more use then; an operation that was under way has happened in part or not at all, and its other
// results mean nothing. A ring in memory of this process has no such guard, and its ok is always true.
//
// # Without a service
//
// A [Directory] is in the same memory and lists, for each queue pair, its number and the [Location] of its rings:
//
//	page  0  magic; offset of the next page, 0 for none
//	     16  entry 0, entry 1, ... up to the end of the page: live, number, then offset, mask, log2 of the slot's size
//	         of send, receive, send completion and receive completion queue
//
// The service writes it and never reads it. When the service has died, the launcher of the program calls [Abandon] with
// the file: it takes the consumer's end of the work queues and the producer's end of the completion queues, and
// completes what is outstanding with a flush error. It believes the file as little as the service does, the directory
// included: offsets and sizes are checked against the size of the file, the number of queue pairs and work requests
// against the memory it has.
package ring
