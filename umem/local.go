package umem

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Local is a Space that consists of buffers of this process, which the owner has added. Addresses are the real
// addresses, and every access is checked against the buffers. The Space references the buffers until they are removed.
// All methods are safe for concurrent use. As with hardware, accesses of the device and of the owner are not ordered.
type Local struct {
	buffers atomic.Pointer[[]localBuffer] // sorted by address, without overlaps; a change replaces the slice
	mu      sync.Mutex                    // serialises Add and Remove
}

type localBuffer struct {
	addr uint64
	mem  []byte
}

// NewLocal returns a Space without buffers.
func NewLocal() *Local {
	l := &Local{}
	l.buffers.Store(&[]localBuffer{})
	return l
}

// Add adds b to the Space and returns the address of b. b must be writable. Add returns EEXIST if a part of b has
// already been added. An empty buffer has an address but no memory.
func (l *Local) Add(b []byte) (addr uint64, err error) {
	addr = addressOf(b)
	return addr, l.AddAt(addr, b)
}

// AddAt is the equivalent of Add for memory that another process has mapped as well. addr is the address in the Space,
// usually the address in the other process. AddAt returns ErrRange if the buffer would exceed the address range.
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
	i, found := findBuffer(old, addr)
	if found || i < len(old) && old[i].addr < addr+uint64(len(b)) || i > 0 && old[i-1].end() > addr {
		return fmt.Errorf("add %d bytes at %#x: the range overlaps another buffer: %w", len(b), addr, syscall.EEXIST)
	}
	fresh := slices.Insert(slices.Clone(old), i, localBuffer{addr, b})
	l.buffers.Store(&fresh)
	return nil
}

// Remove removes the buffer at addr from the Space. An access in flight may still use the buffer.
func (l *Local) Remove(addr uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := *l.buffers.Load()
	i, found := findBuffer(old, addr)
	if !found {
		return fmt.Errorf("remove the buffer at %#x: no such buffer: %w", addr, syscall.ENOENT)
	}
	fresh := slices.Delete(slices.Clone(old), i, i+1)
	l.buffers.Store(&fresh)
	return nil
}

func (b *localBuffer) end() uint64 { return b.addr + uint64(len(b.mem)) }

// findBuffer returns the index of the buffer that starts at addr, or its insertion point.
func findBuffer(buffers []localBuffer, addr uint64) (int, bool) {
	return slices.BinarySearchFunc(buffers, addr, func(b localBuffer, a uint64) int { return cmp.Compare(b.addr, a) })
}

// rangeMemory returns the memory of a range. The range must lie within one buffer.
func (l *Local) rangeMemory(addr, length uint64) ([]byte, error) {
	if length == 0 {
		return nil, nil
	}
	buffers := *l.buffers.Load()
	i, found := findBuffer(buffers, addr)
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
	_, err := l.rangeMemory(addr, length)
	return err
}

// ReadV implements Space.
func (l *Local) ReadV(dst [][]byte, addr uint64) error {
	mem, err := l.rangeMemory(addr, totalLen(dst))
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
	mem, err := l.rangeMemory(addr, totalLen(src))
	if err != nil {
		return err
	}
	for _, b := range src {
		mem = mem[copy(mem, b):]
	}
	return nil
}
