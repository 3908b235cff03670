package layout

import "unsafe"

// wordAt returns the aligned 32-bit word at an offset, which is within the memory.
func (m *memory) wordAt(at int) *uint32 { return (*uint32)(unsafe.Pointer(&m.mem[at : at+4][0])) }
