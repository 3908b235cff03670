package suite

import "unsafe"

// firstWord returns the address of the first eight bytes as a number.
func firstWord(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }
