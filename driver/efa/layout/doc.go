// Package layout has the queues of EFA in memory that a program can write: the work requests, receive descriptors and
// completions of package uapi/efa. It implements package engine/queue for programs that use the stock efa provider of
// libibverbs.
//
// # Doorbells
//
// A program announces requests by a store of its producer count to a page that both map. The device never learns of the
// store; a thread compares the count with the number of taken requests (uverbs/poller). Counts wrap at 2^16, and a
// queue has fewer slots.
//
//	program: slot, slot, fence, count      device: count, slot, slot
//
// A count that announces more requests than the queue has slots ends the queue pair, as if the memory were gone.
//
// # Completions
//
// An entry of a completion queue is valid if its phase bit has the value of the present round, 1 in the first. The
// device writes the first four bytes of an entry, which contain the bit, last and at once. The program does not
// announce the entries that it has read. As on the adapter, an overrun is silent. A queue with a completion channel has
// a doorbell, with the count of read entries, the number of the last event, and the arm bit.
//
// # Trust
//
// A program may write any value at any time, also into completions, and may take the memory away. A slot is copied out
// once, and then decoded and checked. No index that a program writes is used without a mask.
package layout
