package shm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func create(t *testing.T) *File {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "verbena-shm-test-")
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f, err := Create(filepath.Join(dir, "queues"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func openForProgram(t *testing.T, f *File) *os.File {
	t.Helper()
	p, err := f.OpenForProgram()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// blocks is what the file takes up, in pages.
func blocks(t *testing.T, f *File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(f.Path(), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512 / pageSize
}

func TestRegionsAreSharedWithTheProgramsMapping(t *testing.T) {
	f := create(t)
	p := openForProgram(t, f)
	for i, size := range []int{1, 5000, int(pageSize)} {
		r, err := f.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 && r.Offset != 0 {
			t.Errorf("first region at offset %d, want 0", r.Offset)
		}
		if len(r.Mem) < size || len(r.Mem)%int(pageSize) != 0 {
			t.Errorf("Alloc(%d): %d bytes", size, len(r.Mem))
		}
		m, err := unix.Mmap(int(p.Fd()), int64(r.Offset), len(r.Mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m, make([]byte, len(m))) {
			t.Errorf("region %d is not zero", i)
		}
		m[len(m)-1] = 0x5a
		if r.Mem[len(m)-1] != 0x5a {
			t.Errorf("region %d: the service does not see what the program wrote", i)
		}
		r.Mem[0] = 0xa5
		if m[0] != 0xa5 {
			t.Errorf("region %d: the program does not see what the service wrote", i)
		}
		unix.Munmap(m)
	}
}

func TestFreeGivesPagesBackAndOffsetsAreNotReused(t *testing.T) {
	f := create(t)
	p := openForProgram(t, f)
	a, err := f.Alloc(3 * int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Alloc(int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	if got := blocks(t, f); got != 4 {
		t.Errorf("%d pages reserved, want 4", got)
	}
	m, err := unix.Mmap(int(p.Fd()), int64(a.Offset), len(a.Mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	m[0] = 1
	a.Free()
	if got := blocks(t, f); got != 1 {
		t.Errorf("%d pages after Free, want 1", got)
	}
	if m[0] != 0 {
		t.Error("the program still sees what was freed")
	}
	a.Free() // a second time is harmless
	c, err := f.Alloc(int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	if c.Offset <= b.Offset {
		t.Errorf("offset %d after %d: used again", c.Offset, b.Offset)
	}
}

func TestFullFileSystemIsENOMEM(t *testing.T) {
	f := create(t)
	var st unix.Statfs_t
	if err := unix.Statfs(f.Path(), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks == 0 {
		t.Skip("the file system has no limit")
	}
	_, err := f.Alloc(int(st.Blocks+1) * int(st.Bsize))
	if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), filepath.Dir(f.Path())) {
		t.Errorf("error %v, want ENOMEM that names the directory", err)
	}
	if got := blocks(t, f); got != 0 {
		t.Errorf("%d pages left behind by a failed Alloc", got)
	}
	if r, err := f.Alloc(1); err != nil || r.Offset != 0 {
		t.Errorf("Alloc after failure: offset %d, %v", r.Offset, err)
	}
	for _, size := range []int{0, -1} {
		if _, err := f.Alloc(size); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Alloc(%d): %v, want EINVAL", size, err)
		}
	}
}

func TestWriteToTheProgramsDescriptionChangesNothing(t *testing.T) {
	f := create(t)
	p := openForProgram(t, f)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	size := blocks(t, f)
	if n, err := unix.Write(int(p.Fd()), bytes.Repeat([]byte{7}, 32)); err == nil {
		t.Errorf("write succeeded with %d", n)
	}
	if r.Mem[0] != 0 || blocks(t, f) != size {
		t.Error("write changed the file")
	}
}

func TestInUseUntilLastDescriptorAndMapping(t *testing.T) {
	f := create(t)
	if f.InUse() {
		t.Fatal("in use before anybody opened it")
	}
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if f.InUse() {
		t.Error("in use because of the service's own mapping")
	}
	p, err := f.OpenForProgram()
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(p.Fd()), int64(r.Offset), len(r.Mem), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if !f.InUse() {
		t.Error("not in use with a descriptor and a mapping")
	}
	p.Close()
	if !f.InUse() {
		t.Error("not in use with a mapping")
	}
	unix.Munmap(m)
	if f.InUse() {
		t.Error("in use after the last mapping went")
	}
}

func TestCloseRemovesThePath(t *testing.T) {
	f := create(t)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(f.Path()); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create of an existing path: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("path after Close: %v", err)
	}
	r.Free() // of a region that Close has freed
	if _, err := f.Alloc(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Alloc after Close: %v", err)
	}
	if f.InUse() {
		t.Error("in use after Close")
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestConcurrentAllocAndFree(t *testing.T) {
	f := create(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 200 {
				r, err := f.Alloc(1 + i%3*int(pageSize))
				if err != nil {
					t.Error(err)
					return
				}
				r.Mem[0]++
				if r.Mem[0] != 1 {
					t.Error("two regions share memory")
				}
				r.Free()
			}
		})
	}
	wg.Wait()
	if got := blocks(t, f); got != 0 {
		t.Errorf("%d pages left", got)
	}
}
