package hugepage

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReserve tests that large memory has the same offset in a huge page as in its file, and that Release frees all
// addresses.
func TestReserve(t *testing.T) {
	page := os.Getpagesize()
	for _, c := range []struct {
		n      int
		offset int64
	}{{page, 3 * size}, {size - page, 0}, {size, 0}, {size, size + int64(page)}, {3*size + page, size - int64(page)}} {
		mem, err := Reserve(c.n, c.offset)
		if err != nil {
			t.Fatal(err)
		}
		if len(mem) != c.n || cap(mem) != c.n {
			t.Errorf("Reserve(%d, %#x): got %d bytes with capacity %d, want n", c.n, c.offset, len(mem), cap(mem))
		}
		if at := address(mem); c.n >= size && at%size != uintptr(c.offset)%size {
			t.Errorf("Reserve(%d, %#x): got address %#x, want the same offset in a huge page", c.n, c.offset, at)
		}
		if mapped(t, mem) != len(mem) {
			t.Errorf("Reserve(%d, %#x): got %d mapped bytes, want all", c.n, c.offset, mapped(t, mem))
		}
		Release(mem)
		if n := mapped(t, mem); n != 0 {
			t.Errorf("mapped bytes after Release: got %d, want 0", n)
		}
	}
}

// mapped returns the number of mapped bytes of mem.
func mapped(t *testing.T, mem []byte) (n int) {
	page := os.Getpagesize()
	for at := 0; at < len(mem); at += page {
		if err := unix.Madvise(mem[at:at+page:at+page], unix.MADV_NORMAL); err == nil {
			n += page
		}
	}
	return n
}

// TestAlign tests the offsets returned by Align.
func TestAlign(t *testing.T) {
	for _, c := range []struct{ off, n, want int64 }{
		{0, 1, 0}, {4096, 4096, 4096}, {4096, size - 1, 4096}, {0, size, 0}, {4096, size, size}, {size, 5 * size,
			size}, {size + 1, size, 2 * size},
	} {
		if got := Align(c.off, c.n); got != c.want {
			t.Errorf("Align(%d, %d): got %d, want %d", c.off, c.n, got, c.want)
		}
	}
}

// TestAlignDown tests the offsets returned by AlignDown.
func TestAlignDown(t *testing.T) {
	for _, c := range []struct{ off, n, want int64 }{
		{0, 1, 0}, {4096, size - 1, 4096}, {4096, size, 0}, {size, size, size}, {2*size + 1, 5 * size, 2 * size},
	} {
		if got := AlignDown(c.off, c.n); got != c.want {
			t.Errorf("AlignDown(%d, %d): got %d, want %d", c.off, c.n, got, c.want)
		}
	}
}

// TestCollapse tests that the content of memory stays unchanged, whether or not the kernel has collapsed its pages.
func TestCollapse(t *testing.T) {
	fd, err := unix.MemfdCreate("hugepage-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const n = 2 * size
	if err := unix.Ftruncate(fd, n); err != nil {
		t.Fatal(err)
	}
	var two [2][]byte
	for i := range two {
		mem, err := Reserve(n, 0)
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
