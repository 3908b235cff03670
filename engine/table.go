package engine

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"
)

// table maps small numbers to objects. Lookup takes no lock. Numbers are given out oldest first, so that a number
// that was in use until just now stays unused for as long as possible.
type table[T any] struct {
	chunks [tableChunks]atomic.Pointer[tableChunk[T]]

	mu      sync.Mutex
	first   uint32 // lowest number
	limit   uint32 // numbers are below this
	start   uint32 // the number that is given out first, counted from first; they go up, and around
	fresh   uint32 // how many were ever used
	freed   []uint32
	head    int      // freed[:head] were given out again
	claimed []uint32 // below first
}

const (
	chunkBits   = 10
	tableChunks = 1 << chunkBits
	tableMax    = tableChunks << chunkBits
)

type tableChunk[T any] [1 << chunkBits]atomic.Pointer[T]

// init sets the range of numbers, first to limit-1; limit is at most tableMax.
func (t *table[T]) init(first, limit uint32) { t.first, t.limit = first, limit }

// skip has the first n numbers given out last.
func (t *table[T]) skip(n uint32) { t.start = n % (t.limit - t.first) }

// nth is the number that is the n-th to be given out.
func (t *table[T]) nth(n uint32) uint32 { return t.first + (t.start+n)%(t.limit-t.first) }

// used is how many numbers were ever given out.
func (t *table[T]) used() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fresh
}

// reserve takes a number, false if there is none left. Lookups do not find it until it is set.
func (t *table[T]) reserve() (uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Reuse late: only when as many are free as a quarter of those ever used.
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

// claim takes a number below the lowest, false if it is taken. Lookups do not find it until it is set.
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

// grow makes room for a number.
//
//verbena:held mu
func (t *table[T]) grow(n uint32) {
	if c := &t.chunks[n>>chunkBits]; c.Load() == nil {
		c.Store(new(tableChunk[T]))
	}
}

// set makes a reserved number refer to v.
func (t *table[T]) set(n uint32, v *T) {
	t.chunks[n>>chunkBits].Load()[n&(1<<chunkBits-1)].Store(v)
}

// get finds what n refers to, nil if nothing.
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

// all goes through what is referred to.
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

// drop makes n refer to nothing, and free.
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

// qp finds a queue pair by its number.
func (d *Device) qp(num uint32) *QP {
	if qp := d.qps.get(d.qpBits.slotOf(num)); qp != nil && qp.num == num {
		return qp
	}
	return nil
}
