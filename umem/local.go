package umem

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Local is memory of this process: buffers that its owner has added. Addresses are the real ones, and every
// access is checked against the buffers. The Space keeps the buffers alive until they are removed. It is safe for
// concurrent use; as with real hardware, nothing orders the device's accesses with the owner's.
type Local struct {
	buffers atomic.Pointer[[]localBuffer] // in order of address, never overlapping; replaced, not changed
	mu      sync.Mutex                    // one Add or Remove at a time
}

type localBuffer struct {
	addr uint64
	mem  []byte
}

// NewLocal returns a Space of no buffers yet.
func NewLocal() *Local {
	l := &Local{}
	l.buffers.Store(&[]localBuffer{})
	return l
}

// Add makes b, which must be writable, part of the Space and returns its address. EEXIST if part of it was added
// already. An empty buffer has an address but no memory.
func (l *Local) Add(b []byte) (addr uint64, err error) {
	addr = addressOf(b)
	return addr, l.AddAt(addr, b)
}

// AddAt does the same for memory that another process has mapped too, at an address of its own, by which the Space names it. ErrRange if it
// would lie beyond the last address.
func (l *Local) AddAt(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if addr+uint64(len(b)) < addr {
		return fmt.Errorf("add %d bytes at %#x: %w", len(b), addr, ErrRange)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := *l.buffers.Load()
	i, found := find(old, addr)
	if found || i < len(old) && old[i].addr < addr+uint64(len(b)) || i > 0 && old[i-1].end() > addr {
		return fmt.Errorf("add %d bytes at %#x: overlaps a buffer that was added before: %w", len(b), addr, syscall.EEXIST)
	}
	fresh := slices.Insert(slices.Clone(old), i, localBuffer{addr, b})
	l.buffers.Store(&fresh)
	return nil
}

// Remove takes the buffer that was added at addr out of the Space. An access in flight may still touch it.
func (l *Local) Remove(addr uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := *l.buffers.Load()
	i, found := find(old, addr)
	if !found {
		return fmt.Errorf("remove buffer at %#x: no buffer was added there: %w", addr, syscall.ENOENT)
	}
	fresh := slices.Delete(slices.Clone(old), i, i+1)
	l.buffers.Store(&fresh)
	return nil
}

func (b *localBuffer) end() uint64 { return b.addr + uint64(len(b.mem)) }

// find is the place of the buffer that starts at addr, or where it would be.
func find(buffers []localBuffer, addr uint64) (int, bool) {
	return slices.BinarySearchFunc(buffers, addr, func(b localBuffer, a uint64) int { return cmp.Compare(b.addr, a) })
}

// at is the memory of a range, which lies within one buffer.
func (l *Local) at(addr, length uint64) ([]byte, error) {
	if length == 0 {
		return nil, nil
	}
	buffers := *l.buffers.Load()
	i, found := find(buffers, addr)
	if !found {
		i--
	}
	if i < 0 {
		return nil, ErrFault
	}
	b := &buffers[i]
	off := addr - b.addr
	if off >= uint64(len(b.mem)) || length > uint64(len(b.mem))-off {
		return nil, ErrFault
	}
	return b.mem[off : off+length], nil
}

// Check implements Space. The range must lie within one buffer.
func (l *Local) Check(addr, length uint64, write bool) error {
	_, err := l.at(addr, length)
	return err
}

// ReadV implements Space.
func (l *Local) ReadV(dst [][]byte, addr uint64) error {
	mem, err := l.at(addr, total(dst))
	if err != nil {
		return err
	}
	for _, b := range dst {
		mem = mem[copy(b, mem):]
	}
	return nil
}

// WriteV implements Space.
func (l *Local) WriteV(src [][]byte, addr uint64) error {
	mem, err := l.at(addr, total(src))
	if err != nil {
		return err
	}
	for _, b := range src {
		mem = mem[copy(mem, b):]
	}
	return nil
}
