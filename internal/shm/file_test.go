package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

func newTestFile(t *testing.T) *File {
	t.Helper()
	return newTestFileFor(t, nil)
}

func newTestFileFor(t *testing.T, user *quota.User) *File {
	t.Helper()
	f, err := Create("verbena-shm-test", quota.RingBytes, user, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func openForProgram(t *testing.T, f *File) *os.File {
	t.Helper()
	p, err := f.OpenForProgram(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// countPagesInMemory returns the size of the file in memory, in pages.
func countPagesInMemory(t *testing.T, f *File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := f.Stat(&st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512 / pageSize
}

func TestRegionsAreSharedWithTheProgramsMapping(t *testing.T) {
	f := newTestFile(t)
	p := openForProgram(t, f)
	for i, size := range []int{1, 5000, int(pageSize)} {
		r, err := f.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 && r.Offset != 0 {
			t.Errorf("offset of the first region: got %d, want 0", r.Offset)
		}
		if len(r.Mem) < size || len(r.Mem)%int(pageSize) != 0 {
			t.Errorf("Alloc(%d): got %d bytes, want whole pages", size, len(r.Mem))
		}
		m, err := unix.Mmap(int(p.Fd()), int64(r.Offset), len(r.Mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m, make([]byte, len(m))) {
			t.Errorf("region %d: got other bytes, want zeros", i)
		}
		m[len(m)-1] = 0x5a
		if r.Mem[len(m)-1] != 0x5a {
			t.Errorf("region %d: got old data in the service, want the program's write", i)
		}
		r.Mem[0] = 0xa5
		if m[0] != 0xa5 {
			t.Errorf("region %d: got old data in the program, want the service's write", i)
		}
		unix.Munmap(m)
	}
}

func TestFreeReleasesPagesAndOffsetsAreNotReused(t *testing.T) {
	f := newTestFile(t)
	p := openForProgram(t, f)
	a, err := f.Alloc(3 * int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Alloc(int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	if got := countPagesInMemory(t, f); got != 4 {
		t.Errorf("reserved pages: got %d, want 4", got)
	}
	m, err := unix.Mmap(int(p.Fd()), int64(a.Offset), len(a.Mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	m[0] = 1
	a.Free()
	if got := countPagesInMemory(t, f); got != 1 {
		t.Errorf("pages after Free: got %d, want 1", got)
	}
	if m[0] != 0 {
		t.Error("freed region in the program: got old data, want zeros")
	}
	a.Free() // a second call is harmless
	c, err := f.Alloc(int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	if at := c.Offset; at == b.Offset || at >= a.Offset && at < a.Offset+uint64(len(a.Mem)) {
		t.Errorf("offset of a new region: got the used %#x, want another one", at)
	}
}

func TestWriteToTheProgramsDescriptionChangesNothing(t *testing.T) {
	f := newTestFile(t)
	p := openForProgram(t, f)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	size := countPagesInMemory(t, f)
	if n, err := unix.Write(int(p.Fd()), bytes.Repeat([]byte{7}, 32)); err == nil {
		t.Errorf("write by the program: got %d bytes, want an error", n)
	}
	if r.Mem[0] != 0 || countPagesInMemory(t, f) != size {
		t.Error("file after the write: got a change, want none")
	}
}

func TestInUseUntilLastDescriptorAndMapping(t *testing.T) {
	f := newTestFile(t)
	if f.InUse() {
		t.Fatal("InUse before any other open: got true, want false")
	}
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if f.InUse() {
		t.Error("InUse with only the service's mapping: got true, want false")
	}
	p, err := f.OpenForProgram(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(p.Fd()), int64(r.Offset), len(r.Mem), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if !f.InUse() {
		t.Error("InUse with a descriptor and a mapping: got false, want true")
	}
	p.Close()
	if !f.InUse() {
		t.Error("InUse with a mapping: got false, want true")
	}
	unix.Munmap(m)
	if f.InUse() {
		t.Error("InUse after the last unmap: got true, want false")
	}
}

func TestConcurrentAllocAndFree(t *testing.T) {
	f := newTestFile(t)
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
					t.Error("concurrent regions: got shared memory, want separate memory")
				}
				r.Free()
			}
		})
	}
	wg.Wait()
	if got := countPagesInMemory(t, f); got != 0 {
		t.Errorf("pages after all frees: got %d, want 0", got)
	}
}

func TestReadOnlyDescriptionCannotWrite(t *testing.T) {
	f := newTestFile(t)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.OpenForProgram(unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := unix.Mmap(int(p.Fd()), 0, len(r.Mem), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != unix.EACCES {
		t.Errorf("writable mapping: got %v, want EACCES", err)
	}
	if _, err := unix.Write(int(p.Fd()), []byte("x")); err != unix.EBADF {
		t.Errorf("write: got %v, want EBADF", err)
	}
}

// countMappings counts this process's mappings of the file.
func countMappings(t *testing.T, f *File) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), f.Name())
}

// TestManyRegionsFewMappings tests that many regions need few mappings, and that each region and mapping is charged
// while it exists.
func TestManyRegionsFewMappings(t *testing.T) {
	ledger := quota.New(quota.Limits{})
	user := ledger.User(1)
	f := newTestFileFor(t, user)
	var regions []mappedRegion
	for i := range 10000 {
		r, err := f.Alloc(2 * int(pageSize))
		if err != nil {
			t.Fatal(err)
		}
		r.Mem[0], r.Mem[len(r.Mem)-1] = byte(i), byte(i)
		regions = append(regions, r)
	}
	big, err := f.Alloc(3 * largeChunk / 2 / 1024)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range regions {
		if len(r.Mem) != 2*int(pageSize) || cap(r.Mem) != len(r.Mem) || r.Mem[0] != byte(i) ||
			r.Mem[len(r.Mem)-1] != byte(i) {
			t.Fatalf("region %d: got %d bytes and first byte %d, want two pages and its number", i, len(r.Mem), r.Mem[0])
		}
	}
	n := countMappings(t, f)
	if n > 8 || user.Held(quota.Mappings) != uint64(n) {
		t.Errorf("mappings: got %d and %d charged, want at most 8 and all charged", n, user.Held(quota.Mappings))
	}
	if got, want := user.Held(quota.RingBytes), uint64(len(regions)*2*int(pageSize)+len(big.Mem)); got != want {
		t.Errorf("charged bytes: got %d, want %d", got, want)
	}
	// A program maps each region separately.
	p := openForProgram(t, f)
	var mapped [][]byte
	for _, r := range regions {
		m, err := unix.Mmap(int(p.Fd()), int64(r.Offset), len(r.Mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		mapped = append(mapped, m)
	}
	if got := countMappings(t, f) - n; got > len(regions)/100 {
		t.Errorf("mappings of the program: got %d for %d regions, want fewer", got, len(regions))
	}
	for _, m := range mapped {
		unix.Munmap(m)
	}
	for _, r := range regions {
		r.Free()
		r.Free()
	}
	big.Free()
	if n := countMappings(t, f); n != 1 || user.Held(quota.Mappings) != 1 || user.Held(quota.RingBytes) != 0 {
		t.Errorf("without regions: got %d mappings, %d and %d bytes charged", n, user.Held(quota.Mappings),
			user.Held(quota.RingBytes))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n := user.Held(quota.Mappings); n != 0 {
		t.Errorf("charged mappings after Close: got %d, want 0", n)
	}
}

func TestAllocRespectsLimits(t *testing.T) {
	var l quota.Limits
	l[quota.RingBytes].PerUser = 4 * uint64(pageSize)
	ledger := quota.New(l)
	f := newTestFileFor(t, ledger.User(1))
	r, err := f.Alloc(3 * int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Alloc(2 * int(pageSize)); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("Alloc beyond the limit of bytes: got %v, want ENOMEM", err)
	}
	if got := countPagesInMemory(t, f); got != 3 {
		t.Errorf("reserved pages: got %d, want 3", got)
	}
	r.Free()
	if _, err := f.Alloc(4 * int(pageSize)); err != nil {
		t.Errorf("Alloc after Free: got %v, want success", err)
	}
	l[quota.Mappings].PerUser = 1
	ledger = quota.New(l)
	f = newTestFileFor(t, ledger.User(1))
	if _, err := f.Alloc(1); err != nil {
		t.Fatal(err)
	}
	other := newTestFileFor(t, ledger.User(1))
	if _, err := other.Alloc(1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("Alloc beyond the limit of mappings: got %v, want ENOMEM", err)
	}
	if got := countPagesInMemory(t, other); got != 0 || ledger.User(1).Held(quota.RingBytes) != uint64(pageSize) {
		t.Errorf("after a refused Alloc: got %d pages and %d charged bytes, want 0 and one page", got,
			ledger.User(1).Held(quota.RingBytes))
	}
	if err := errors.Join(f.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	if n := ledger.User(1).Held(quota.RingBytes); n != 0 {
		t.Errorf("charged bytes after Close: got %d, want 0", n)
	}
}

// TestScratchWritesAreFreed tests that writes of a program are detected and their pages freed, regardless of the
// positions of its regions, until its writes are barred.
func TestScratchWritesAreFreed(t *testing.T) {
	ledger := quota.New(quota.Limits{})
	f := newTestFileFor(t, ledger.User(1))
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	r.Mem[0] = 7
	p, s, err := f.OpenScratch()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer s.Close()
	before := countPagesInMemory(t, f)
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	if _, err := s.Watch(in, unix.IN_MODIFY|unix.IN_ONESHOT); err != nil {
		t.Fatal(err)
	}
	doorbell := make([]byte, 32)
	for range 5000 {
		if n, err := p.Write(doorbell); n != len(doorbell) || err != nil {
			t.Fatal(n, err)
		}
	}
	var buf [256]byte
	if n, err := unix.Read(in, buf[:]); err != nil || n == 0 {
		t.Errorf("event of a write: got error %v or no event, want one", err)
	}
	if countPagesInMemory(t, f) == before || !s.IsFreeDue() {
		t.Fatal("pages of writes: got none or none due, want some")
	}
	s.FreeWrittenPages()
	if got := countPagesInMemory(t, f); got > before+1 || s.IsFreeDue() {
		t.Errorf("pages after Drop: got %d, want %d and one for the next write", got, before)
	}
	if r.Mem[0] != 7 {
		t.Error("content of a region: got a change, want none")
	}
	more, err := f.Alloc(1 << 20)
	if err != nil {
		t.Fatalf("Alloc of another region: got %v, want success", err)
	}
	more.Free()
	if _, err := p.Write(doorbell); err != nil {
		t.Fatal(err)
	}
	if err := s.DenyWrites(); err != nil {
		t.Errorf("Bar: got %v, want success", err)
	}
	s.FreeWrittenPages() // FreeWrittenPages after DenyWrites has no effect
	if _, err := p.Write(doorbell); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("write after Bar: got %v, want EFBIG", err)
	}
	s.Close()
	s.FreeWrittenPages()
	if _, err := s.Watch(in, unix.IN_MODIFY); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Watch after Close: got %v, want ErrClosed", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n := ledger.User(1).Held(quota.RingBytes); n != 0 {
		t.Errorf("charged bytes: got %d, want 0", n)
	}
}

// TestDenyWritesHoldsDuringWrites tests that neither a concurrent write nor FreeWrittenPages reverses DenyWrites.
func TestDenyWritesHoldsDuringWrites(t *testing.T) {
	f := newTestFile(t)
	const rounds, writers = 100, 2
	for range rounds {
		p, s, err := f.OpenScratch()
		if err != nil {
			t.Fatal(err)
		}
		ended, barred := make(chan error, writers), make(chan struct{})
		var dropper sync.WaitGroup
		dropper.Go(func() {
			for last := false; !last; {
				select {
				case <-barred:
					last = true
				default:
				}
				s.FreeWrittenPages()
			}
		})
		var begun atomic.Int64 // number of writes begun
		for range writers {
			go func() {
				for {
					begun.Add(1)
					if _, err := unix.Write(int(p.Fd()), make([]byte, 8192)); err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		testutil.Eventually(t, "the writers to write", func() bool { return begun.Load() >= writers })
		if err := s.DenyWrites(); err != nil {
			t.Error(err)
		}
		close(barred)
		dropper.Wait()
		if _, err := p.Write(make([]byte, 32)); !errors.Is(err, syscall.EFBIG) {
			t.Fatalf("write after Bar: got %v, want EFBIG", err)
		}
		for range writers {
			if err := <-ended; err != syscall.EFBIG {
				t.Fatalf("writer after Bar: got %v, want EFBIG", err)
			}
		}
		p.Close()
		s.Close()
	}
}

// TestAnyHolderCanDenyWrites tests that after the end of the service any process with the file can bar the writes of
// its program, and that a file without a scratch part stays unchanged.
func TestAnyHolderCanDenyWrites(t *testing.T) {
	f := newTestFile(t)
	if err := DenyWrites(f.file); err != nil {
		t.Error(err)
	}
	if fi, err := f.file.Stat(); err != nil || fi.Size() != 0 {
		t.Errorf("file without a scratch part: got %d bytes and error %v, want 0", fi.Size(), err)
	}
	p, s, err := f.OpenScratch()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer s.Close()
	for range 2 {
		if err := DenyWrites(f.file); err != nil {
			t.Error(err)
		}
		if _, err := p.Write(make([]byte, 32)); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("write after Bar: got %v, want EFBIG", err)
		}
	}
}

func TestAllocRefusesInvalidSize(t *testing.T) {
	f := newTestFile(t)
	for _, size := range []int{0, -1} {
		want := fmt.Sprintf("allocate %d bytes of shared memory: invalid argument", size)
		if _, err := f.Alloc(size); !errors.Is(err, syscall.EINVAL) || err.Error() != want {
			t.Errorf("Alloc(%d): got %v, want %s", size, err, want)
		}
	}
	// Near the last offset, a request for most of the file would take all memory of the machine if Alloc did not
	// refuse it.
	f.next = scratchOffset - largeChunk - pageSize
	if _, err := f.Alloc(int(pageSize) + 1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("Alloc beyond the last offset: got %v, want ENOMEM", err)
	}
	f.next = 0
	if got := countPagesInMemory(t, f); got != 0 {
		t.Errorf("pages after a failed Alloc: got %d, want 0", got)
	}
	if r, err := f.Alloc(1); err != nil || r.Offset != 0 {
		t.Errorf("Alloc after a failure: got offset %d and error %v, want 0", r.Offset, err)
	}
}

func TestClosedFileReturnsErrors(t *testing.T) {
	f := newTestFile(t)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r.Free() // frees a region that Close has freed
	if _, err := f.Alloc(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Alloc after Close: got %v, want ErrClosed", err)
	}
	if f.InUse() {
		t.Error("InUse after Close: got true, want false")
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: got %v, want success", err)
	}
}

// TestProgramCannotTruncate tests that a program can neither truncate the file nor remove the seal, and that its writes
// to the file and additions to it change no region.
func TestProgramCannotTruncate(t *testing.T) {
	f := newTestFile(t)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(openForProgram(t, f).Fd())
	if err := unix.Ftruncate(fd, 0); err != unix.EPERM {
		t.Errorf("truncate: got %v, want EPERM", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW); err != unix.EPERM {
		t.Errorf("addition of a seal: got %v, want EPERM", err)
	}
	if err := unix.Fallocate(fd, 0, 0, 64<<20); err != nil {
		t.Errorf("enlargement of the file: got %v, want success", err)
	}
	if next, err := f.Alloc(1); err != nil || next.Mem[0] != 0 || r.Mem[0] != 0 {
		t.Errorf("region after the enlargement: got error %v or changed data, want zeros", err)
	}
}

// TestKeepPagesOnCloseKeepsCompletions tests that a program that polls its queues after Close sees earlier completions.
// Without KeepPagesOnClose, or without a program, no page remains.
func TestKeepPagesOnCloseKeepsCompletions(t *testing.T) {
	for _, leave := range []bool{false, true} {
		f := newTestFile(t)
		if leave {
			f.KeepPagesOnClose()
		}
		r, err := f.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		r.Mem[0] = 7
		p := openForProgram(t, f)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		var b [1]byte
		if n, err := unix.Pread(int(p.Fd()), b[:], 0); n != 1 || err != nil || (b[0] == 7) != leave {
			t.Errorf("KeepPagesOnClose %v: read after Close: got %d, error %v and byte %d", leave, n, err, b[0])
		}
	}
}

// TestFileIsChargedWhileInUse tests that a file is charged, including remaining pages, as long as a program has it open
// or mapped.
func TestFileIsChargedWhileInUse(t *testing.T) {
	for _, tt := range []struct{ leave, mapped bool }{{false, false}, {true, false}, {true, true}} {
		keeper := kept.New(nil)
		defer keeper.Close()
		user := quota.New(quota.Limits{}).User(1000)
		f, err := Create("verbena-shm-test", quota.RingBytes, user, keeper.ObjectsOf(user))
		if err != nil {
			t.Fatal(err)
		}
		if tt.leave {
			f.KeepPagesOnClose()
		}
		for range 3 {
			if _, err := f.Alloc(2 * int(pageSize)); err != nil {
				t.Fatal(err)
			}
		}
		p := openForProgram(t, f)
		// The kernel does not count descriptors opened with O_PATH as users of the file.
		path, err := unix.Open(selfFDPath(int(p.Fd())), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(path)
		free := func() { p.Close() }
		if tt.mapped {
			mem, err := unix.Mmap(int(p.Fd()), 0, int(pageSize), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			free = func() { unix.Munmap(mem) }
		}
		check := func(when string, files, bytes uint64) {
			t.Helper()
			keeper.Release(user)
			if d, b := user.Held(quota.Descriptors), user.Held(quota.RingBytes); d != files || b != bytes {
				t.Errorf("%+v, %s: got %d charged descriptors and %d bytes, want %d and %d", tt, when, d, b, files, bytes)
			}
		}
		all := 6 * uint64(pageSize)
		check("open", 1, all)
		f.Close()
		if !tt.leave {
			all = 0
		}
		check("closed, while a program has it open", 1, all)
		free()
		check("closed, and named by O_PATH", 0, 0)
		var st unix.Stat_t
		if err := unix.Fstat(path, &st); err != nil || st.Blocks != 0 {
			t.Errorf("%+v: uncharged file: got %d blocks and error %v, want 0", tt, st.Blocks, err)
		}
	}
}

// TestCreateBeyondLimitIsRefused tests that Create returns no file to a user at the limit.
func TestCreateBeyondLimitIsRefused(t *testing.T) {
	var limits quota.Limits
	limits[quota.Descriptors].PerUser = 1
	user := quota.New(limits).User(1000)
	f, err := Create("verbena-shm-test", quota.RingBytes, user, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create("verbena-shm-test", quota.RingBytes, user, nil); !errors.Is(err, unix.EMFILE) {
		t.Errorf("Create: got %v, want EMFILE", err)
	}
	f.Close()
	if n := user.Held(quota.Descriptors); n != 0 {
		t.Errorf("charged descriptors after Close: got %d, want 0", n)
	}
}

// TestOpenLinkOpensOnlyNamedMemfds tests that OpenLink opens only a link to a memfd with the right name.
func TestOpenLinkOpensOnlyNamedMemfds(t *testing.T) {
	f := newTestFile(t)
	p := openForProgram(t, f)
	link := func(fd uintptr) string { return selfFDPath(int(fd)) }
	got, err := OpenLink(link(p.Fd()), "verbena-shm")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	var a, b unix.Stat_t
	if err := errors.Join(f.Stat(&a), unix.Fstat(int(got.Fd()), &b)); err != nil || a.Ino != b.Ino {
		t.Errorf("file of OpenLink: got another one or error %v, want the same file", err)
	}
	unsealed, err := unix.MemfdCreate("verbena-shm-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealed)
	dir := t.TempDir()
	plain, err := os.Create(filepath.Join(dir, "memfd:verbena-shm-test"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for what, l := range map[string]string{
		"another name": link(got.Fd()) + "0", "a memfd without seals": link(uintptr(unsealed)),
		"an ordinary file": link(plain.Fd()),
	} {
		if got, err := OpenLink(l, "verbena-shm"); err == nil {
			t.Errorf("OpenLink of %s: got success, want an error", what)
			got.Close()
		}
	}
	if got, err := OpenLink(link(p.Fd()), "verbena-other"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("OpenLink with another prefix: got %v and error %v, want EINVAL", got, err)
	}
	// A file in the root directory can have the name of a memfd. OpenLink must not even open such a file.
	if named, err := os.Create("/memfd:verbena-shm-test"); err == nil {
		defer os.Remove(named.Name())
		defer named.Close()
		watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(watch)
		if _, err := unix.InotifyAddWatch(watch, named.Name(), unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
		if got, err := OpenLink(link(named.Fd()), "verbena-shm"); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("OpenLink of a file with the name of a memfd: got %v and error %v, want EINVAL", got, err)
		}
		if n, _ := unix.Read(watch, make([]byte, 256)); n > 0 {
			t.Error("inotify events of a file with the name of a memfd: got an open, want none")
		}
	}
	if isMemfd(int(plain.Fd())) || !isMemfd(unsealed) {
		t.Error("isMemfd: got true for an ordinary file or false for a memfd, want the opposite")
	}
}
