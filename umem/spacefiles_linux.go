package umem

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Files is an address space by its files in /proc, which stay its own whatever the process does. It is a Space, and
// safe for concurrent use.
type Files struct {
	mem, maps     *os.File
	memFD, mapsFD int
	// users are those that use the descriptors now, and one more until Close; none closes them.
	users  atomic.Int64
	closed atomic.Bool

	noQuery atomic.Bool // the kernel cannot be asked for one mapping (before Linux 6.11)
	reading sync.Mutex  // held while maps is read from its start

	// The mappings that were last found to be read and written, for the next accesses: to ask the kernel takes a third
	// of what a short access does.
	forReading, forWriting recentMappings
}

// recentMappings are as many as a message leads to by turns: of its command, its work request and its payload.
type recentMappings struct {
	places [4]recentMapping
	next   atomic.Uint32 // the place to be stored in
}

// covers reports whether all of the range was found in one mapping a moment ago.
func (r *recentMappings) covers(addr, end uint64) bool {
	now := int64(time.Since(clockBase))
	for i := range r.places {
		if r.places[i].covers(addr, end, now) {
			return true
		}
	}
	return false
}

// note stores a mapping that is to be taken to be there until so long after clockBase.
func (r *recentMappings) note(m mapping, until time.Duration) {
	r.places[r.next.Add(1)%uint32(len(r.places))].note(m, until)
}

// recentMapping is a mapping that was found to allow an access, and is taken to do so for a moment. The zero value is
// none.
type recentMapping struct {
	mu         sync.Mutex // of those that store
	start, end atomic.Uint64
	until      atomic.Int64 // since clockBase; 0: being stored
}

// mappingLasts is how long a mapping is taken to be as it was, so that a doorbell costs no further system call. A device
// goes on writing to the pages of a region whatever the program does to its mappings; what is changed here is seen after
// this time, and what is unmapped at once.
const mappingLasts = 10 * time.Millisecond

var clockBase = time.Now()

func (r *recentMapping) covers(addr, end uint64, now int64) bool {
	until := r.until.Load()
	if until == 0 || now >= until {
		return false
	}
	covered := r.start.Load() <= addr && end <= r.end.Load()
	return covered && r.until.Load() == until
}

func (r *recentMapping) note(m mapping, until time.Duration) {
	if !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	r.until.Store(0)
	r.start.Store(m.start)
	r.end.Store(m.end)
	r.until.Store(int64(until))
}

// NewFiles makes Files of /proc/TID/mem and /proc/TID/maps of one thread, opened while the address space was the one
// that is meant. The files are the Files' from then on, unless there is an error: EINVAL if mem is no such file.
func NewFiles(mem, maps *os.File) (*Files, error) {
	if err := IsProcMem(int(mem.Fd())); err != nil {
		return nil, err
	}
	s := &Files{mem: mem, maps: maps, memFD: int(mem.Fd()), mapsFD: int(maps.Fd())}
	s.users.Store(1)
	return s, nil
}

// Close ends every access from now on. The files are closed when the last one that goes on has ended.
func (s *Files) Close() {
	if !s.closed.Swap(true) {
		s.leave()
	}
}

// enter begins a use of the descriptors, false if they are closed. leave ends it.
func (s *Files) enter() bool {
	for {
		n := s.users.Load()
		if n == 0 || s.closed.Load() {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *Files) leave() {
	if s.users.Add(-1) == 0 {
		s.mem.Close()
		s.maps.Close()
	}
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
	if !s.enter() {
		return ErrFault
	}
	defer s.leave()
	return s.check(addr, addr+length, write)
}

// gone reports whether no process has the address space any more: then the file is empty. At address 0 there is
// otherwise an error, or memory.
func (s *Files) gone() bool {
	if !s.enter() {
		return true
	}
	defer s.leave()
	var b [1]byte
	n, err := unix.Pread(s.memFD, b[:], 0)
	return n == 0 && err == nil
}

// IsProcMem reports an error unless a descriptor is of some /proc/PID/mem: another file might block whoever reads it, or be changed. It asks the
// file system only about a file that is at such a path, since that of a FUSE server need not answer.
func IsProcMem(fd int) error { return isProc(fd, "mem") }

// IsProcMaps does the same for /proc/PID/maps.
func IsProcMaps(fd int) error { return isProc(fd, "maps") }

func isProc(fd int, file string) error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !isProcPath(name, file) {
		return fmt.Errorf("a file that should be /proc/PID/%s is %q: %w", file, name, unix.EINVAL)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("look at a file that should be /proc/PID/%s: %w", file, err)
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("a file that should be /proc/PID/%s is of another file system than proc: %w", file, unix.EINVAL)
	}
	return nil
}

// isProcPath knows /proc/PID/FILE and /proc/PID/task/TID/FILE; the names of processes below /proc cannot be chosen.
func isProcPath(name, file string) bool {
	var pid, tid int
	if n, _ := fmt.Sscanf(name, "/proc/%d/task/%d/", &pid, &tid); n == 2 {
		return name == fmt.Sprintf("/proc/%d/task/%d/%s", pid, tid, file)
	}
	n, _ := fmt.Sscanf(name, "/proc/%d/", &pid)
	return n == 1 && name == fmt.Sprintf("/proc/%d/%s", pid, file)
}

// move reads or writes. Access by the file ignores the protection of pages, so the mappings are looked up first; if the
// process changes them just then, it is with its own memory that it does so.
func (s *Files) move(bufs [][]byte, addr uint64, write bool) error {
	size := total(bufs)
	if size == 0 {
		return nil
	}
	if addr+size < addr || addr+size > math.MaxInt64 || !s.enter() {
		return ErrFault
	}
	defer s.leave()
	if !s.recent(write).covers(addr, addr+size) {
		if err := s.check(addr, addr+size, write); err != nil {
			return err
		}
	}
	return moveVectors(nil, s, bufs, addr, write)
}

func (s *Files) recent(write bool) *recentMappings {
	if write {
		return &s.forWriting
	}
	return &s.forReading
}

// transfer moves what one call can. The file is empty once the address space has gone.
func (s *Files) transfer(iov []unix.Iovec, addr uint64, size int, write bool) error {
	n, err := vectorAt(s.memFD, iov, addr, write)
	switch {
	case err == nil && n == size:
		return nil
	case err == nil, err == unix.EIO, err == unix.EFAULT:
		return ErrFault
	}
	return err
}

// check reports whether [addr, end) is mapped readable, and writable where write is set: nil or ErrFault, or why that
// cannot be found out.
func (s *Files) check(addr, end uint64, write bool) error {
	covered, err := s.covers(addr, end, write)
	switch {
	case errors.Is(err, unix.ESRCH): // the address space has gone
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
		since := time.Since(clockBase)
		m, err := queryMapping(s.mapsFD, addr)
		switch {
		case err == unix.ENOTTY, err == unix.EINVAL, err == unix.ENOSYS: // the last from qemu-user
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
		s.recent(write).note(m, since+mappingLasts)
		addr = m.end
	}
	if addr >= end {
		return true, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	since := time.Since(clockBase)
	span, covered, err := mapsCover(io.NewSectionReader(s.maps, 0, math.MaxInt64), addr, end, write)
	if covered {
		s.recent(write).note(span, since+mappingLasts)
	}
	return covered, err
}
