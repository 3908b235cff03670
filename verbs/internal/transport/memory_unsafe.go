package transport

import "unsafe"

// AddressOf returns the address of a slice's first byte.
func AddressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
