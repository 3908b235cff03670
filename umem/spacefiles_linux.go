package umem

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Files is an address space by its files in /proc, which stay its own whatever the process does. It is a Space, and safe
// for concurrent use.
type Files struct {
	mem, maps *os.File
	conn      syscall.RawConn // of maps

	noQuery atomic.Bool // the kernel cannot be asked for one mapping (before Linux 6.11)
	reading sync.Mutex  // held while maps is read from its start
}

// NewFiles makes Files of /proc/TID/mem and /proc/TID/maps of one thread, opened while the address space was the one that
// is meant. The files are the Files' from then on, unless there is an error: EINVAL if mem is no such file.
func NewFiles(mem, maps *os.File) (*Files, error) {
	if err := IsProcMem(mem); err != nil {
		return nil, err
	}
	conn, err := maps.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Files{mem: mem, maps: maps, conn: conn}, nil
}

// Close closes the files.
func (s *Files) Close() {
	s.mem.Close()
	s.maps.Close()
}

// ReadV implements Space.
func (s *Files) ReadV(dst [][]byte, addr uint64) error { return s.move(dst, addr, false) }

// WriteV implements Space.
func (s *Files) WriteV(src [][]byte, addr uint64) error { return s.move(src, addr, true) }

// Check implements Space.
func (s *Files) Check(addr, length uint64, write bool) error {
	if length == 0 {
		return nil
	}
	if addr+length < addr {
		return ErrRange
	}
	return s.check(addr, addr+length, write)
}

// gone reports whether no process has the address space any more: then the file is empty. At address 0 there is
// otherwise an error, or memory.
func (s *Files) gone() bool {
	var b [1]byte
	n, err := s.mem.ReadAt(b[:], 0)
	return n == 0 && errors.Is(err, io.EOF)
}

// IsProcMem reports an error unless f is some /proc/PID/mem: another file might block whoever reads it, or be changed.
func IsProcMem(f *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return fmt.Errorf("look at a file that should be /proc/PID/mem: %w", err)
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil || fs.Type != unix.PROC_SUPER_MAGIC || !isMemPath(name) {
		return fmt.Errorf("a file that should be /proc/PID/mem is %q: %w", name, unix.EINVAL)
	}
	return nil
}

// isMemPath knows /proc/PID/mem and /proc/PID/task/TID/mem; the names of processes below /proc cannot be chosen.
func isMemPath(name string) bool {
	var pid, tid int
	if n, err := fmt.Sscanf(name, "/proc/%d/task/%d/mem", &pid, &tid); n == 2 && err == nil {
		return name == fmt.Sprintf("/proc/%d/task/%d/mem", pid, tid)
	}
	n, err := fmt.Sscanf(name, "/proc/%d/mem", &pid)
	return n == 1 && err == nil && name == fmt.Sprintf("/proc/%d/mem", pid)
}

// move reads or writes. Writing by the file ignores the protection of pages, so the mappings are looked up first; if the
// process changes them just then, it is with its own memory that it does so.
func (s *Files) move(bufs [][]byte, addr uint64, write bool) error {
	size := total(bufs)
	if size == 0 {
		return nil
	}
	if addr+size < addr || addr+size > math.MaxInt64 {
		return ErrFault
	}
	if err := s.check(addr, addr+size, write); err != nil {
		return err
	}
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		var n int
		var err error
		if write {
			n, err = s.mem.WriteAt(b, int64(addr))
		} else {
			n, err = s.mem.ReadAt(b, int64(addr))
		}
		switch {
		case n == len(b):
		case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrShortWrite), errors.Is(err, io.ErrUnexpectedEOF),
			errors.Is(err, unix.EIO), errors.Is(err, unix.EFAULT), errors.Is(err, os.ErrClosed):
			return ErrFault
		default:
			return err
		}
		addr += uint64(n)
	}
	return nil
}

// check reports whether [addr, end) is mapped readable, and writable where write is set: nil or ErrFault, or why that
// cannot be found out.
func (s *Files) check(addr, end uint64, write bool) error {
	covered, err := s.covers(addr, end, write)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, os.ErrClosed): // the address space has gone
		return ErrFault
	case err != nil:
		return fmt.Errorf("read the mappings of a process: %w", err)
	case !covered:
		return ErrFault
	}
	return nil
}

func (s *Files) covers(addr, end uint64, write bool) (bool, error) {
	for !s.noQuery.Load() && addr < end {
		m, err := queryMapping(s.conn, addr)
		switch {
		case err == unix.ENOTTY, err == unix.EINVAL:
			s.noQuery.Store(true)
			continue
		case err == unix.ENOENT:
			return false, nil
		case err != nil:
			return false, err
		}
		if !m.read || write && !m.write {
			return false, nil
		}
		addr = m.end
	}
	if addr >= end {
		return true, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	return mapsCover(io.NewSectionReader(s.maps, 0, math.MaxInt64), addr, end, write)
}
