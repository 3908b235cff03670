package efa_test

import "unsafe"

// sharedWord returns an aligned word of shared memory.
func sharedWord(b []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&b[at : at+4][0])) }
