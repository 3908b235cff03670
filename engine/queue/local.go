package queue

import (
	"math/bits"
	"sync/atomic"

	"verbena/ib"
	"verbena/uapi"
)

// indices are the positions of a queue in the memory of this process. The numbers count without end; the low bits are
// those of the slot.
type indices struct {
	mask     uint32
	capacity uint32
	posted   atomic.Uint32 // requests that were posted; written by the producer
	done     atomic.Uint32 // requests that were completed; written by the consumer
	taken    atomic.Uint32 // requests that were taken; written by the consumer
}

// init gives the queue room for at least entries elements, and returns the number of slots.
func (x *indices) init(entries int) (slots int) {
	slots = 1 << bits.Len(uint(max(entries, 1)))
	x.mask, x.capacity = uint32(slots-1), uint32(slots-1)
	return slots
}

// Capacity implements WorkQueue.
func (x *indices) Capacity() int { return int(x.capacity) }

// Take implements WorkQueue.
func (x *indices) Take() { x.taken.Add(1) }

// Complete implements WorkQueue.
func (x *indices) Complete() bool {
	x.done.Add(1)
	return true
}

// Waiting implements WorkQueue.
func (x *indices) Waiting() (uint32, bool) { return x.posted.Load() - x.taken.Load(), true }

// Discard implements WorkQueue.
func (x *indices) Discard() bool {
	n := x.posted.Load()
	x.taken.Store(n)
	x.done.Store(n)
	return true
}

// Free implements WorkQueue.
func (x *indices) Free() {}

// free returns the slot of the next request, which the producer fills; false if the queue is full.
func (x *indices) free() (slot uint32, ok bool) {
	n := x.posted.Load()
	return n & x.mask, n-x.done.Load() < x.capacity
}

// at returns the slot of the n-th request behind the taken ones; false if there is none.
func (x *indices) at(n int) (slot uint32, ok bool) {
	i := x.taken.Load() + uint32(n)
	return i & x.mask, int32(x.posted.Load()-i) > 0
}

// atomicLen is the length of the data of an ATOMIC WRITE.
const atomicLen = 8

// localSend is the send queue of a consumer in this process.
type localSend struct {
	indices
	slots  []Send
	sges   []ib.SGE // backs the elements of the slots
	inline []byte   // backs the inline data of the slots
	c      ib.QPCap
}

// NewSend returns a send queue in the memory of this process with room for at least c.MaxSendWR requests with at most
// c.MaxSendSGE elements or c.MaxInlineData bytes.
func NewSend(c *ib.QPCap) SendQueue {
	q := &localSend{c: *c}
	n := q.init(int(c.MaxSendWR))
	q.slots = make([]Send, n)
	q.sges = make([]ib.SGE, n*int(c.MaxSendSGE))
	q.c.MaxInlineData = max(c.MaxInlineData, atomicLen)
	q.inline = make([]byte, n*int(q.c.MaxInlineData))
	return q
}

// Push implements SendQueue.
func (q *localSend) Push(w *Send) (pushed, ok bool) {
	i, ok := q.free()
	if !ok {
		return false, true
	}
	s := &q.slots[i]
	*s = *w
	s.SGEs = append(part(q.sges, i, int(q.c.MaxSendSGE)), w.SGEs...)
	s.Inline = append(part(q.inline, i, int(q.c.MaxInlineData)), w.Inline...)
	q.posted.Add(1)
	return true, true
}

// part returns the part of a slot, which is empty and has room for size elements.
func part[T any](of []T, slot uint32, size int) []T {
	at := int(slot) * size
	return of[at : at : at+size]
}

// Fetch implements SendQueue.
func (q *localSend) Fetch(n int, w *Send) (found, ok bool) {
	i, found := q.at(n)
	if found {
		*w = q.slots[i]
	}
	return found, true
}

// Posted implements SendQueue.
func (q *localSend) Posted() (at uint32, some bool) {
	at = q.posted.Load()
	return at, at != q.taken.Load()
}

// TakeBack implements SendQueue.
func (q *localSend) TakeBack() {
	n := q.posted.Load()
	q.posted.CompareAndSwap(n, q.taken.Load())
}

// localRecv is the receive queue of a consumer in this process.
type localRecv struct {
	indices
	slots []Recv
	sges  []ib.SGE // backs the elements of the slots
	limit int      // elements of each
}

// NewReceive returns a receive queue in the memory of this process with room for at least entries requests with at most
// sges elements.
func NewReceive(entries int, sges uint32) RecvQueue {
	q := &localRecv{limit: int(sges)}
	n := q.init(entries)
	q.slots = make([]Recv, n)
	q.sges = make([]ib.SGE, n*q.limit)
	return q
}

// Push implements RecvQueue.
func (q *localRecv) Push(w *Recv) (pushed, ok bool) {
	i, ok := q.free()
	if !ok {
		return false, true
	}
	s := &q.slots[i]
	*s = *w
	s.SGEs = append(part(q.sges, i, q.limit), w.SGEs...)
	q.posted.Add(1)
	return true, true
}

// Fetch implements RecvQueue.
func (q *localRecv) Fetch(n int, w *Recv) (found, ok bool) {
	i, found := q.at(n)
	if found {
		sges := append(w.SGEs[:0], q.slots[i].SGEs...)
		*w = q.slots[i]
		w.SGEs = sges
	}
	return found, true
}

// MoveTo implements RecvQueue.
func (q *localRecv) MoveTo(to RecvQueue) (ok bool) {
	var w Recv
	for n := 0; ; n++ {
		if found, _ := q.Fetch(n, &w); !found {
			return true
		}
		to.Push(&w)
	}
}

// localCompletion is the completion queue of a consumer in this process.
type localCompletion struct {
	mask     uint32
	pushed   atomic.Uint32 // written by the producer
	consumed atomic.Uint32 // written by the consumer
	slots    []uapi.WC
}

// NewCompletion returns a completion queue in the memory of this process with room for at least entries completions.
func NewCompletion(entries int) CompletionQueue {
	slots := 1 << bits.Len(uint(max(entries, 1)))
	return &localCompletion{mask: uint32(slots - 1), slots: make([]uapi.WC, slots)}
}

// Capacity implements CompletionQueue.
func (q *localCompletion) Capacity() int { return int(q.mask) }

// Oldest implements CompletionQueue.
func (q *localCompletion) Oldest() (at, waiting uint32, repaired, ok bool) {
	at = q.consumed.Load()
	return at, q.pushed.Load() - at, false, true
}

// Push implements CompletionQueue.
func (q *localCompletion) Push(wc *uapi.WC) (ok bool) {
	n := q.pushed.Load()
	q.slots[n&q.mask] = *wc
	q.pushed.Store(n + 1)
	return true
}

// Fetch implements CompletionQueue.
func (q *localCompletion) Fetch(at, n uint32, wc *uapi.WC) (found, ok bool) {
	i := at + n
	if int32(q.pushed.Load()-i) <= 0 {
		return false, true
	}
	*wc = q.slots[i&q.mask]
	return true, true
}

// Consume implements CompletionQueue.
func (q *localCompletion) Consume(at, n uint32) (ok bool) {
	q.consumed.Store(at + n)
	return true
}

// Free implements CompletionQueue.
func (q *localCompletion) Free() {}
