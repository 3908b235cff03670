package rxe

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

// ring is a queue of fixed-size slots with one producer and one consumer, in the layout of struct rxe_queue_buf:
// the send and receive rings are filled by the consumer of the verbs and emptied by the engine, the completion
// rings the other way around. One slot always stays empty.
//
// The memory of a shared ring belongs to a user process as much as to us. Nothing in it is believed: the geometry
// is kept here, indices are masked, and the engine's own index is kept by the engine, not read back. The user may
// even truncate the file that the memory belongs to; every access therefore reports by its ok result whether the
// memory was there.
//
// A ring has no lock. Its two ends are guarded by whoever uses them.
type ring struct {
	mem        []byte
	prod, cons *uint32 // in mem
	shift      uint8   // log2 of the bytes per slot
	mask       uint32  // slots - 1
	shared     bool
	offset     uint64 // for mmap
	release    func()
}

const (
	minSlot = 64 // a cache line, as the kernel has it
	// maxRing keeps the size of a ring within the 32 bits of struct mminfo.
	maxRing = 1 << 31
)

// newRing makes a ring with room for at least entries elements of size bytes. With a user context its memory is
// shared with the user, otherwise it is ordinary memory of this process.
func newRing(ctx ib.UserContext, entries, size int) (*ring, error) {
	shift, slots, n := ringGeometry(entries, size)
	if n > maxRing {
		return nil, fmt.Errorf("queue of %d entries of %d bytes: %w", entries, size, syscall.ENOMEM)
	}
	r := &ring{shift: shift, mask: uint32(slots - 1)}
	if ctx == nil {
		r.mem = make([]byte, n)
	} else {
		s, err := ctx.AllocShared(n)
		if err != nil {
			return nil, fmt.Errorf("queue of %d entries of %d bytes: %w", entries, size, err)
		}
		r.mem, r.offset, r.release, r.shared = s.Mem[:n:n], s.Offset, s.Free, true
	}
	r.attach()
	if !r.format() {
		r.free()
		return nil, fmt.Errorf("queue of %d entries: its memory was taken away: %w", entries, syscall.EFAULT)
	}
	return r, nil
}

// free gives the memory back; nothing may use the ring afterwards.
func (r *ring) free() {
	if r != nil && r.release != nil {
		r.release()
	}
}

// info is what a user process needs to map the ring.
func (r *ring) info() uapi.MMInfo {
	if r == nil || !r.shared {
		return uapi.MMInfo{}
	}
	return uapi.MMInfo{Offset: r.offset, Size: uint32(len(r.mem))}
}

// capacity is the number of elements that fit.
func (r *ring) capacity() int { return int(r.mask) }

func (r *ring) next(i uint32) uint32 { return (i + 1) & r.mask }

func (r *ring) slot(i uint32) []byte {
	at := uapi.RXEQueueDataOffset + int(i&r.mask)<<r.shift
	return r.mem[at : at+1<<r.shift]
}

// format writes the header of a new ring.
func (r *ring) format() (ok bool) {
	if r.shared {
		defer survive(debug.SetPanicOnFault(true), &ok)
	}
	uapi.Encode(r.mem, &uapi.RXEQueueBuf{Log2ElemSize: uint32(r.shift), IndexMask: r.mask})
	return true
}

// producer is the index of the next slot to be filled.
func (r *ring) producer() (i uint32, ok bool) {
	if r.shared {
		defer survive(debug.SetPanicOnFault(true), &ok)
	}
	return atomic.LoadUint32(r.prod) & r.mask, true
}

// consumer is the index of the next slot to be emptied.
func (r *ring) consumer() (i uint32, ok bool) {
	if r.shared {
		defer survive(debug.SetPanicOnFault(true), &ok)
	}
	return atomic.LoadUint32(r.cons) & r.mask, true
}

// setConsumer gives the slots before i back to the producer.
func (r *ring) setConsumer(i uint32) (ok bool) {
	if r.shared {
		defer survive(debug.SetPanicOnFault(true), &ok)
	}
	atomic.StoreUint32(r.cons, i)
	return true
}

// peek copies the start of slot i, which is the consumer's next, to dst, if the producer has filled it.
func (r *ring) peek(i uint32, dst []byte) (filled, ok bool) {
	if r.shared {
		defer survive(debug.SetPanicOnFault(true), &ok)
	}
	if atomic.LoadUint32(r.prod)&r.mask == i {
		return false, true
	}
	copy(dst, r.slot(i))
	return true, true
}

// push fills slot i, which is the producer's next, with src and publishes it, unless the ring is full.
func (r *ring) push(i uint32, src []byte) (pushed, ok bool) {
	if r.shared {
		defer survive(debug.SetPanicOnFault(true), &ok)
	}
	next := r.next(i)
	if atomic.LoadUint32(r.cons)&r.mask == next {
		return false, true
	}
	copy(r.slot(i), src)
	atomic.StoreUint32(r.prod, next)
	return true, true
}

// postRecv fills slots with receives of up to limit elements; full: the next one had no room. The caller is the only
// producer.
func (r *ring) postRecv(wrs []ib.RecvWR, limit uint32) (n int, full bool, err error) {
	var slot [maxRecvWQESize]byte
	prod, ok := r.producer()
	if !ok {
		return 0, false, errRingGone
	}
	for ; n < len(wrs); n++ {
		size, err := encodeRecv(slot[:], &wrs[n], limit)
		if err != nil {
			return n, false, err
		}
		if pushed, ok := r.push(prod, slot[:size]); !ok {
			return n, false, errRingGone
		} else if !pushed {
			return n, true, nil
		}
		prod = r.next(prod)
	}
	return n, false, nil
}

// survive ends an access to shared memory: a fault becomes ok = false. It must be deferred directly.
func survive(panicOnFault bool, ok *bool) {
	debug.SetPanicOnFault(panicOnFault)
	if e := recover(); e != nil {
		if _, fault := e.(interface{ Addr() uintptr }); !fault {
			panic(e)
		}
		*ok = false
	}
}
