package hugepage

import "golang.org/x/sys/unix"

// hugePageSize is the size of a huge page, for base pages of 4 KB. Smaller mappings have ordinary pages.
const hugePageSize = 2 << 20

// Align returns the first offset in a file, from off on, that is suitable for the start of n bytes.
func Align(off, n int64) int64 {
	if n < hugePageSize {
		return off
	}
	return (off + hugePageSize - 1) &^ (hugePageSize - 1)
}

// AlignDown returns the last offset in a file, up to off, that is suitable for the start of n bytes.
func AlignDown(off, n int64) int64 {
	if n < hugePageSize {
		return off
	}
	return off &^ (hugePageSize - 1)
}

// ReserveAddresses reserves addresses for n bytes, a multiple of the page size, for a mapping from an offset in a file.
// The addresses cannot be accessed yet. Release frees them.
func ReserveAddresses(n int, offset int64) ([]byte, error) {
	if n < hugePageSize {
		return reserveAddressRange(n)
	}
	room, err := reserveAddressRange(n + hugePageSize)
	if err != nil {
		return nil, err
	}
	before := int((uintptr(offset) - addressOf(room)) % hugePageSize)
	Release(room[:before])
	Release(room[before+n:])
	return room[before : before+n : before+n], nil
}

// Release unmaps memory. The caller must not use any slice of the memory afterwards.
func Release(mem []byte) {
	if len(mem) > 0 {
		unmap(mem)
	}
}

// Collapse asks the kernel to convert the pages of a shared mapping to huge pages. All pages must be present.
// Collapse may sleep, because it copies other pages.
func Collapse(mem []byte) {
	if len(mem) < hugePageSize {
		return
	}
	for range 3 { // EAGAIN means that pages are temporarily in use
		if unix.Madvise(mem, unix.MADV_COLLAPSE) != unix.EAGAIN {
			return
		}
	}
}
