package service

import (
	"fmt"
	"math/bits"
	"os"
	"slices"
	"sync"
	"syscall"

	"verbena/internal/hugepage"
	"verbena/umem"
	"verbena/verbs/internal/transport"
)

// bufferPool is the memory that the program shares with the service. Freed pieces are reused.
type bufferPool struct {
	file     *os.File
	allocate func(addr uint64, n int) (offset uint64, err error)

	mu     sync.Mutex
	free   map[int][]bufferPiece // by size
	slab   *bufferMapping        // the mapping for small pieces, or nil
	cut    int                   // length of the used part of slab
	all    []*bufferMapping      // sorted by address
	closed bool
}

// bufferMapping is a mapped part of the buffer file.
type bufferMapping struct {
	mem  []byte
	used int // number of allocated pieces
}

// bufferPiece is a part of a mapping.
type bufferPiece struct {
	mem []byte
	of  *bufferMapping
}

// slabSize is the size in bytes of a mapping for several pieces. Each larger piece has its own mapping.
const slabSize = 1 << 20

func newBufferPool(f *os.File, allocate func(addr uint64, n int) (uint64, error)) *bufferPool {
	return &bufferPool{file: f, allocate: allocate, free: map[int][]bufferPiece{}}
}

// pieceSize returns the size of a piece for n bytes. There are four sizes for each power of two, in whole pages.
func pieceSize(n int) int {
	page := int(umem.PageSize)
	n = (n + page - 1) &^ (page - 1)
	step := max(page, 1<<max(0, bits.Len(uint(n-1))-3))
	return (n + step - 1) &^ (step - 1)
}

// allocMemory returns zeroed memory.
func (p *bufferPool) allocMemory(n int) (transport.Memory, error) {
	if n <= 0 || n > 1<<46 {
		return transport.Memory{}, fmt.Errorf("allocate %d bytes: %w", n, syscall.EINVAL)
	}
	size := pieceSize(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return transport.Memory{}, transport.ErrClosed
	}
	x, err := p.takePiece(size)
	if err != nil {
		return transport.Memory{}, fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	x.of.used++
	return transport.Memory{Mem: x.mem, Free: sync.OnceFunc(func() { p.freePiece(x) })}, nil
}

// takePiece returns a free piece. mu must be held.
//
//verbena:held mu
func (p *bufferPool) takePiece(size int) (bufferPiece, error) {
	if l := p.free[size]; len(l) > 0 {
		x := l[len(l)-1]
		p.free[size] = l[:len(l)-1]
		clear(x.mem)
		return x, nil
	}
	if size > slabSize/4 {
		m, err := p.newMapping(size)
		if err != nil {
			return bufferPiece{}, err
		}
		return bufferPiece{m.mem, m}, nil
	}
	if p.slab == nil || p.cut+size > len(p.slab.mem) {
		m, err := p.newMapping(slabSize)
		if err != nil {
			return bufferPiece{}, err
		}
		p.slab, p.cut = m, 0
	}
	at := p.cut
	p.cut += size
	return bufferPiece{p.slab.mem[at:p.cut:p.cut], p.slab}, nil
}

//verbena:held mu
func (p *bufferPool) newMapping(size int) (*bufferMapping, error) {
	mem, err := hugepage.ReserveAddresses(size, 0) // uses the alignment of the service's file
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of addresses: %w", size, err)
	}
	offset, err := p.allocate(transport.AddressOf(mem), size)
	if err == nil {
		err = hugepage.Map(mem, int(p.file.Fd()), int64(offset))
	}
	if err != nil {
		hugepage.Release(mem)
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	hugepage.Collapse(mem)
	m := &bufferMapping{mem: mem}
	at, _ := p.findMapping(transport.AddressOf(mem))
	p.all = slices.Insert(p.all, at, m)
	return m, nil
}

// findMapping returns the index of the mapping that contains an address, or its insertion point.
//
//verbena:held mu
func (p *bufferPool) findMapping(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(p.all, addr, func(m *bufferMapping, a uint64) int {
		start := transport.AddressOf(m.mem)
		switch {
		case a < start:
			return 1
		case a >= start+uint64(len(m.mem)):
			return -1
		}
		return 0
	})
}

// contains reports whether memory belongs to the pool.
func (p *bufferPool) contains(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.findMapping(transport.AddressOf(b))
	return ok && transport.AddressOf(b)+uint64(len(b)) <= transport.AddressOf(p.all[at].mem)+uint64(len(p.all[at].mem))
}

func (p *bufferPool) freePiece(x bufferPiece) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x.of.used--; !p.closed {
		p.free[len(x.mem)] = append(p.free[len(x.mem)], x)
	} else if x.of.used == 0 {
		zeroMemory(x.of.mem)
	}
}

// endMemorySharing ends the sharing. Pieces that the program has not freed remain mapped with their contents.
func (p *bufferPool) endMemorySharing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	for _, m := range p.all {
		if m.used == 0 || makePrivate(m.mem) != nil {
			zeroMemory(m.mem)
		}
	}
	p.free = nil
	p.file.Close()
}
