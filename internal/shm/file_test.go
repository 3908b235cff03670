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

func create(t *testing.T) *File {
	t.Helper()
	return createFor(t, nil)
}

func createFor(t *testing.T, user *quota.User) *File {
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

// blocks returns the size of the file in memory, in pages.
func blocks(t *testing.T, f *File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := f.Stat(&st); err != nil {
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
		t.Error("the program still sees freed data")
	}
	a.Free() // a second call is harmless
	c, err := f.Alloc(int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	if at := c.Offset; at == b.Offset || at >= a.Offset && at < a.Offset+uint64(len(a.Mem)) {
		t.Errorf("offset %#x was reused", at)
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
		t.Fatal("in use before any other open")
	}
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if f.InUse() {
		t.Error("in use with only the service's own mapping")
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

func TestOpenForReadingOnly(t *testing.T) {
	f := create(t)
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
		t.Errorf("mapped writable: %v", err)
	}
	if _, err := unix.Write(int(p.Fd()), []byte("x")); err != unix.EBADF {
		t.Errorf("written: %v", err)
	}
}

// mappings counts this process's mappings of the file.
func mappings(t *testing.T, f *File) int {
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
	f := createFor(t, user)
	var regions []Shared
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
			t.Fatalf("region %d has %d bytes, %d", i, len(r.Mem), r.Mem[0])
		}
	}
	n := mappings(t, f)
	if n > 8 || user.Held(quota.Mappings) != uint64(n) {
		t.Errorf("%d mappings, %d charged", n, user.Held(quota.Mappings))
	}
	if got, want := user.Held(quota.RingBytes), uint64(len(regions)*2*int(pageSize)+len(big.Mem)); got != want {
		t.Errorf("%d bytes charged, want %d", got, want)
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
	if got := mappings(t, f) - n; got > len(regions)/100 {
		t.Errorf("the program has %d mappings of %d regions", got, len(regions))
	}
	for _, m := range mapped {
		unix.Munmap(m)
	}
	for _, r := range regions {
		r.Free()
		r.Free()
	}
	big.Free()
	if n := mappings(t, f); n != 1 || user.Held(quota.Mappings) != 1 || user.Held(quota.RingBytes) != 0 {
		t.Errorf("%d mappings, %d and %d bytes charged with no region left", n, user.Held(quota.Mappings),
			user.Held(quota.RingBytes))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n := user.Held(quota.Mappings); n != 0 {
		t.Errorf("%d mappings charged after Close", n)
	}
}

func TestLimits(t *testing.T) {
	var l quota.Limits
	l[quota.RingBytes].PerUser = 4 * uint64(pageSize)
	ledger := quota.New(l)
	f := createFor(t, ledger.User(1))
	r, err := f.Alloc(3 * int(pageSize))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Alloc(2 * int(pageSize)); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("beyond the limit of bytes: %v", err)
	}
	if got := blocks(t, f); got != 3 {
		t.Errorf("%d pages reserved, want 3", got)
	}
	r.Free()
	if _, err := f.Alloc(4 * int(pageSize)); err != nil {
		t.Errorf("after Free: %v", err)
	}
	l[quota.Mappings].PerUser = 1
	ledger = quota.New(l)
	f = createFor(t, ledger.User(1))
	if _, err := f.Alloc(1); err != nil {
		t.Fatal(err)
	}
	other := createFor(t, ledger.User(1))
	if _, err := other.Alloc(1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("beyond the limit of mappings: %v", err)
	}
	if got := blocks(t, other); got != 0 || ledger.User(1).Held(quota.RingBytes) != uint64(pageSize) {
		t.Errorf("%d pages left, %d bytes charged", got, ledger.User(1).Held(quota.RingBytes))
	}
	if err := errors.Join(f.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	if n := ledger.User(1).Held(quota.RingBytes); n != 0 {
		t.Errorf("%d bytes charged after Close", n)
	}
}

// TestScratch tests that writes of a program are detected and their pages freed, wherever its regions are, until its
// writes are barred.
func TestScratch(t *testing.T) {
	ledger := quota.New(quota.Limits{})
	f := createFor(t, ledger.User(1))
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
	before := blocks(t, f)
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
		t.Errorf("event of a write: %v", err)
	}
	if blocks(t, f) == before || !s.Due() {
		t.Fatal("writes: got none")
	}
	s.Drop()
	if got := blocks(t, f); got > before+1 || s.Due() {
		t.Errorf("pages after Drop: got %d, want %d and one for the next write", got, before)
	}
	if r.Mem[0] != 7 {
		t.Error("a region has lost its content")
	}
	more, err := f.Alloc(1 << 20)
	if err != nil {
		t.Fatalf("another region: %v", err)
	}
	more.Free()
	if _, err := p.Write(doorbell); err != nil {
		t.Fatal(err)
	}
	if err := s.Bar(); err != nil {
		t.Errorf("bar: %v", err)
	}
	s.Drop() // late
	if _, err := p.Write(doorbell); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("a write after it was barred: %v", err)
	}
	s.Close()
	s.Drop()
	if _, err := s.Watch(in, unix.IN_MODIFY); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a watch after Close: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n := ledger.User(1).Held(quota.RingBytes); n != 0 {
		t.Errorf("charged bytes: got %d, want none", n)
	}
}

// TestBarBesideWrites tests that neither a concurrent write nor Drop reverses Bar.
func TestBarBesideWrites(t *testing.T) {
	f := create(t)
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
				s.Drop()
			}
		})
		var begun atomic.Int64 // writes
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
		if err := s.Bar(); err != nil {
			t.Error(err)
		}
		close(barred)
		dropper.Wait()
		if _, err := p.Write(make([]byte, 32)); !errors.Is(err, syscall.EFBIG) {
			t.Fatalf("a write after it was barred: %v", err)
		}
		for range writers {
			if err := <-ended; err != syscall.EFBIG {
				t.Fatalf("a writer: %v", err)
			}
		}
		p.Close()
		s.Close()
	}
}

// TestBarWithoutService tests that after the end of the service any process with the file can bar the writes of its
// program, and that a file without a scratch part stays unchanged.
func TestBarWithoutService(t *testing.T) {
	f := create(t)
	if err := Bar(f.file); err != nil {
		t.Error(err)
	}
	if fi, err := f.file.Stat(); err != nil || fi.Size() != 0 {
		t.Errorf("a file of %d bytes, %v", fi.Size(), err)
	}
	p, s, err := f.OpenScratch()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer s.Close()
	for range 2 {
		if err := Bar(f.file); err != nil {
			t.Error(err)
		}
		if _, err := p.Write(make([]byte, 32)); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("a write after it was barred: %v", err)
		}
	}
}

func TestAllocOfNothing(t *testing.T) {
	f := create(t)
	for _, size := range []int{0, -1} {
		want := fmt.Sprintf("allocate %d bytes of shared memory: invalid argument", size)
		if _, err := f.Alloc(size); !errors.Is(err, syscall.EINVAL) || err.Error() != want {
			t.Errorf("Alloc(%d): %v, want %s", size, err, want)
		}
	}
	// Near the last offset: a request for most of the file would take all memory of the machine if it was not refused.
	f.next = scratch - largeChunk - pageSize
	if _, err := f.Alloc(int(pageSize) + 1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("Alloc of more than the offsets allow: %v, want ENOMEM", err)
	}
	f.next = 0
	if got := blocks(t, f); got != 0 {
		t.Errorf("%d pages left behind by a failed Alloc", got)
	}
	if r, err := f.Alloc(1); err != nil || r.Offset != 0 {
		t.Errorf("Alloc after failure: offset %d, %v", r.Offset, err)
	}
}

func TestUseAfterClose(t *testing.T) {
	f := create(t)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r.Free() // frees a region that Close has freed
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

// TestSealed tests that a program can neither truncate the file nor remove the seal, and that its writes to the file
// and additions to it change no region.
func TestSealed(t *testing.T) {
	f := create(t)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(openForProgram(t, f).Fd())
	if err := unix.Ftruncate(fd, 0); err != unix.EPERM {
		t.Errorf("truncate: %v, want EPERM", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW); err != unix.EPERM {
		t.Errorf("a further seal: %v, want EPERM", err)
	}
	if err := unix.Fallocate(fd, 0, 0, 64<<20); err != nil {
		t.Errorf("enlarge the file: %v", err)
	}
	if next, err := f.Alloc(1); err != nil || next.Mem[0] != 0 || r.Mem[0] != 0 {
		t.Errorf("a region after that: %v", err)
	}
}

// TestLeavePages tests that a program that polls its queues after the end sees earlier completions. Without LeavePages,
// or without a program, no page is left.
func TestLeavePages(t *testing.T) {
	for _, leave := range []bool{false, true} {
		f := create(t)
		if leave {
			f.LeavePages()
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
			t.Errorf("leave %v: read %d, %v, byte %d", leave, n, err, b[0])
		}
	}
}

// TestCharged tests that a file is charged, including remaining pages, as long as a program has it open or mapped.
func TestCharged(t *testing.T) {
	for _, tt := range []struct{ leave, mapped bool }{{false, false}, {true, false}, {true, true}} {
		keeper := kept.New(nil)
		defer keeper.Close()
		user := quota.New(quota.Limits{}).User(1000)
		f, err := Create("verbena-shm-test", quota.RingBytes, user, keeper.Of(user))
		if err != nil {
			t.Fatal(err)
		}
		if tt.leave {
			f.LeavePages()
		}
		for range 3 {
			if _, err := f.Alloc(2 * int(pageSize)); err != nil {
				t.Fatal(err)
			}
		}
		p := openForProgram(t, f)
		// The kernel does not count descriptors of O_PATH as users of the file.
		path, err := unix.Open(selfFD(int(p.Fd())), unix.O_PATH|unix.O_CLOEXEC, 0)
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
				t.Errorf("%+v, %s: %d descriptors and %d bytes are charged, want %d and %d", tt, when, d, b, files, bytes)
			}
		}
		all := 6 * uint64(pageSize)
		check("open", 1, all)
		f.Close()
		if !tt.leave {
			all = 0
		}
		check("closed, and a program has it", 1, all)
		free()
		check("closed, and named by O_PATH", 0, 0)
		var st unix.Stat_t
		if err := unix.Fstat(path, &st); err != nil || st.Blocks != 0 {
			t.Errorf("%+v: the file that is not charged has %d blocks, %v", tt, st.Blocks, err)
		}
	}
}

// TestCreateRefused tests that a user at the limit gets no file.
func TestCreateRefused(t *testing.T) {
	var limits quota.Limits
	limits[quota.Descriptors].PerUser = 1
	user := quota.New(limits).User(1000)
	f, err := Create("verbena-shm-test", quota.RingBytes, user, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create("verbena-shm-test", quota.RingBytes, user, nil); !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %v, want EMFILE", err)
	}
	f.Close()
	if n := user.Held(quota.Descriptors); n != 0 {
		t.Errorf("%d descriptors are charged after Close", n)
	}
}

// TestOpenLink tests that only a link to a memfd with the right name is opened.
func TestOpenLink(t *testing.T) {
	f := create(t)
	p := openForProgram(t, f)
	link := func(fd uintptr) string { return selfFD(int(fd)) }
	got, err := OpenLink(link(p.Fd()), "verbena-shm")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	var a, b unix.Stat_t
	if err := errors.Join(f.Stat(&a), unix.Fstat(int(got.Fd()), &b)); err != nil || a.Ino != b.Ino {
		t.Errorf("another file: %v", err)
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
			t.Errorf("%s is opened", what)
			got.Close()
		}
	}
	if got, err := OpenLink(link(p.Fd()), "verbena-other"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a file of another prefix: %v, %v", got, err)
	}
	// A file in the root directory can have the name of a memfd. OpenLink must not even open it.
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
			t.Errorf("a file with the name of a memfd: %v, %v", got, err)
		}
		if n, _ := unix.Read(watch, make([]byte, 256)); n > 0 {
			t.Error("a file with the name of a memfd is opened")
		}
	}
	if isMemfd(int(plain.Fd())) || !isMemfd(unsealed) {
		t.Error("isMemfd of an ordinary file: got true, want false")
	}
}
