package suite

import "unsafe"

// words returns the address of the first eight bytes as a number.
func words(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }
