package ring

import (
	"fmt"
	"math/bits"
	"runtime/debug"
	"sync/atomic"
	"syscall"

	"verbena/internal/memfault"
	"verbena/internal/queuedir"
	"verbena/uapi"
)

// Ring is a queue of fixed-size slots with one producer and one consumer. One slot always stays empty. Free, Info and
// Location may be called on a nil Ring.
//
// A Ring has no lock. One goroutine at a time may call the methods for the producer, and one the methods for the
// consumer. No method except Free sleeps.
type Ring struct {
	mem        []byte
	prod, cons *uint32 // in mem
	shift      uint8   // log2 of the bytes per slot
	mask       uint32  // slots - 1
	shared     bool
	offset     uint64 // offset for mmap
	release    func()
}

const (
	// MaxSlots is the largest number of slots of a ring that [Flush] accepts.
	MaxSlots = 1 << 20
	// MaxSlotBytes is the largest size of a slot of such a ring.
	MaxSlotBytes = 1 << maxShift

	minShift = 6 // a cache line, as in the kernel
	maxShift = 10
	minSlot  = 1 << minShift
	// maxRing limits the size of a ring to the 32 bits of struct mminfo.
	maxRing = 1 << 31
)

// Memory is memory that is shared with a user process, and Alloc allocates it.
type (
	Memory = queuedir.Memory
	Alloc  = queuedir.Alloc
)

// Size returns the number of bytes of a ring with room for at least entries elements of slotBytes bytes.
func Size(entries, slotBytes int) int {
	shift, slots := geometry(entries, slotBytes)
	return uapi.RXEQueueDataOffset + slots<<shift
}

// geometry returns the logarithm of the size of a slot, and the number of slots.
func geometry(entries, slotBytes int) (shift uint8, slots int) {
	return uint8(bits.Len(uint(max(slotBytes, minSlot) - 1))), 1 << bits.Len(uint(max(entries, 1)))
}

// New makes an empty ring with room for at least entries elements of slotBytes bytes. The ring is in memory from alloc,
// or, if alloc is nil, in ordinary memory of this process. The caller owns the ring until Free. New may sleep if alloc
// may.
//
// The error is ENOMEM if the ring would be larger than 2^31 bytes, the error of alloc, or EFAULT if the process has
// already removed the memory.
func New(entries, slotBytes int, alloc Alloc) (*Ring, error) {
	n := Size(entries, slotBytes)
	if n > maxRing {
		return nil, fmt.Errorf("queue of %d entries of %d bytes: %w", entries, slotBytes, syscall.ENOMEM)
	}
	shift, slots := geometry(entries, slotBytes)
	r := &Ring{shift: shift, mask: uint32(slots - 1)}
	if alloc == nil {
		r.mem = make([]byte, n)
	} else {
		m, err := alloc(n)
		if err != nil {
			return nil, fmt.Errorf("queue of %d entries of %d bytes: %w", entries, slotBytes, err)
		}
		r.mem, r.offset, r.release, r.shared = m.Mem[:n:n], m.Offset, m.Free, true
	}
	r.attach()
	if !r.format() {
		r.Free()
		return nil, fmt.Errorf("queue of %d entries: its memory was taken away: %w", entries, syscall.EFAULT)
	}
	return r, nil
}

// Attach returns the ring that a trusted owner has made in mem. A program uses it to get the other end of the ring. mem
// belongs to the caller and is aligned to a page. The error is EPROTO if mem does not hold a ring.
func Attach(mem []byte) (*Ring, error) {
	if len(mem) < uapi.RXEQueueDataOffset {
		return nil, fmt.Errorf("queue of %d bytes, shorter than its header: %w", len(mem), syscall.EPROTO)
	}
	h, _ := uapi.Decode[struct{ Log2ElemSize, IndexMask uint32 }](mem) // the owner can change the indices
	if h.Log2ElemSize < minShift || h.Log2ElemSize > maxShift+1 || h.IndexMask&(h.IndexMask+1) != 0 ||
		(uint64(h.IndexMask)+1)<<h.Log2ElemSize > uint64(len(mem)-uapi.RXEQueueDataOffset) {
		return nil, fmt.Errorf("queue of %d slots of 2^%d bytes in %d bytes: %w", uint64(h.IndexMask)+1, h.Log2ElemSize, len(mem), syscall.EPROTO)
	}
	r := &Ring{mem: mem, shift: uint8(h.Log2ElemSize), mask: h.IndexMask}
	r.attach()
	return r, nil
}

// Free returns the memory to its allocator. The ring must not be used afterwards. Free sleeps if Memory.Free does.
func (r *Ring) Free() {
	if r != nil && r.release != nil {
		r.release()
	}
}

// Info returns the offset and the size for a mapping of the ring in a user process; zero if the ring is not shared.
func (r *Ring) Info() uapi.MMInfo {
	if r == nil || !r.shared {
		return uapi.MMInfo{}
	}
	return uapi.MMInfo{Offset: r.offset, Size: uint32(len(r.mem))}
}

// Capacity returns the largest number of elements in the ring: one less than the number of slots.
func (r *Ring) Capacity() int { return int(r.mask) }

// Next returns the index after i.
func (r *Ring) Next(i uint32) uint32 { return (i + 1) & r.mask }

// Add returns the index n slots after i.
func (r *Ring) Add(i, n uint32) uint32 { return (i + n) & r.mask }

// Between returns the number of slots from index from to index to, which is not included.
func (r *Ring) Between(from, to uint32) uint32 { return (to - from) & r.mask }

func (r *Ring) slot(i uint32) []byte {
	at := uapi.RXEQueueDataOffset + int(i&r.mask)<<r.shift
	return r.mem[at : at+1<<r.shift]
}

// format writes the header of a new ring. ok is false if the memory is gone.
func (r *Ring) format() (ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	uapi.Encode(r.mem, &uapi.RXEQueueBuf{Log2ElemSize: uint32(r.shift), IndexMask: r.mask})
	return true
}

// Producer returns the index of the next slot to fill, loaded from the memory. The process can have written any value,
// but the returned index is within the ring. Either end may call Producer. ok is false if the memory is gone.
func (r *Ring) Producer() (i uint32, ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	return atomic.LoadUint32(r.prod) & r.mask, true
}

// TakeBack makes slot i the next slot to fill, unless the process fills one concurrently. It is for the consumer.
func (r *Ring) TakeBack(i uint32) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	atomic.CompareAndSwapUint32(r.prod, atomic.LoadUint32(r.prod), i)
}

// Consumer returns the index of the next slot to empty, loaded from the memory. The process can have written any value,
// but the returned index is within the ring. Either end may call Consumer. ok is false if the memory is gone.
func (r *Ring) Consumer() (i uint32, ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	return atomic.LoadUint32(r.cons) & r.mask, true
}

// SetConsumer returns the slots before index i to the producer, which may overwrite them immediately. It is for the
// consumer. ok is false if the memory is gone.
func (r *Ring) SetConsumer(i uint32) (ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	atomic.StoreUint32(r.cons, i)
	return true
}

// Peek copies the start of slot i, the next slot of the consumer, to dst, which is no longer than a slot. If the
// producer has not filled the slot, filled is false and no data is copied. Peek is for the consumer, which keeps the
// slot until SetConsumer. ok is false if the memory is gone; dst may then hold a part of the slot.
func (r *Ring) Peek(i uint32, dst []byte) (filled, ok bool) { return r.PeekNth(i, 0, dst) }

// PeekNth copies the slot n slots after the consumer's next slot i, like Peek.
func (r *Ring) PeekNth(i, n uint32, dst []byte) (filled, ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	if r.Between(i, atomic.LoadUint32(r.prod)) <= n {
		return false, true
	}
	copy(dst, r.slot(i+n))
	return true, true
}

// Push copies src, which is no longer than a slot, to slot i, the next slot of the producer, and publishes it. If the
// ring is full, pushed is false and no data is written. Push is for the producer. ok is false if the memory is gone.
func (r *Ring) Push(i uint32, src []byte) (pushed, ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	next := r.Next(i)
	if atomic.LoadUint32(r.cons)&r.mask == next {
		return false, true
	}
	copy(r.slot(i), src)
	atomic.StoreUint32(r.prod, next)
	return true, true
}

// Consumed returns the index of the consumer. from is an earlier index of the consumer, and prod the next slot of the
// producer. Consumed is for the producer, which must not trust the index: the result is always between from and prod.
// If the consumer has emptied slots that were not filled, it has emptied the whole ring. Consumed then sets the index
// to prod, and repaired is true. ok is false if the memory is gone.
//
// The provider of rdma-core v34 to v54 counts one slot too many when it has drained a CQ.
func (r *Ring) Consumed(from, prod uint32) (i uint32, repaired, ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	for range maxRepairs {
		raw := atomic.LoadUint32(r.cons)
		if i = raw & r.mask; r.Between(from, i) <= r.Between(from, prod) {
			return i, repaired, true
		}
		repaired = true
		if atomic.CompareAndSwapUint32(r.cons, raw, prod) {
			break
		}
	}
	return prod, true, true
}

// maxRepairs limits the attempts against a consumer that keeps writing its index.
const maxRepairs = 4

// Fill copies src, which is no longer than a slot, to slot i, the next slot of the producer, and publishes it. It is
// for the producer, which must know that the slot is empty. ok is false if the memory is gone.
func (r *Ring) Fill(i uint32, src []byte) (ok bool) {
	if r.shared {
		defer memfault.Survive(debug.SetPanicOnFault(true))
	}
	copy(r.slot(i), src)
	atomic.StoreUint32(r.prod, r.Next(i))
	return true
}
