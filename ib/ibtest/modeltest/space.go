package modeltest

import (
	"sync"
	"syscall"

	"verbena/ib/ibtest/model"
	"verbena/umem"
)

// sparseSpace is an address space without holes. Only written pages use memory. It implements umem.Space.
type sparseSpace struct {
	mu  sync.Mutex
	mem *model.Memory
}

func newSparseSpace() *sparseSpace { return &sparseSpace{mem: model.NewMemory()} }

// Check implements umem.Space.
func (s *sparseSpace) Check(addr, length uint64, write bool) error { return nil }

// ReadV implements umem.Space.
func (s *sparseSpace) ReadV(dst [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range dst {
		s.mem.Read(addr, b)
		addr += uint64(len(b))
	}
	return nil
}

// WriteV implements umem.Space.
func (s *sparseSpace) WriteV(src [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range src {
		s.mem.Write(addr, b)
		addr += uint64(len(b))
	}
	return nil
}

// takeWrittenPages returns the numbers of pages written since the last call.
func (s *sparseSpace) takeWrittenPages() map[uint64]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mem.TakeWrittenPages()
}

// memoryArea is a part of the memory of a run.
type memoryArea struct {
	space umem.Space
	base  uint64
	size  uint64
	local []byte // nil: in a space
}

const (
	localSize = 128 << 10
	// A region in the first sparse area has addresses on both sides of 4 GiB; the second area is at the end of the
	// addresses that a region may have.
	lowBase  = 1<<32 - 1<<16
	highBase = 1<<64 - 1<<44
	lowSize  = 1 << 39
	highSize = 1 << 43
)

// allocateAreas allocates the memory of a run.
func (x *modelRunner) allocateAreas() error {
	words, err := allocateLocalMemory(func(addr uint64) bool { return addr-lowBase+localSize < lowSize+localSize })
	if err != nil {
		return err
	}
	local := umem.NewLocal()
	addr, err := local.Add(words)
	if err != nil {
		return err
	}
	skip := -addr % model.PageSize
	words, addr = words[skip:][:localSize], addr+skip
	model.FillPattern(addr, words)
	x.space = newSparseSpace()
	x.areas = []memoryArea{
		{local, addr, localSize, words},
		{x.space, lowBase, lowSize, nil},
		{x.space, highBase, highSize, nil},
	}
	return nil
}

// allocateLocalMemory returns memory of this process for the first area. The runtime places its heap at a random
// address, which may overlap a sparse area. In this case the memory is mapped at a high address. It stays mapped,
// because a device may store to it late.
func allocateLocalMemory(taken func(addr uint64) bool) ([]byte, error) {
	const size = localSize + 2*model.PageSize
	b := make([]byte, size)
	if addr, err := umem.NewLocal().Add(b); err != nil || !taken(addr) {
		return b, err
	}
	return syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

// areaRange is a range of memory.
type areaRange struct {
	area     int
	off, len uint64
}

// spanOfRange returns the addresses of a place.
func (x *modelRunner) spanOfRange(p areaRange) model.Span {
	return model.Span{Addr: x.areas[p.area].base + p.off, Len: p.len}
}

// compareMemory returns the first difference between the memory of the device and of the model.
func (x *modelRunner) compareMemory() *modelDifference {
	pages := x.dirty
	for n := range x.m.Mem.TakeWrittenPages() {
		pages[n] = true
	}
	for n := range x.space.takeWrittenPages() {
		pages[n] = true
	}
	local := x.areas[0]
	var buf [model.PageSize]byte
	check := func(n uint64, got []byte) *modelDifference {
		addr, ok := x.m.Mem.ComparePage(n, got)
		if ok {
			return nil
		}
		var want [1]byte
		x.m.Mem.Read(addr, want[:])
		return newTransientDifference("memory: byte at %s: got %#x, want %#x", x.describeAddress(addr),
			got[addr%model.PageSize],
			want[0])
	}
	for off := uint64(0); off < localSize; off += model.PageSize {
		copyRacy(buf[:], local.local[off:])
		if d := check((local.base+off)/model.PageSize, buf[:]); d != nil {
			return d
		}
	}
	for n := range pages {
		if addr := n * model.PageSize; addr-local.base < localSize {
			continue
		}
		x.space.mu.Lock()
		x.space.mem.Read(n*model.PageSize, buf[:])
		x.space.mu.Unlock()
		if d := check(n, buf[:]); d != nil {
			return d
		}
	}
	clear(x.dirty)
	return nil
}

// describeAddress names an address.
func (x *modelRunner) describeAddress(addr uint64) string {
	for i, a := range x.areas {
		if addr-a.base < a.size {
			return sprintf("area %d + %#x", i, addr-a.base)
		}
	}
	return sprintf("%#x", addr)
}
