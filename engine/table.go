package engine

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"
)

// table maps small numbers to objects. Lookup takes no lock. Freed numbers are allocated again in the order of their
// release, and late, so that a freed number stays unused for a long time.
type table[T any] struct {
	chunks [tableChunks]atomic.Pointer[tableChunk[T]]

	mu      sync.Mutex
	first   uint32 // lowest number
	limit   uint32 // exclusive upper bound of the numbers
	start   uint32 // offset from first of the first allocation; numbers ascend, and wrap around
	fresh   uint32 // count of numbers that were allocated at least once
	freed   []uint32
	head    int      // freed[:head] are allocated again
	claimed []uint32 // allocated numbers below first
}

const (
	chunkBits   = 10
	tableChunks = 1 << chunkBits
	tableMax    = tableChunks << chunkBits
)

type tableChunk[T any] [1 << chunkBits]atomic.Pointer[T]

// init sets the range of numbers, from first to limit-1; limit is at most tableMax.
func (t *table[T]) init(first, limit uint32) { t.first, t.limit = first, limit }

// skip moves the first n numbers to the end of the order of allocation.
func (t *table[T]) skip(n uint32) { t.start = n % (t.limit - t.first) }

// nth returns the n-th number in the order of allocation.
func (t *table[T]) nth(n uint32) uint32 { return t.first + (t.start+n)%(t.limit-t.first) }

// used returns the count of numbers that were allocated at least once.
func (t *table[T]) used() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fresh
}

// reserve allocates a number, or returns false if none is left. get finds no object with the number until set is
// called.
func (t *table[T]) reserve() (uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Reuse late: only if more than a quarter of the numbers allocated so far are free, or if no fresh one is left.
	if free := len(t.freed) - t.head; t.fresh == t.limit-t.first && free > 0 || free > 64 && free > int(t.fresh)/4 {
		n := t.freed[t.head]
		if t.head++; t.head == len(t.freed) {
			t.freed, t.head = t.freed[:0], 0
		} else if t.head > 1024 && t.head > len(t.freed)/2 {
			t.freed, t.head = append(t.freed[:0], t.freed[t.head:]...), 0
		}
		return n, true
	}
	if t.fresh == t.limit-t.first {
		return 0, false
	}
	n := t.nth(t.fresh)
	t.fresh++
	t.grow(n)
	return n, true
}

// claim allocates a number below first, or returns false if the number is taken. get finds no object with the number
// until set is called.
func (t *table[T]) claim(n uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Contains(t.claimed, n) {
		return false
	}
	t.claimed = append(t.claimed, n)
	t.grow(n)
	return true
}

// grow allocates the chunk of a number.
//
//verbena:held mu
func (t *table[T]) grow(n uint32) {
	if c := &t.chunks[n>>chunkBits]; c.Load() == nil {
		c.Store(new(tableChunk[T]))
	}
}

// set stores v under a reserved number.
func (t *table[T]) set(n uint32, v *T) {
	t.chunks[n>>chunkBits].Load()[n&(1<<chunkBits-1)].Store(v)
}

// get returns the object with number n, or nil.
func (t *table[T]) get(n uint32) *T {
	if n >= tableMax {
		return nil
	}
	c := t.chunks[n>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return c[n&(1<<chunkBits-1)].Load()
}

// all returns an iterator over the objects.
func (t *table[T]) all() iter.Seq[*T] {
	t.mu.Lock()
	end, claimed := t.fresh, slices.Clone(t.claimed)
	t.mu.Unlock()
	return func(yield func(*T) bool) {
		for _, n := range claimed {
			if v := t.get(n); v != nil && !yield(v) {
				return
			}
		}
		for n := range end {
			if v := t.get(t.nth(n)); v != nil && !yield(v) {
				return
			}
		}
	}
}

// drop removes the object with number n, and frees the number.
func (t *table[T]) drop(n uint32) {
	t.set(n, nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	if n < t.first {
		t.claimed = slices.DeleteFunc(t.claimed, func(c uint32) bool { return c == n })
		return
	}
	t.freed = append(t.freed, n)
}

// qp returns the queue pair with a number, or nil.
func (d *Device) qp(num uint32) *QP {
	if qp := d.qps.get(d.qpBits.slotOf(num)); qp != nil && qp.num == num {
		return qp
	}
	return nil
}
