package hugepage

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReserveAlignsToFile tests that large memory has the same offset in a huge page as in its file, and that Release
// frees all addresses.
func TestReserveAlignsToFile(t *testing.T) {
	page := os.Getpagesize()
	for _, c := range []struct {
		n      int
		offset int64
	}{{page, 3 * hugePageSize}, {hugePageSize - page, 0}, {hugePageSize, 0}, {hugePageSize, hugePageSize +
		int64(page)}, {3*hugePageSize + page, hugePageSize - int64(page)}} {
		mem, err := ReserveAddresses(c.n, c.offset)
		if err != nil {
			t.Fatal(err)
		}
		if len(mem) != c.n || cap(mem) != c.n {
			t.Errorf("Reserve(%d, %#x): got %d bytes with capacity %d, want n", c.n, c.offset, len(mem), cap(mem))
		}
		if at := addressOf(mem); c.n >= hugePageSize && at%hugePageSize != uintptr(c.offset)%hugePageSize {
			t.Errorf("Reserve(%d, %#x): got address %#x, want the same offset in a huge page", c.n, c.offset, at)
		}
		if countMappedBytes(t, mem) != len(mem) {
			t.Errorf("Reserve(%d, %#x): got %d mapped bytes, want all", c.n, c.offset, countMappedBytes(t, mem))
		}
		Release(mem)
		if n := countMappedBytes(t, mem); n != 0 {
			t.Errorf("mapped bytes after Release: got %d, want 0", n)
		}
	}
}

// countMappedBytes returns the number of mapped bytes of mem.
func countMappedBytes(t *testing.T, mem []byte) (n int) {
	page := os.Getpagesize()
	for at := 0; at < len(mem); at += page {
		if err := unix.Madvise(mem[at:at+page:at+page], unix.MADV_NORMAL); err == nil {
			n += page
		}
	}
	return n
}

// TestAlignReturnsHugePageOffsets tests the offsets returned by Align.
func TestAlignReturnsHugePageOffsets(t *testing.T) {
	for _, c := range []struct{ off, n, want int64 }{
		{0, 1, 0}, {4096, 4096, 4096}, {4096, hugePageSize - 1, 4096}, {0, hugePageSize, 0}, {4096, hugePageSize,
			hugePageSize}, {hugePageSize, 5 * hugePageSize,
			hugePageSize}, {hugePageSize + 1, hugePageSize, 2 * hugePageSize},
	} {
		if got := Align(c.off, c.n); got != c.want {
			t.Errorf("Align(%d, %d): got %d, want %d", c.off, c.n, got, c.want)
		}
	}
}

// TestAlignDownReturnsHugePageOffsets tests the offsets returned by AlignDown.
func TestAlignDownReturnsHugePageOffsets(t *testing.T) {
	for _, c := range []struct{ off, n, want int64 }{
		{0, 1, 0}, {4096, hugePageSize - 1, 4096}, {4096, hugePageSize, 0}, {hugePageSize, hugePageSize,
			hugePageSize}, {2*hugePageSize + 1, 5 * hugePageSize, 2 * hugePageSize},
	} {
		if got := AlignDown(c.off, c.n); got != c.want {
			t.Errorf("AlignDown(%d, %d): got %d, want %d", c.off, c.n, got, c.want)
		}
	}
}

// TestCollapseKeepsContent tests that the content of memory stays unchanged, whether or not the kernel has collapsed
// its pages.
func TestCollapseKeepsContent(t *testing.T) {
	fd, err := unix.MemfdCreate("hugepage-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const n = 2 * hugePageSize
	if err := unix.Ftruncate(fd, n); err != nil {
		t.Fatal(err)
	}
	var two [2][]byte
	for i := range two {
		mem, err := ReserveAddresses(n, 0)
		if err == nil {
			err = Map(mem, fd, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer Release(mem)
		two[i] = mem
	}
	for i := range two[0] {
		two[0][i] = byte(i * 7 >> 3)
	}
	Collapse(two[0])
	for i := range two[1] {
		if two[1][i] != byte(i*7>>3) {
			t.Fatalf("byte %d after Collapse: got another value, want no change", i)
		}
	}
}
