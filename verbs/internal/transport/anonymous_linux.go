package transport

import (
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"
)

// anonymousPool holds unused memory of this process, indexed by the logarithm of its size.
var anonymousPool struct {
	sync.Mutex
	free [64][][]byte
}

const minSizeShift = 12 // a page

// Anonymous returns private memory of this process, zeroed and page-aligned. The memory is never unmapped: freed memory
// is reused for the same size.
func Anonymous(size int) (Memory, error) {
	shift := max(minSizeShift, bits.Len(uint(size-1)))
	a := &anonymousPool
	a.Lock()
	if n := len(a.free[shift]); n > 0 {
		b := a.free[shift][n-1]
		a.free[shift] = a.free[shift][:n-1]
		a.Unlock()
		return newPooledMemory(b, shift), nil
	}
	a.Unlock()
	b, err := unix.Mmap(-1, 0, 1<<shift, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return Memory{}, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return newPooledMemory(b, shift), nil
}

// minReleaseSize is the size in bytes from which freed pages are released to the kernel. Smaller memory is zeroed.
const minReleaseSize = 64 << 10

func newPooledMemory(b []byte, shift int) Memory {
	return Memory{Mem: b, Free: func() {
		if len(b) < minReleaseSize || unix.Madvise(b, unix.MADV_DONTNEED) != nil {
			clear(b)
		}
		anonymousPool.Lock()
		defer anonymousPool.Unlock()
		anonymousPool.free[shift] = append(anonymousPool.free[shift], b)
	}}
}
