package shm

import (
	"sync/atomic"
	"unsafe"
)

// FirstWord returns the number at the beginning of shared memory. The memory must be aligned for a uint32, as mappings
// are.
func FirstWord(mem []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(mem[:4])))
}
