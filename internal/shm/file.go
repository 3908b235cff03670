package shm

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/hugepage"
	"verbena/internal/quota"
	"verbena/internal/reopen"
)

// File is a sparse file whose regions are mapped by the service and by a program. It is safe for concurrent use.
type File struct {
	dir  *os.File // where it is; the caller's; nil: the file has no name
	name string
	path string      // for people, and for whoever looks after the program
	user *quota.User // to whom regions and mappings are charged
	kind quota.Kind  // of the bytes of regions

	mu      sync.Mutex
	file    *os.File // nil: closed
	next    int64    // offset of the next region
	regions map[int64]region
	chunk   *chunk // where regions are taken from
}

// Shared is a region of the file as the service sees it. A program may write anything into it at any time, and may even
// take its pages away: an access to Mem may be a memory fault.
type Shared struct {
	// Mem is the service's mapping. It must not be used after Free.
	Mem []byte
	// Offset is the region's offset in the file, in bytes.
	Offset uint64
	// Free returns the region. A program's mappings of it stay valid.
	Free func()
}

// region is a part of a chunk that is in use.
type region struct {
	chunk *chunk
	mem   []byte
}

// chunk is a mapping of a part of the file, of which regions are cut: a mapping of its own for each would soon exceed
// what a process may have (vm.max_map_count). It is unmapped when it has no region and is not cut any more.
type chunk struct {
	start int64 // offset in the file
	mem   []byte
	used  int // regions
}

// A file's first chunk is of smallChunk bytes, and each further one twice as long, up to largeChunk; a longer region
// has a chunk of its own. The part of a chunk that is not reserved takes addresses, and no memory.
const (
	smallChunk = 4 << 20
	largeChunk = 1 << 30
)

var pageSize = int64(os.Getpagesize())

// Create makes a file with mode 0600 and opens it. The directory must not be writable for others, and outlive the File.
// EEXIST if there is one of that name. Regions and their mappings are charged to user.
func Create(dir *os.File, name string, user *quota.User) (*File, error) {
	f := &File{dir: dir, name: name, path: filepath.Join(dir.Name(), name), user: user, kind: quota.RingBytes, regions: map[int64]region{}}
	var fd int
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create shared memory: %w", &os.PathError{Op: "open", Path: f.path, Err: err})
	}
	f.file = os.NewFile(uintptr(fd), f.path)
	return f, nil
}

// Anonymous makes a file without a name (memfd_create(2)), which cannot be made shorter: no access to a region is a memory fault, whatever
// the program does. Its regions are charged as bytes of a kind. A name is for people, in /proc/PID/maps.
func Anonymous(name string, kind quota.Kind, user *quota.User) (*File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create shared memory: memfd_create: %w", err)
	}
	f := &File{file: os.NewFile(uintptr(fd), name), name: name, path: name, user: user, kind: kind, regions: map[int64]region{}}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.file.Close()
		return nil, fmt.Errorf("create shared memory: seal %s: %w", name, err)
	}
	return f, nil
}

// Path is where the file is; the name of an anonymous one.
func (f *File) Path() string { return f.path }

// Chown makes the file a user's.
func (f *File) Chown(uid int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return os.ErrClosed
	}
	return f.file.Chown(uid, -1)
}

// Stat is fstat(2) of the file.
func (f *File) Stat(st *unix.Stat_t) error {
	return f.WithFD(func(fd int) error { return unix.Fstat(fd, st) })
}

// Watch adds an inotify watch for the file itself, whatever has its name.
func (f *File) Watch(inotify int, mask uint32) (wd int, err error) {
	err = f.WithFD(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(inotify, selfFD(fd), mask)
		return err
	})
	return wd, err
}

func selfFD(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// WithFD calls use with the service's descriptor, which is open until use returns; os.ErrClosed after Close.
func (f *File) WithFD(use func(fd int) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return os.ErrClosed
	}
	return use(int(f.file.Fd()))
}

// Alloc returns a new region of at least size bytes, rounded up to whole pages. It is zeroed, unless the program has
// written to that part of the file already. The first region of a file is at offset 0. The error wraps ENOMEM when the file
// system is full or the user's limit is reached. It may sleep.
//
// Shared.Free may be called more than once; Close frees what is left.
func (f *File) Alloc(size int) (Shared, error) {
	fail := func(err error) (Shared, error) {
		return Shared{}, fmt.Errorf("allocate %d bytes of shared memory: %w", size, err)
	}
	if size <= 0 {
		return fail(syscall.EINVAL)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return fail(os.ErrClosed)
	}
	if int64(size) > scratch-largeChunk-f.next {
		return fail(syscall.ENOMEM)
	}
	length := (int64(size) + pageSize - 1) &^ (pageSize - 1)
	if err := f.user.Take(f.kind, uint64(length)); err != nil {
		return fail(err)
	}
	f.next = hugepage.Align(f.next, length)
	mem, err := f.allocLocked(length)
	if err != nil {
		f.user.Give(f.kind, uint64(length))
		return fail(err)
	}
	off := f.next
	f.next += length
	f.chunk.used++
	f.regions[off] = region{f.chunk, mem}
	return Shared{Mem: mem, Offset: uint64(off), Free: func() { f.free(off) }}, nil
}

// allocLocked reserves the next bytes of the file, and returns them as they are mapped.
func (f *File) allocLocked(length int64) ([]byte, error) {
	if err := f.reserve(f.next, length); err != nil {
		return nil, err
	}
	if c := f.chunk; c == nil || f.next+length > c.start+int64(len(c.mem)) {
		if err := f.newChunk(length); err != nil {
			f.punch(f.next, length)
			return nil, err
		}
	}
	at := f.next - f.chunk.start
	return f.chunk.mem[at : at+length : at+length], nil
}

func (f *File) reserve(off, length int64) error {
	fd := int(f.file.Fd())
	err := ignoringEINTR(func() error { return unix.Fallocate(fd, 0, off, length) })
	if err == nil {
		return nil
	}
	// What fallocate has reserved before it failed is to be given back.
	f.punch(off, length)
	if f.dir == nil && errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("this machine, or the service's control group, has no memory left: %w", syscall.ENOMEM)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("%s is full (df %[1]s): %s: %w", f.dir.Name(), Enlarge(f.dir.Name()), syscall.ENOMEM)
	}
	return &os.PathError{Op: "fallocate", Path: f.path, Err: err}
}

// Enlarge says how to make room on the file system of a path, which usually is on /dev/shm.
func Enlarge(path string) string {
	const usual = "/dev/shm"
	if strings.HasPrefix(path, usual+"/") {
		path = usual
	}
	return "make room there or enlarge it: mount -o remount,size=256m " + path + ", in a container --shm-size=256m"
}

// newChunk maps the file from next on.
func (f *File) newChunk(length int64) error {
	size := int64(smallChunk)
	if old := f.chunk; old != nil {
		size = min(2*int64(len(old.mem)), largeChunk)
	}
	size = max(size, length)
	if err := f.user.Take(quota.Mappings, 1); err != nil {
		return err
	}
	mem, err := hugepage.Reserve(int(size), f.next)
	if err == nil {
		if err = hugepage.Map(mem, int(f.file.Fd()), f.next); err != nil {
			hugepage.Release(mem)
		}
	}
	if err != nil {
		f.user.Give(quota.Mappings, 1)
		if err == unix.ENOMEM {
			err = fmt.Errorf("%w: see ulimit -v of the service and vm.max_map_count", err)
		}
		return &os.PathError{Op: "mmap", Path: f.path, Err: err}
	}
	old := f.chunk
	f.chunk = &chunk{start: f.next, mem: mem}
	f.dropUnused(old)
	return nil
}

// dropUnused unmaps a chunk that serves nothing any more.
func (f *File) dropUnused(c *chunk) {
	if c == nil || c == f.chunk || c.used > 0 {
		return
	}
	hugepage.Release(c.mem)
	f.user.Give(quota.Mappings, 1)
}

func (f *File) free(off int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.regions[off]
	if !ok {
		return
	}
	f.forget(off, r)
	f.punch(off, int64(len(r.mem)))
}

func (f *File) forget(off int64, r region) {
	delete(f.regions, off)
	f.user.Give(f.kind, uint64(len(r.mem)))
	r.chunk.used--
	f.dropUnused(r.chunk)
}

// punch gives pages back; the file keeps its size. Failing that, they are held until Close, which harms nobody.
func (f *File) punch(off, length int64) {
	_ = ignoringEINTR(func() error {
		return unix.Fallocate(int(f.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// OpenForProgram opens a second description of the file, for the caller to hand to the program and then to close here;
// how is the access mode, unix.O_RDONLY, O_WRONLY or O_RDWR. Its position is where no write(2) succeeds, so that a
// program which writes to its descriptor without anybody looking cannot write into a region by accident.
func (f *File) OpenForProgram(how int) (*os.File, error) { return f.openAt(how, 0, math.MaxInt64) }

func (f *File) openAt(how, flags int, position int64) (*os.File, error) {
	var p *os.File
	err := f.WithFD(func(fd int) (err error) {
		again, err := reopen.File(fd, how&unix.O_ACCMODE|flags)
		if err == nil {
			p = os.NewFile(uintptr(again), selfFD(fd))
		}
		return err
	})
	if err == nil {
		if _, err = p.Seek(position, io.SeekStart); err != nil {
			p.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open shared memory: %w", err)
	}
	return p, nil
}

// InUse reports whether anybody but this File has the file open or mapped. Once it is false it stays so, as far as
// those are concerned who can reach the file only through a descriptor that they have. It is true where that cannot be
// found out: for a file of another user that takes CAP_LEASE.
func (f *File) InUse() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file != nil && f.inUseLocked()
}

func (f *File) inUseLocked() bool {
	// The kernel grants a write lease only to the sole opener (fcntl(2), "Leases").
	fd := f.file.Fd()
	if _, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return true
	}
	_, _ = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
	return false
}

// Close unmaps all regions and removes the path. Nobody here may touch a region's memory from then on; what the
// program has mapped stays until it unmaps it. Close may be called again.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	for off, r := range f.regions {
		f.forget(off, r)
		if f.dir == nil { // a program that still has the file keeps no memory that is charged to no user
			f.punch(off, int64(len(r.mem)))
		}
	}
	if last := f.chunk; last != nil {
		f.chunk = nil
		f.dropUnused(last)
	}
	if f.dir != nil && !f.inUseLocked() {
		// Its owner may have given it another name, which would keep the memory.
		_ = ignoringEINTR(func() error { return unix.Ftruncate(int(f.file.Fd()), 0) })
	}
	err := f.file.Close()
	f.file = nil
	if f.dir == nil {
		return err
	}
	if rerr := unix.Unlinkat(int(f.dir.Fd()), f.name, 0); rerr != nil && rerr != unix.ENOENT {
		err = errors.Join(err, &os.PathError{Op: "remove", Path: f.path, Err: rerr})
	}
	if err != nil {
		return fmt.Errorf("close shared memory: %w", err)
	}
	return nil
}
