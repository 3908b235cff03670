package transport

import (
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"
)

// anonymous is memory of this process that is not used now, by the logarithm of its size.
var anonymous struct {
	sync.Mutex
	free [64][][]byte
}

const minShift = 12 // a page

// Anonymous returns memory of this process alone, zeroed and aligned to a page. It is never unmapped: what is freed serves the next who
// asks for as much.
func Anonymous(size int) (Memory, error) {
	shift := max(minShift, bits.Len(uint(size-1)))
	a := &anonymous
	a.Lock()
	if n := len(a.free[shift]); n > 0 {
		b := a.free[shift][n-1]
		a.free[shift] = a.free[shift][:n-1]
		a.Unlock()
		return memoryOf(b, shift), nil
	}
	a.Unlock()
	b, err := unix.Mmap(-1, 0, 1<<shift, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return Memory{}, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return memoryOf(b, shift), nil
}

// lazily is from how many bytes on pages are given back rather than zeroed.
const lazily = 64 << 10

func memoryOf(b []byte, shift int) Memory {
	return Memory{Mem: b, Free: func() {
		if len(b) < lazily || unix.Madvise(b, unix.MADV_DONTNEED) != nil {
			clear(b)
		}
		anonymous.Lock()
		defer anonymous.Unlock()
		anonymous.free[shift] = append(anonymous.free[shift], b)
	}}
}
