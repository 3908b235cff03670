package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib"
)

// File is a sparse file whose regions are mapped by the service and by a program. It is safe for concurrent use.
type File struct {
	path string

	mu      sync.Mutex
	file    *os.File // nil: closed
	next    int64    // offset of the next region
	regions map[int64][]byte
}

var pageSize = int64(os.Getpagesize())

// Create makes the file, which must not exist, with mode 0600, and opens it.
func Create(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create shared memory: %w", err)
	}
	return &File{path: path, file: f, regions: make(map[int64][]byte)}, nil
}

// Path is where the file is.
func (f *File) Path() string { return f.path }

// Alloc returns a new region of at least size bytes, zeroed and rounded up to whole pages. The first region of a
// file is at offset 0. The error wraps ENOMEM when the file system is full. It may sleep.
//
// Shared.Free may be called more than once; Close frees what is left.
func (f *File) Alloc(size int) (ib.Shared, error) {
	fail := func(err error) (ib.Shared, error) {
		return ib.Shared{}, fmt.Errorf("allocate %d bytes of shared memory: %w", size, err)
	}
	if size <= 0 {
		return fail(syscall.EINVAL)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return fail(os.ErrClosed)
	}
	if int64(size) > math.MaxInt64-pageSize-f.next {
		return fail(syscall.ENOMEM)
	}
	off := f.next
	length := (int64(size) + pageSize - 1) &^ (pageSize - 1)
	fd := int(f.file.Fd())
	if err := ignoringEINTR(func() error { return unix.Fallocate(fd, 0, off, length) }); err != nil {
		// What fallocate has reserved before it failed is to be given back.
		f.punch(off, length)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EFBIG) {
			return fail(fmt.Errorf("%s is full (df %[1]s): %w", filepath.Dir(f.path), syscall.ENOMEM))
		}
		return fail(&os.PathError{Op: "fallocate", Path: f.path, Err: err})
	}
	mem, err := unix.Mmap(fd, off, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.punch(off, length)
		return fail(&os.PathError{Op: "mmap", Path: f.path, Err: err})
	}
	f.next = off + length
	f.regions[off] = mem
	return ib.Shared{Mem: mem, Offset: uint64(off), Free: func() { f.free(off) }}, nil
}

func (f *File) free(off int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mem, ok := f.regions[off]
	if !ok {
		return
	}
	delete(f.regions, off)
	f.punch(off, int64(len(mem)))
	_ = unix.Munmap(mem)
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

// OpenForProgram opens a second description of the file, for the caller to hand to the program and then to close
// here. Its position is where no write(2) succeeds, so that a program which writes to its descriptor without
// anybody looking cannot write into a region by accident.
func (f *File) OpenForProgram() (*os.File, error) {
	p, err := os.OpenFile(f.path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open shared memory: %w", err)
	}
	if _, err := p.Seek(math.MaxInt64, 0); err != nil {
		p.Close()
		return nil, fmt.Errorf("open shared memory: %w", err)
	}
	return p, nil
}

// InUse reports whether anybody but this File has the file open or mapped. Once it is false it stays so, as far as
// those are concerned who can reach the file only through a descriptor that they have.
func (f *File) InUse() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return false
	}
	// The kernel grants a write lease only to the sole opener (fcntl(2), "Leases").
	fd := int(f.file.Fd())
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return errors.Is(err, syscall.EAGAIN)
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
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
	for off, mem := range f.regions {
		_ = unix.Munmap(mem)
		delete(f.regions, off)
	}
	err := f.file.Close()
	f.file = nil
	if rerr := os.Remove(f.path); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return fmt.Errorf("close shared memory: %w", err)
	}
	return nil
}
