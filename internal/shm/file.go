package shm

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/hugepage"
	"verbena/internal/kept"
	"verbena/internal/quota"
	"verbena/internal/reopen"
)

// File is a sparse memfd (memfd_create(2)) with regions that are mapped by the service and by a program. A File
// cannot be truncated, so an access to a region never faults. A File is safe for concurrent use.
type File struct {
	name string
	user *quota.User        // user charged for regions and mappings
	kind quota.ResourceKind // kind of resource of the bytes of regions

	keep *kept.UserObjects // tracks the file after Close

	leave bool // Close keeps the pages for a program that still has the file (see KeepPagesOnClose)

	mu      sync.Mutex
	file    *os.File // nil after Close
	next    int64    // offset of the next chunk
	regions map[int64]fileRegion
	chunk   *fileChunk // chunk that provides new regions
}

// mappedRegion is a region of the file as mapped by the service. A program may write to the region at any time, and may
// free its pages, which then read as zeros.
type mappedRegion struct {
	// Mem is the service's mapping. Mem must not be used after Free.
	Mem []byte
	// Offset is the region's offset in the file, in bytes.
	Offset uint64
	// Free frees the region. A program's mappings of the region stay valid.
	Free func()
}

// fileRegion is an allocated part of a chunk.
type fileRegion struct {
	chunk *fileChunk
	mem   []byte
}

// fileChunk is a mapping of a part of the file, which is divided into regions. A separate mapping per region would soon
// exceed the limit of mappings of a process (vm.max_map_count). A chunk is unmapped when it has no region and is
// not the current chunk.
//
// Regions are taken from the end of the chunk. A program maps each region separately, and the kernel places the
// next mapping below the last one. The offsets of the two regions have the same order, so the kernel merges their
// mappings.
type fileChunk struct {
	start     int64 // offset in the file
	mem       []byte
	low, high int64 // offsets of the free part
	used      int   // number of regions
}

// nextOffset returns the offset of the next region of the given length, and false if there is no room.
func (c *fileChunk) nextOffset(length int64) (off int64, ok bool) {
	if c == nil {
		return 0, false
	}
	off = hugepage.AlignDown(c.high-length, length)
	if c.low == 0 { // this is the first chunk of the file
		off = 0
	}
	return off, off >= c.low && off+length <= c.high
}

// takeRegion takes a region from the free part of the chunk.
func (c *fileChunk) takeRegion(off, length int64) []byte {
	if off == 0 {
		c.low = length
	} else {
		c.high = off
	}
	at := off - c.start
	return c.mem[at : at+length : at+length]
}

// A file's first chunk has smallChunk bytes. Each further chunk has twice as many bytes, up to largeChunk. A longer
// region has a separate chunk. The unreserved part of a chunk uses addresses, but no memory.
const (
	smallChunk = 4 << 20
	largeChunk = 1 << 30
)

var pageSize = int64(os.Getpagesize())

// Create makes a file. The name, of at most 249 bytes, is for display. /proc/PID/maps and links in /proc/PID/fd
// show it as "/memfd:NAME (deleted)". Bytes of regions are charged to user as kind, and their mappings as mappings.
// The file is charged as a descriptor until Close and, if keep is not nil, as long as a program has the file.
func Create(name string, kind quota.ResourceKind, user *quota.User, keep *kept.UserObjects) (_ *File, err error) {
	if err := user.Charge(quota.Descriptors, 1); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			user.Release(quota.Descriptors, 1)
		}
	}()
	fail := func(what string, err error) (*File, error) {
		return nil, fmt.Errorf("create shared memory: %s: %w", what, err)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fail("memfd_create", err)
	}
	defer unix.Close(fd)
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return fail("fchmod", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return fail("seal", err)
	}
	// The kernel does not count the description returned by memfd_create as a writer of the file. InUse needs this
	// count of writers.
	own, err := reopen.FileOnCallingThread(fd, unix.O_RDWR)
	if err != nil {
		return fail("open", err)
	}
	return &File{file: os.NewFile(uintptr(own), name), name: name, user: user, keep: keep, kind: kind,
		regions: map[int64]fileRegion{}}, nil
}

// KeepPagesOnClose makes Close keep the pages of regions if a program still has the file. The program may poll its
// queues for completions that were posted before Close. The pages stay charged as long as the file. KeepPagesOnClose
// must be called before the file is used.
func (f *File) KeepPagesOnClose() { f.leave = true }

// Name returns the name of the file.
func (f *File) Name() string { return f.name }

// Chown changes the owner of the file.
func (f *File) Chown(uid int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return os.ErrClosed
	}
	return f.file.Chown(uid, -1)
}

// Stat calls fstat(2) for the file.
func (f *File) Stat(st *unix.Stat_t) error {
	return f.WithFD(func(fd int) error { return unix.Fstat(fd, st) })
}

// Watch adds an inotify watch for the file. The watch reports only descriptions that were opened by a link in
// /proc, like those of OpenForProgram.
func (f *File) Watch(inotify int, mask uint32) (wd int, err error) {
	err = f.WithFD(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(inotify, selfFDPath(fd), mask)
		return err
	})
	return wd, err
}

func selfFDPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// WithFD calls use with the service's descriptor, which stays open until use returns. WithFD returns os.ErrClosed
// after Close.
func (f *File) WithFD(use func(fd int) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return os.ErrClosed
	}
	return use(int(f.file.Fd()))
}

// Alloc returns a new region of at least size bytes, rounded up to whole pages. The region is zeroed, unless the
// program has already written to that part of the file. The first region of a file is at offset 0. The error wraps
// ENOMEM if memory is short or the user's limit is reached. Alloc may sleep.
//
// shared.Free may be called repeatedly. Close frees the remaining regions.
func (f *File) Alloc(size int) (mappedRegion, error) {
	fail := func(err error) (mappedRegion, error) {
		return mappedRegion{}, fmt.Errorf("allocate %d bytes of shared memory: %w", size, err)
	}
	if size <= 0 {
		return fail(syscall.EINVAL)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return fail(os.ErrClosed)
	}
	if int64(size) > scratchOffset-largeChunk-f.next {
		return fail(syscall.ENOMEM)
	}
	length := (int64(size) + pageSize - 1) &^ (pageSize - 1)
	if err := f.user.Charge(f.kind, uint64(length)); err != nil {
		return fail(err)
	}
	off, mem, err := f.allocLocked(length)
	if err != nil {
		f.user.Release(f.kind, uint64(length))
		return fail(err)
	}
	f.chunk.used++
	f.regions[off] = fileRegion{f.chunk, mem}
	return mappedRegion{Mem: mem, Offset: uint64(off), Free: func() { f.freeRegion(off) }}, nil
}

// allocLocked reserves bytes of the file, and returns their offset and mapping.
func (f *File) allocLocked(length int64) (off int64, mem []byte, err error) {
	off, ok := f.chunk.nextOffset(length)
	if !ok {
		if err := f.newChunk(length); err != nil {
			return 0, nil, err
		}
		off, _ = f.chunk.nextOffset(length)
	}
	if err := f.reservePages(off, length); err != nil {
		return 0, nil, err
	}
	return off, f.chunk.takeRegion(off, length), nil
}

func (f *File) reservePages(off, length int64) error {
	fd := int(f.file.Fd())
	err := retryOnEINTR(func() error { return unix.Fallocate(fd, 0, off, length) })
	if err == nil {
		return nil
	}
	// This call frees the pages that fallocate reserved before it failed.
	f.punchHole(off, length)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.ENOMEM) {
		return fmt.Errorf("no memory is left on this machine or in the service's control group: %w", syscall.ENOMEM)
	}
	return &os.PathError{Op: "fallocate", Path: f.name, Err: err}
}

// EnlargeAdvice returns advice to make room on the file system of a path, which usually is on /dev/shm.
func EnlargeAdvice(path string) string {
	const usual = "/dev/shm"
	if strings.HasPrefix(path, usual+"/") {
		path = usual
	}
	return "make room there or enlarge it: mount -o remount,size=256m " + path + ", in a container --shm-size=256m"
}

// newChunk maps the file from next on, with room for a region of the given length.
func (f *File) newChunk(length int64) error {
	start := hugepage.Align(f.next, length)
	size := int64(smallChunk)
	if old := f.chunk; old != nil {
		size = min(2*int64(len(old.mem)), largeChunk)
	}
	size = hugepage.Align(max(size, length), length)
	if err := f.user.Charge(quota.Mappings, 1); err != nil {
		return err
	}
	mem, err := hugepage.ReserveAddresses(int(size), start)
	if err == nil {
		if err = hugepage.Map(mem, int(f.file.Fd()), start); err != nil {
			hugepage.Release(mem)
		}
	}
	if err != nil {
		f.user.Release(quota.Mappings, 1)
		if err == unix.ENOMEM {
			err = fmt.Errorf("%w: see ulimit -v of the service and vm.max_map_count", err)
		}
		return &os.PathError{Op: "mmap", Path: f.name, Err: err}
	}
	old := f.chunk
	f.chunk, f.next = &fileChunk{start: start, mem: mem, low: start, high: start + size}, start+size
	f.unmapIfUnused(old)
	return nil
}

// unmapIfUnused unmaps a chunk that is no longer needed.
func (f *File) unmapIfUnused(c *fileChunk) {
	if c == nil || c == f.chunk || c.used > 0 {
		return
	}
	hugepage.Release(c.mem)
	f.user.Release(quota.Mappings, 1)
}

func (f *File) freeRegion(off int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.regions[off]
	if !ok {
		return
	}
	f.unmap(off, r)
	f.user.Release(f.kind, uint64(len(r.mem)))
	f.punchHole(off, int64(len(r.mem)))
}

func (f *File) unmap(off int64, r fileRegion) {
	delete(f.regions, off)
	r.chunk.used--
	f.unmapIfUnused(r.chunk)
}

// punchHole frees pages, and leaves the size of the file unchanged. If punch fails, the pages stay until Close, which
// is harmless.
func (f *File) punchHole(off, length int64) { punchHole(f.file, off, length) }

func punchHole(file *os.File, off, length int64) {
	_ = retryOnEINTR(func() error {
		return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
}

func retryOnEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// OpenForProgram opens a second description of the file, which the caller passes to the program and then closes.
// how is the access mode: unix.O_RDONLY, O_WRONLY or O_RDWR. The position of the description makes write(2) always
// fail, so that a program that writes to its descriptor cannot overwrite a region by accident.
func (f *File) OpenForProgram(how int) (*os.File, error) { return f.openAt(how, 0, math.MaxInt64) }

func (f *File) openAt(how, flags int, position int64) (*os.File, error) {
	var p *os.File
	err := f.WithFD(func(fd int) (err error) {
		again, err := reopen.File(fd, how&unix.O_ACCMODE|flags)
		if err == nil {
			p = os.NewFile(uintptr(again), selfFDPath(fd))
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

// InUse reports whether the file is open or mapped outside of this File. Once InUse has returned false, it stays
// false for processes that can access the file only through a descriptor that they have. InUse returns true if it
// cannot determine the use. For a file of another user, the check needs CAP_LEASE.
func (f *File) InUse() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file != nil && f.inUseLocked()
}

func (f *File) inUseLocked() bool {
	return checkSoleOpener(f.file.Fd()) != nil
}

// checkSoleOpener returns nil if no other description of a file is open or mapped, and EAGAIN otherwise. The kernel
// gives a write lease only to the sole opener (fcntl(2), "Leases").
func checkSoleOpener(fd uintptr) error {
	_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_WRLCK)
	if err == nil {
		_, _ = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err
}

// Close unmaps all regions and frees their pages, including pages that a program still has mapped. Those pages then
// read as zeros. KeepPagesOnClose changes that. The service must not access a region afterwards. Close may be called
// repeatedly. It returns nil.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	leave := f.leave && f.inUseLocked()
	left := uint64(0)
	for off, r := range f.regions {
		f.unmap(off, r)
		if leave {
			left += uint64(len(r.mem))
		} else {
			f.user.Release(f.kind, uint64(len(r.mem)))
			f.punchHole(off, int64(len(r.mem)))
		}
	}
	if last := f.chunk; last != nil {
		f.chunk = nil
		f.unmapIfUnused(last)
	}
	f.keep.Keep(closedFile{f.file, f.next}, func() {
		f.user.Release(f.kind, left)
		f.user.Release(quota.Descriptors, 1)
	})
	f.file = nil
	return nil
}

// closedFile is a file after Close, with pages below end.
type closedFile struct {
	*os.File
	end int64
}

// InUse reports whether a program has the file. It returns false if the use is unknown, so that the user is not
// charged forever.
func (r closedFile) InUse() bool { return errors.Is(checkSoleOpener(r.Fd()), unix.EAGAIN) }

// Close frees the pages, because a program may still have a descriptor opened with O_PATH, which InUse does not
// see.
func (r closedFile) Close() error {
	if r.end > 0 && !r.InUse() {
		punchHole(r.File, 0, r.end)
	}
	return r.File.Close()
}
