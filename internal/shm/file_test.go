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
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

func create(t *testing.T) *File {
	t.Helper()
	return createFor(t, nil)
}

func createFor(t *testing.T, user *quota.User) *File {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "verbena-shm-test-")
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	f, err := Create(dir, "queues", user)
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

func TestCloseRemovesThePath(t *testing.T) {
	f := create(t)
	r, err := f.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(f.dir, f.name, nil); !errors.Is(err, os.ErrExist) {
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

// TestNameIsNotTheFile: whatever the owner of the file puts in the place of its name is not touched.
func TestNameIsNotTheFile(t *testing.T) {
	f := create(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	aside := f.Path() + ".aside"
	if err := errors.Join(os.Rename(f.Path(), aside), os.Symlink(victim, f.Path())); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(victim)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := f.Chown(65534); err != nil {
			t.Fatal(err)
		}
	}
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	if _, err := f.Watch(in, unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	p, err := f.OpenForProgram(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	var a, b, moved unix.Stat_t
	if err := errors.Join(unix.Fstat(int(p.Fd()), &a), f.Stat(&b), unix.Stat(aside, &moved)); err != nil {
		t.Fatal(err)
	}
	if a.Ino != moved.Ino || b.Ino != moved.Ino {
		t.Error("the program got another file")
	}
	if os.Geteuid() == 0 && moved.Uid != 65534 {
		t.Errorf("the file is user %d's", moved.Uid)
	}
	p.Close()
	if n, err := unix.Read(in, make([]byte, 256)); err != nil || n == 0 {
		t.Errorf("the close was not seen: %d, %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	after, err := os.Stat(victim)
	if err != nil || !os.SameFile(before, after) || after.Size() != 4 ||
		after.Sys().(*syscall.Stat_t).Uid != before.Sys().(*syscall.Stat_t).Uid {
		t.Errorf("the other file: %v, %v", after, err)
	}
}

// TestAnotherNameKeepsNoMemory: the owner can link the file elsewhere.
func TestAnotherNameKeepsNoMemory(t *testing.T) {
	f := create(t)
	if _, err := f.Alloc(1 << 20); err != nil {
		t.Fatal(err)
	}
	link := f.Path() + ".link"
	if err := os.Link(f.Path(), link); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(link, &st); err != nil || st.Blocks != 0 {
		t.Errorf("%d blocks left, %v", st.Blocks, err)
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
	if _, err := unix.Mmap(int(p.Fd()), 0, len(r.Mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != unix.EACCES {
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
	return strings.Count(string(b), f.Path())
}

// TestManyRegionsFewMappings: and each region and mapping is charged while it exists.
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
		if len(r.Mem) != 2*int(pageSize) || cap(r.Mem) != len(r.Mem) || r.Mem[0] != byte(i) || r.Mem[len(r.Mem)-1] != byte(i) {
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
	for _, r := range regions {
		r.Free()
		r.Free()
	}
	big.Free()
	if n := mappings(t, f); n != 1 || user.Held(quota.Mappings) != 1 || user.Held(quota.RingBytes) != 0 {
		t.Errorf("%d mappings, %d and %d bytes charged with no region left", n, user.Held(quota.Mappings), user.Held(quota.RingBytes))
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

// TestScratch: what a program writes is noticed and taken away, wherever its regions are, until its writes are barred.
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
		t.Errorf("no event of a write: %v", err)
	}
	if blocks(t, f) == before || !s.Due() {
		t.Fatal("nothing was written")
	}
	s.Drop()
	if got := blocks(t, f); got != before || s.Due() {
		t.Errorf("%d pages after they were taken away, want %d", got, before)
	}
	if r.Mem[0] != 7 {
		t.Error("a region has lost what was in it")
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
		t.Errorf("%d bytes are charged still", n)
	}
}

// TestBarBesideWrites: no write that is under way undoes it, nor does Drop.
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
		for range writers {
			go func() {
				for {
					if _, err := unix.Write(int(p.Fd()), make([]byte, 8192)); err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		time.Sleep(200 * time.Microsecond)
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

// TestBarWithoutService: whoever has the file bars the writes of its program, once the service has ended; a file without that part stays as it is.
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

// TestScratchOnFullFileSystem: a program's doorbells succeed while its file system has no room, as many as come between two calls of Drop.
func TestScratchOnFullFileSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a file system takes root")
	}
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	f, err := Create(dir, "queues", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, s, err := f.OpenScratch()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer s.Close()
	if err := os.WriteFile(filepath.Join(path, "others"), make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	for i := range 20000 {
		if _, err := p.Write(make([]byte, 32)); err != nil {
			t.Fatalf("doorbell %d: %v", i, err)
		}
		if i%500 == 0 {
			s.Drop()
		}
	}
	g, err := Create(dir, "other", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, _, err := g.OpenScratch(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("opened without room for what is reserved: %v", err)
	}
}
