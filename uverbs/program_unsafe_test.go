package uverbs

import (
	"sync/atomic"
	"unsafe"
)

// addressOf returns the address of b, which is outside Go's heap.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// storeWord is a program's store into a shared queue.
func storeWord(q []byte, at int, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&q[at])), v)
}
