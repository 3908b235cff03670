package layout

import (
	"runtime/debug"
	"sync/atomic"

	"verbena/ib"
	"verbena/internal/memfault"
)

// memory is memory that is shared with a program. An access to pages that the program has taken away faults; then ok is
// false.
type memory struct{ mem []byte }

// load returns a word that the program may change.
func (m *memory) load(at int) (v uint32, ok bool) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	return atomic.LoadUint32(m.wordAt(at)), true
}

// store writes a word.
func (m *memory) store(at int, v uint32) (ok bool) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	atomic.StoreUint32(m.wordAt(at), v)
	return true
}

// clear fills the memory behind an offset with zeros.
func (m *memory) clear(at int) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	clear(m.mem[at:])
}

// read copies bytes out.
func (m *memory) read(at int, dst []byte) (ok bool) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	copy(dst, m.mem[at:])
	return true
}

// publish writes an entry. The first word makes the entry valid.
func (m *memory) publish(at int, first uint32, rest []byte) (ok bool) {
	defer memfault.Survive(debug.SetPanicOnFault(true))
	copy(m.mem[at+4:], rest)
	atomic.StoreUint32(m.wordAt(at), first)
	return true
}

// region is memory from ib.UserContext.AllocShared, divided into parts of whole pages.
type region struct {
	shared ib.Shared
	used   int
}

// part returns the next size bytes, and their offset for mmap.
func (r *region) part(size int) (m memory, key uint64) {
	n := pages(size)
	m.mem = r.shared.Mem[r.used : r.used+n : r.used+n]
	key = r.shared.Offset + uint64(r.used)
	r.used += n
	return m, key
}
