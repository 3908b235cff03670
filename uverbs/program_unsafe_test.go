package uverbs

import "unsafe"

// addressOf is where b lies, which is outside of Go's heap.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
