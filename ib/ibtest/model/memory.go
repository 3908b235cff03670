package model

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
)

// PageSize is the granularity of stored memory, in bytes.
const PageSize = 4096

// Memory is the sparse contents of an address range. A byte that was never written has the value of [Pattern]. It is
// not safe for concurrent use.
type Memory struct {
	pages map[uint64]*memoryPage // by address / PageSize
	blurs []ambiguousRange
	fresh map[uint64]bool // pages written since the last TakeWrittenPages

	history uint64 // hash of the writes, in order
}

type memoryPage struct {
	owner *Memory // the only one that may write the page
	b     [PageSize]byte
}

// ambiguousRange is a range with a second legal value.
type ambiguousRange struct {
	addr uint64
	alt  []byte // nil: any value
	n    uint64
}

// NewMemory returns memory without writes.
func NewMemory() *Memory { return &Memory{pages: map[uint64]*memoryPage{}, fresh: map[uint64]bool{}} }

// clone returns a copy that shares each page until one of the two writes it. The receiver must not be written
// afterwards, unless the copy is no longer used.
func (m *Memory) clone() *Memory {
	return &Memory{pages: maps.Clone(m.pages), fresh: maps.Clone(m.fresh), blurs: slices.Clone(m.blurs),
		history: m.history}
}

// FillPattern fills b with the contents of unwritten memory at addr. The contents differ between pages.
func FillPattern(addr uint64, b []byte) {
	for len(b) > 0 {
		var w [8]byte
		x := addr >> 3
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(w[:], x^x>>31)
		n := copy(b, w[addr&7:])
		b, addr = b[n:], addr+uint64(n)
	}
}

// readPage returns the page of a number, for reading.
func (m *Memory) readPage(n uint64) *memoryPage {
	p := m.pages[n]
	if p == nil {
		p = &memoryPage{owner: m}
		FillPattern(n*PageSize, p.b[:])
		m.pages[n] = p
	}
	return p
}

// Read fills b with the memory at addr.
func (m *Memory) Read(addr uint64, b []byte) {
	for len(b) > 0 {
		n := copy(b, m.readPage(addr / PageSize).b[addr%PageSize:])
		b, addr = b[n:], addr+uint64(n)
	}
}

// Write stores b at an address.
func (m *Memory) Write(addr uint64, b []byte) {
	m.recordMemoryChange(addr, b)
	for len(b) > 0 {
		k := addr / PageSize
		p := m.readPage(k)
		if p.owner != m {
			p = &memoryPage{owner: m, b: p.b}
			m.pages[k] = p
		}
		m.fresh[k] = true
		n := copy(p.b[addr%PageSize:], b)
		b, addr = b[n:], addr+uint64(n)
	}
}

// TakeWrittenPages returns the numbers of pages written since the last call.
func (m *Memory) TakeWrittenPages() map[uint64]bool {
	f := m.fresh
	m.fresh = map[uint64]bool{}
	return f
}

// allowAlternative allows n bytes at an address to have their current value or that of alt; a nil alt allows any value.
// Sharpen ends it.
func (m *Memory) allowAlternative(addr, n uint64, alt []byte) {
	if n == 0 {
		return
	}
	m.blurs = append(m.blurs, ambiguousRange{addr, bytes.Clone(alt), n})
	m.recordMemoryChange(addr, alt)
	for k := addr / PageSize; k <= (addr+n-1)/PageSize; k++ {
		m.fresh[k] = true
	}
}

// isAmbiguous reports whether a byte of a range is undefined.
func (m *Memory) isAmbiguous(addr, n uint64) bool {
	for _, b := range m.blurs {
		if addr < b.addr+b.n && b.addr < addr+n {
			return true
		}
	}
	return false
}

// clearAlternatives ends all blurs.
func (m *Memory) clearAlternatives() { m.blurs = m.blurs[:0] }

// ComparePage compares one page with the device's contents. It returns the address of the first difference. It copies
// bytes that a blur allows.
func (m *Memory) ComparePage(n uint64, got []byte) (addr uint64, ok bool) {
	p := m.readPage(n)
	if bytes.Equal(p.b[:len(got)], got) {
		return 0, true
	}
	for i, v := range got {
		addr = n*PageSize + uint64(i)
		switch {
		case p.b[i] == v:
		case m.matchesAmbiguousRange(addr, v):
			m.Write(addr, got[i:i+1])
			p = m.readPage(n)
		default:
			return addr, false
		}
	}
	return 0, true
}

func (m *Memory) matchesAmbiguousRange(addr uint64, v byte) bool {
	for _, b := range m.blurs {
		if i := addr - b.addr; i < b.n && (b.alt == nil || b.alt[i] == v) {
			return true
		}
	}
	return false
}
