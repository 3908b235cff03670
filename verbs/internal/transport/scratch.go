package transport

import (
	"sync"
	"time"
)

// Scratch is memory for one command and for the buffers of its response.
type Scratch struct {
	Mem  []byte
	Addr uint64 // address of Mem for commands

	home   *Arena
	memory Memory
}

// scratchSize is the length of Scratch.Mem. The length suffices for each command of a provider, including a response
// with a table of 256 GIDs.
const scratchSize = 16 << 10

// Arena allocates Scratches from memory that the function allocate returns. All methods are safe for concurrent use.
type Arena struct {
	allocate func(size int) (Memory, error)

	mu     sync.Mutex
	free   []*Scratch
	closed bool
}

// NewArena creates an Arena.
func NewArena(allocate func(size int) (Memory, error)) *Arena { return &Arena{allocate: allocate} }

// Get returns a Scratch. If no memory is available, it waits.
func (a *Arena) Get() *Scratch {
	for {
		a.mu.Lock()
		if n := len(a.free); n > 0 {
			s := a.free[n-1]
			a.free = a.free[:n-1]
			a.mu.Unlock()
			return s
		}
		a.mu.Unlock()
		if m, err := a.allocate(scratchSize); err == nil {
			return &Scratch{Mem: m.Mem[:scratchSize], Addr: AddressOf(m.Mem), home: a, memory: m}
		}
		time.Sleep(time.Millisecond)
	}
}

// Free returns the memory to the Arena.
func (s *Scratch) Free() {
	a := s.home
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		s.memory.Free()
		return
	}
	a.free = append(a.free, s)
}

// Close frees unused memory now, and used memory when it is returned.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, s := range a.free {
		s.memory.Free()
	}
	a.free = nil
}

var (
	pastDeadline = time.Unix(1, 0)
	noDeadline   = time.Time{}
)
