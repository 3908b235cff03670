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

// Files is an address space that is accessed through files in /proc. The files refer to the same address space even
// after an exec of the process. Files implements Space, and is safe for concurrent use.
type Files struct {
	mem, maps     *os.File
	memFD, mapsFD int
	// users is the number of users of the descriptors, plus one until Close. A descriptor in use is not closed.
	users  atomic.Int64
	closed atomic.Bool
	// foundGone is set when an access finds that no process has the address space any more.
	foundGone atomic.Bool

	noQuery atomic.Bool // the kernel does not support the query for one mapping (before Linux 6.11)
	reading sync.Mutex  // held while maps is read from the start

	// The next fields are the mappings of the last reads and writes. The mappings avoid the query, which takes a third
	// of the time of a short access.
	forReading, forWriting recentMappings
}

// recentMappings has space for the mappings that one message uses: its command, its work request and its payload.
type recentMappings struct {
	places [4]recentMapping
	next   atomic.Uint32 // index for the next store
}

// covers reports whether the whole range lies in one recently found mapping.
func (r *recentMappings) covers(addr, end uint64) bool {
	now := int64(time.Since(clockBase))
	for i := range r.places {
		if r.places[i].covers(addr, end, now) {
			return true
		}
	}
	return false
}

// record stores a mapping. The mapping is treated as present until a time after clockBase.
func (r *recentMappings) record(m mapping, until time.Duration) {
	r.places[r.next.Add(1)%uint32(len(r.places))].record(m, until)
}

// recentMapping is a mapping that was found to allow an access. The mapping is treated as unchanged for a short time.
// The zero value is empty.
type recentMapping struct {
	mu         sync.Mutex // serialises stores
	start, end atomic.Uint64
	until      atomic.Int64 // time since clockBase; 0 while the mapping is being stored
}

// mappingLifetime is the time for which a mapping is treated as unchanged. Within this time a doorbell costs no further
// system call. A device may write to the pages of a region regardless of later changes of the mappings. A change of
// protection takes effect after this time, and an unmapping takes effect at once.
const mappingLifetime = 10 * time.Millisecond

var clockBase = time.Now()

func (r *recentMapping) covers(addr, end uint64, now int64) bool {
	until := r.until.Load()
	if until == 0 || now >= until {
		return false
	}
	covered := r.start.Load() <= addr && end <= r.end.Load()
	return covered && r.until.Load() == until
}

func (r *recentMapping) record(m mapping, until time.Duration) {
	if !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	r.until.Store(0)
	r.start.Store(m.start)
	r.end.Store(m.end)
	r.until.Store(int64(until))
}

// NewFiles wraps /proc/TID/mem and /proc/TID/maps of one thread. The caller must have opened both before the thread
// could exec. If NewFiles succeeds, the Files owns mem and maps. The error is EINVAL if mem is not a /proc/PID/mem
// file.
func NewFiles(mem, maps *os.File) (*Files, error) {
	if err := CheckProcMem(int(mem.Fd())); err != nil {
		return nil, err
	}
	s := &Files{mem: mem, maps: maps, memFD: int(mem.Fd()), mapsFD: int(maps.Fd())}
	s.users.Store(1)
	return s, nil
}

// Close makes all later accesses fail. The files are closed after the last access in progress.
func (s *Files) Close() {
	if !s.closed.Swap(true) {
		s.endUse()
	}
}

// beginUse begins a use of the descriptors. beginUse returns false if they are closed. endUse ends the use.
func (s *Files) beginUse() bool {
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

func (s *Files) endUse() {
	if s.users.Add(-1) == 0 {
		s.mem.Close()
		s.maps.Close()
	}
}

// ReadV implements Space.
func (s *Files) ReadV(dst [][]byte, addr uint64) error { return s.moveData(dst, addr, false) }

// WriteV implements Space.
func (s *Files) WriteV(src [][]byte, addr uint64) error { return s.moveData(src, addr, true) }

// Check implements Space.
func (s *Files) Check(addr, length uint64, write bool) error {
	if length == 0 {
		return nil
	}
	if addr+length < addr {
		return ErrRange
	}
	if !s.beginUse() {
		return ErrFault
	}
	defer s.endUse()
	return s.checkMapped(addr, addr+length, write)
}

// isGone reports whether no process has the address space any more. In this case the file is empty. Otherwise a read at
// address 0 returns an error or memory.
func (s *Files) isGone() bool {
	if !s.beginUse() {
		return true
	}
	defer s.endUse()
	var b [1]byte
	n, err := unix.Pread(s.memFD, b[:], 0)
	return n == 0 && err == nil
}

// CheckProcMem returns an error unless a descriptor refers to a /proc/PID/mem file. Another file might block its
// reader, or be changed. CheckProcMem queries the file system only for a file with such a path, because a FUSE server
// need not respond.
func CheckProcMem(fd int) error { return checkProcFile(fd, "mem") }

// CheckProcMaps is the equivalent of CheckProcMem for /proc/PID/maps.
func CheckProcMaps(fd int) error { return checkProcFile(fd, "maps") }

func checkProcFile(fd int, file string) error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !isProcPath(name, file) {
		return fmt.Errorf("open /proc/PID/%s: got the file %q: %w", file, name, unix.EINVAL)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("open /proc/PID/%s: %w", file, err)
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("open /proc/PID/%s: got a file outside of procfs: %w", file, unix.EINVAL)
	}
	return nil
}

// isProcPath matches /proc/PID/FILE and /proc/PID/task/TID/FILE. Programs cannot choose names below /proc.
func isProcPath(name, file string) bool {
	var pid, tid int
	if n, _ := fmt.Sscanf(name, "/proc/%d/task/%d/", &pid, &tid); n == 2 {
		return name == fmt.Sprintf("/proc/%d/task/%d/%s", pid, tid, file)
	}
	n, _ := fmt.Sscanf(name, "/proc/%d/", &pid)
	return n == 1 && name == fmt.Sprintf("/proc/%d/%s", pid, file)
}

// moveData reads or writes. Access by file ignores the protection of pages. Therefore the mappings are checked first. A
// process that changes its mappings between the check and the access affects only its own memory.
func (s *Files) moveData(bufs [][]byte, addr uint64, write bool) error {
	size := totalLen(bufs)
	if size == 0 {
		return nil
	}
	if addr+size < addr || addr+size > math.MaxInt64 || !s.beginUse() {
		return ErrFault
	}
	defer s.endUse()
	if !s.mappingCache(write).covers(addr, addr+size) {
		if err := s.checkMapped(addr, addr+size, write); err != nil {
			return err
		}
	}
	return moveVectors(nil, s, bufs, addr, write)
}

func (s *Files) mappingCache(write bool) *recentMappings {
	if write {
		return &s.forWriting
	}
	return &s.forReading
}

// transfer transfers the data of one call. The file is empty when the address space no longer exists.
func (s *Files) transfer(iov []unix.Iovec, addr uint64, size int, write bool) error {
	n, err := transferVectorAt(s.memFD, iov, addr, write)
	if err == nil && n == 0 {
		s.foundGone.Store(true)
	}
	switch {
	case err == nil && n == size:
		return nil
	case err == nil, err == unix.EIO, err == unix.EFAULT:
		return ErrFault
	}
	return err
}

// checkMapped checks that [addr, end) is mapped readable, and writable if write is set. checkMapped returns nil,
// ErrFault, or the error of the query.
func (s *Files) checkMapped(addr, end uint64, write bool) error {
	covered, err := s.covers(addr, end, write)
	switch {
	case errors.Is(err, unix.ESRCH): // the address space no longer exists
		s.foundGone.Store(true)
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
		case err == unix.ENOTTY, err == unix.EINVAL, err == unix.ENOSYS: // qemu-user returns ENOSYS
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
		s.mappingCache(write).record(m, since+mappingLifetime)
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
		s.mappingCache(write).record(span, since+mappingLifetime)
	}
	return covered, err
}
