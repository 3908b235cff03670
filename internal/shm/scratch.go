package shm

import (
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// scratchOffset is the offset of a program's scratch writes, beyond all regions. The service never reads the
	// scratch writes.
	scratchOffset = 1 << 60
	// barredSize is the size at which each write(2) to a file fails.
	barredSize = math.MaxInt64
	// duePages is the number of written pages at which FreeWrittenPages is due.
	duePages = 8
)

// Scratch is the part of a file to which a program may write(2), so that the service can detect the write (Watch).
// The program's description has O_APPEND. Therefore the size of the file is the position of the next write, and the
// service can change the size without the program's descriptor. Scratch is safe for concurrent use, and does not
// wait for other uses of the File.
type Scratch struct {
	file    *os.File     // duplicate of the service's descriptor, open until no call uses it
	dropped atomic.Int64 // pages up to this offset were freed
	once    sync.Once    // for Close

	// mu is held while the size is changed. A program can delay the change for a time that it controls. A write(2)
	// of the program holds the inode's lock while it reads memory that blocks access.
	mu sync.Mutex
}

// OpenScratch opens a description of the file for a program, like OpenForProgram. Writes to the description append
// to the scratch part.
func (f *File) OpenScratch() (*os.File, *Scratch, error) {
	s := &Scratch{}
	s.dropped.Store(scratchOffset)
	err := f.WithFD(func(fd int) error {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			s.file = os.NewFile(uintptr(own), f.name)
			err = growFileTo(own, scratchOffset)
		}
		return err
	})
	var p *os.File
	if err == nil {
		p, err = f.openAt(unix.O_RDWR, unix.O_APPEND, scratchOffset)
	}
	if err != nil {
		s.Close()
		return nil, nil, fmt.Errorf("open shared memory: %w", err)
	}
	return p, s, nil
}

// growFileTo enlarges a file to at least size bytes.
func growFileTo(fd int, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size >= size {
		return err
	}
	return retryOnEINTR(func() error { return unix.Ftruncate(fd, size) })
}

// withDescriptor calls use with the descriptor. It returns os.ErrClosed after Close.
func (s *Scratch) withDescriptor(use func(fd int) error) error {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return os.ErrClosed
	}
	if cerr := conn.Control(func(fd uintptr) { err = use(int(fd)) }); cerr != nil {
		return os.ErrClosed
	}
	return err
}

// Watch adds an inotify watch for the file.
func (s *Scratch) Watch(inotify int, mask uint32) (wd int, err error) {
	err = s.withDescriptor(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(inotify, selfFDPath(fd), mask)
		return err
	})
	return wd, err
}

// IsFreeDue reports whether there are pages for FreeWrittenPages to free. IsFreeDue does not sleep.
func (s *Scratch) IsFreeDue() bool {
	_, due := s.writtenEndOffset()
	return due
}

// writtenEndOffset returns the offset up to which the program has written, and whether FreeWrittenPages is due.
func (s *Scratch) writtenEndOffset() (end int64, due bool) {
	_ = s.withDescriptor(func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Size == barredSize {
			return err
		}
		end = st.Size
		due = end > s.dropped.Load()+duePages*pageSize
		return nil
	})
	return end, due
}

// FreeWrittenPages frees the written pages, if IsFreeDue would return true. Pages written by pwrite(2) stay longer,
// like the pages of any file of the program. FreeWrittenPages can block for a time that the program controls.
func (s *Scratch) FreeWrittenPages() {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, due := s.writtenEndOffset()
	if !due {
		return
	}
	from := s.dropped.Load()
	end -= end % pageSize // the next write goes to the last page
	err := s.withDescriptor(func(fd int) error {
		return retryOnEINTR(func() error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, end-from)
		})
	})
	if err == nil {
		s.dropped.Store(end)
	}
}

// DenyWrites makes all later writes of the program fail with EFBIG. DenyWrites can block for a time that the program
// controls.
func (s *Scratch) DenyWrites() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.withDescriptor(func(fd int) error { return growFileTo(fd, barredSize) })
}

// DenyWrites makes all later writes to a file fail, if the file has a scratch part of a service that has ended.
func DenyWrites(f *os.File) error {
	fi, err := f.Stat()
	if err != nil || fi.Size() < scratchOffset {
		return err
	}
	return growFileTo(int(f.Fd()), barredSize)
}

// Close closes the descriptor, and does not wait for other calls. Close may be called again.
func (s *Scratch) Close() {
	s.once.Do(func() { s.file.Close() })
}
