package umem

import "unsafe"

// addressOf returns the address of b. Go does not move heap objects.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
