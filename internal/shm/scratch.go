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
	// scratch is the offset at which a program writes what nobody reads: beyond all regions.
	scratch = 1 << 60
	// barred is the size of a file to which no write(2) succeeds.
	barred = math.MaxInt64
	// duePages is the number of written pages at which Drop is due.
	duePages = 8
)

// Scratch is the part of a file to which a program may write(2), so that it is noticed (Watch). The program's
// description appends, so that the size of the file says where the next write goes, which the service can change
// without the program's descriptor. It is safe for concurrent use, and waits for no other use of the File.
type Scratch struct {
	file    *os.File     // a duplicate of the service's descriptor, open until no call uses it
	dropped atomic.Int64 // up to this offset, pages were taken away
	once    sync.Once    // closes

	// mu is held while the size is changed. A program can make that take as long as it likes: the inode's lock is held
	// while a write(2) of its reads memory that does not answer.
	mu sync.Mutex
}

// OpenScratch opens a description of the file for a program, as OpenForProgram does, which appends to the scratch part.
func (f *File) OpenScratch() (*os.File, *Scratch, error) {
	s := &Scratch{}
	s.dropped.Store(scratch)
	err := f.WithFD(func(fd int) error {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			s.file = os.NewFile(uintptr(own), f.name)
			err = growTo(own, scratch)
		}
		return err
	})
	var p *os.File
	if err == nil {
		p, err = f.openAt(unix.O_RDWR, unix.O_APPEND, scratch)
	}
	if err != nil {
		s.Close()
		return nil, nil, fmt.Errorf("open shared memory: %w", err)
	}
	return p, s, nil
}

// growTo makes a file at least so large.
func growTo(fd int, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size >= size {
		return err
	}
	return ignoringEINTR(func() error { return unix.Ftruncate(fd, size) })
}

// control calls use with the descriptor, os.ErrClosed after Close.
func (s *Scratch) control(use func(fd int) error) error {
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
	err = s.control(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(inotify, selfFD(fd), mask)
		return err
	})
	return wd, err
}

// Due reports whether there are pages for Drop to take away. It does not sleep.
func (s *Scratch) Due() bool {
	_, due := s.written()
	return due
}

// written returns the offset up to which the program has written, and whether there are many pages since the last Drop.
func (s *Scratch) written() (end int64, due bool) {
	_ = s.control(func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Size == barred {
			return err
		}
		end = st.Size
		due = end > s.dropped.Load()+duePages*pageSize
		return nil
	})
	return end, due
}

// Drop takes away the pages that have been written, if it is due. A program that writes by pwrite(2) keeps them for
// longer, as it would those of any file. It may sleep for as long as the program likes.
func (s *Scratch) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, due := s.written()
	if !due {
		return
	}
	from := s.dropped.Load()
	end -= end % pageSize // the next write goes to the last page
	err := s.control(func(fd int) error {
		return ignoringEINTR(func() error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, end-from)
		})
	})
	if err == nil {
		s.dropped.Store(end)
	}
}

// Bar lets no write of the program succeed from now on: EFBIG. It may sleep for as long as the program likes.
func (s *Scratch) Bar() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.control(func(fd int) error { return growTo(fd, barred) })
}

// Bar lets no write to a file succeed from now on, if it has a scratch part that a service has left which has ended.
func Bar(f *os.File) error {
	fi, err := f.Stat()
	if err != nil || fi.Size() < scratch {
		return err
	}
	return growTo(int(f.Fd()), barred)
}

// Close closes the descriptor, and waits for no other call. It may be called again.
func (s *Scratch) Close() {
	s.once.Do(func() { s.file.Close() })
}
