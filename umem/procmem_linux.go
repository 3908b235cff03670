package umem

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// procMem is the memory of a process by its file /proc/PID/mem, which another process has opened. The file belongs to
// an address space: when the process executes another program, a new one is needed.
type procMem struct {
	pid  int
	open func() (*os.File, error)

	mu     sync.Mutex
	mem    *os.File
	closed bool
}

// file returns the file to use; worn is one that does not lead to the process any more, or nil.
func (m *procMem) file(worn *os.File) (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrFault
	}
	if m.mem != nil && m.mem != worn {
		return m.mem, nil
	}
	f, err := m.open()
	if err != nil {
		return nil, err
	}
	if err := IsProcMem(f); err != nil {
		f.Close()
		return nil, err
	}
	if m.mem != nil {
		m.mem.Close()
	}
	m.mem = f
	return f, nil
}

func (m *procMem) close() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.mem != nil {
		m.mem.Close()
		m.mem = nil
	}
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

func isMemPath(name string) bool {
	var pid int
	n, err := fmt.Sscanf(name, "/proc/%d/mem", &pid)
	return n == 1 && err == nil && name == fmt.Sprintf("/proc/%d/mem", pid)
}

// moveByMem does what moveBy does, by the file. The mappings are looked up first; if the process changes them just
// then, it is with its own memory that it does so.
func (p *Process) moveByMem(bufs [][]byte, addr uint64, write bool) error {
	size := total(bufs)
	if size == 0 {
		return nil
	}
	if p.dead.Load() {
		return ErrFault
	}
	if err := p.Check(addr, size, write); err != nil {
		return err
	}
	var worn *os.File
	for {
		f, err := p.by.file(worn)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFault, err)
		}
		n, err := moveFile(f, bufs, addr, write)
		switch {
		case n == size:
			return nil
		case worn == nil && (n == 0 && err == nil || errors.Is(err, os.ErrClosed)): // the address space is gone
			worn = f
			continue
		case err == nil, errors.Is(err, unix.EIO), errors.Is(err, unix.EFAULT), errors.Is(err, os.ErrClosed):
			return ErrFault
		}
		return err
	}
}

func moveFile(f *os.File, bufs [][]byte, addr uint64, write bool) (done uint64, err error) {
	for _, b := range bufs {
		var n int
		if len(b) == 0 {
			continue
		}
		if write {
			n, err = f.WriteAt(b, int64(addr+done))
		} else {
			n, err = f.ReadAt(b, int64(addr+done))
		}
		done += uint64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrShortWrite) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil
		}
		if n < len(b) || err != nil {
			return done, err
		}
	}
	return done, nil
}

// CheckProcess is Process.Check for a process, or a thread, that need not be opened.
func CheckProcess(pid int, addr, length uint64, write bool) error {
	if length == 0 {
		return nil
	}
	if addr+length < addr {
		return ErrRange
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return ErrFault
	case errors.Is(err, os.ErrPermission):
		return ErrAccess
	case err != nil:
		return fmt.Errorf("read the mappings of process %d: %w", pid, err)
	}
	defer f.Close()
	covered, err := mapsCover(f, addr, addr+length, write)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("read the mappings of process %d: %w", pid, err)
	}
	if !covered {
		return ErrFault
	}
	return nil
}
