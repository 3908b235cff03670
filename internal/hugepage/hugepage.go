package hugepage

import "golang.org/x/sys/unix"

// Size is the size of a huge page, for pages of 4 KB. Smaller mappings are ordinary ones.
const Size = 2 << 20

// Align returns the first suitable offset in a file, from off on, for the start of n bytes.
func Align(off, n int64) int64 {
	if n < Size {
		return off
	}
	return (off + Size - 1) &^ (Size - 1)
}

// AlignDown returns the last suitable offset in a file, up to off, for the start of n bytes.
func AlignDown(off, n int64) int64 {
	if n < Size {
		return off
	}
	return off &^ (Size - 1)
}

// Reserve reserves addresses for n bytes, a multiple of the page size, to map from an offset in a file. The addresses
// cannot be accessed yet. Release frees them.
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

// Release unmaps memory. The caller must hold no slice of it any more.
func Release(mem []byte) {
	if len(mem) > 0 {
		unmap(mem)
	}
}

// Collapse asks the kernel to make the pages of a shared mapping huge. All pages must be present. It may sleep, since
// it copies other pages.
func Collapse(mem []byte) {
	if len(mem) < Size {
		return
	}
	for range 3 { // EAGAIN: pages are temporarily in use
		if unix.Madvise(mem, unix.MADV_COLLAPSE) != unix.EAGAIN {
			return
		}
	}
}
