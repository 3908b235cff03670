package hugepage

import "golang.org/x/sys/unix"

// Size is the size of a huge page, where pages have 4 KB. Smaller mappings are ordinary ones.
const Size = 2 << 20

// Align returns the first offset in a file from off on at which n bytes are to begin.
func Align(off, n int64) int64 {
	if n < Size {
		return off
	}
	return (off + Size - 1) &^ (Size - 1)
}

// AlignDown returns the last offset in a file up to off at which n bytes are to begin.
func AlignDown(off, n int64) int64 {
	if n < Size {
		return off
	}
	return off &^ (Size - 1)
}

// Reserve returns addresses for n bytes, a multiple of the page size, that are going to be mapped from an offset in a
// file. They cannot be accessed yet. Release gives them back.
func Reserve(n int, offset int64) ([]byte, error) {
	if n < Size {
		return reserve(n)
	}
	room, err := reserve(n + Size)
	if err != nil {
		return nil, err
	}
	before := int((uintptr(offset) - address(room)) % Size)
	Release(room[:before])
	Release(room[before+n:])
	return room[before : before+n : before+n], nil
}

// Release unmaps memory that nobody has a slice of any more.
func Release(mem []byte) {
	if len(mem) > 0 {
		unmap(mem)
	}
}

// Collapse asks the kernel to make the pages of a shared mapping huge, which must all be there. It may sleep: it copies
// what is not huge yet.
func Collapse(mem []byte) {
	if len(mem) < Size {
		return
	}
	for range 3 { // EAGAIN: pages are in use for a moment
		if unix.Madvise(mem, unix.MADV_COLLAPSE) != unix.EAGAIN {
			return
		}
	}
}
