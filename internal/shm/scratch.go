package shm

import (
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// scratch is where a program writes what nobody reads: beyond all regions.
const scratch = 1 << 60

// Scratch is the part of a file to which a program may write(2), so that it is noticed (Watch), and from which the pages are taken away again
// (Drop). It is safe for concurrent use, and waits for no other use of the File.
type Scratch struct {
	mu   sync.Mutex
	fd   int   // of the service's description; -1: closed
	size int64 // of the file, when pages were taken away last
}

// OpenScratch opens a description of the file for a program, as OpenForProgram does, with the position in the scratch part, and what the
// service needs for that part: a descriptor.
func (f *File) OpenScratch() (*os.File, *Scratch, error) {
	p, err := f.openAt(unix.O_RDWR, scratch)
	if err != nil {
		return nil, nil, err
	}
	s := &Scratch{fd: -1}
	err = f.WithFD(func(fd int) (err error) {
		s.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		p.Close()
		return nil, nil, fmt.Errorf("open shared memory: %w", err)
	}
	return p, s, nil
}

// Watch adds an inotify watch for the file.
func (s *Scratch) Watch(inotify int, mask uint32) (wd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return 0, os.ErrClosed
	}
	return unix.InotifyAddWatch(inotify, selfFD(s.fd), mask)
}

// Drop takes away the pages that have been written since the last time. A program that goes back with lseek(2), or writes by
// pwrite(2), keeps them until the File is closed, as it would those of any file.
func (s *Scratch) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(s.fd, &st) != nil || st.Size <= scratch || st.Size == s.size {
		return
	}
	s.size = st.Size
	n := min((st.Size-scratch+pageSize-1)&^(pageSize-1), math.MaxInt64-scratch)
	_ = ignoringEINTR(func() error {
		return unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, scratch, n)
	})
}

// Close closes the descriptor. It may be called again.
func (s *Scratch) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

const (
	barTries = 20
	barPause = time.Millisecond
)

// Bar has the writes of a program fail that it makes by a description with a position in the scratch part: fd is one of the caller's for that,
// which another process has had too before. It reports whether it is such a description. It may sleep, for some milliseconds: a write that has
// begun before puts the position back.
func Bar(fd int) bool {
	at, err := unix.Seek(fd, 0, io.SeekCurrent)
	if err != nil || at < scratch || at == math.MaxInt64 {
		return false
	}
	for range barTries {
		if _, err := unix.Seek(fd, math.MaxInt64, io.SeekStart); err != nil {
			return false
		}
		time.Sleep(barPause)
		if at, err = unix.Seek(fd, 0, io.SeekCurrent); err != nil || at == math.MaxInt64 {
			break
		}
	}
	return err == nil && at == math.MaxInt64
}
