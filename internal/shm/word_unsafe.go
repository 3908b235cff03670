package shm

import (
	"sync/atomic"
	"unsafe"
)

// Word is the number at the beginning of shared memory, which is aligned for it, as are mappings.
func Word(mem []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(mem[:4])))
}
