package umem

import "unsafe"

// addressOf is where b lies. Go does not move what is reachable from the heap.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
