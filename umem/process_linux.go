package umem

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrAccess: the kernel does not permit this process to access the memory of the other one. This requires the same
// user, or CAP_SYS_PTRACE, and a Yama ptrace_scope that allows it (ptrace(2), "Ptrace access mode checking").
var ErrAccess = fmt.Errorf("may not access the process's memory (another user, not dumpable, or kernel.yama.ptrace_scope): %w", unix.EPERM)

// ErrExec: an access in progress did not end within the time limit of Bind.
var ErrExec = fmt.Errorf("an access to the process's memory does not end: %w", unix.EAGAIN)

// Process is the address space that a process had when it was opened. It is safe for concurrent use.
//
// There are two methods of access to another process. Access by process number, process_vm_readv(2), reaches the memory
// of any program that the process executes later and, after its end, of any process with the same number. Access by
// file, /proc/PID/mem (proc_pid_mem(5)), reaches one address space. It is faster for up to a few kilobytes, and takes
// up to twice as long for more. A Process uses the number if that is much faster and harmless. Large reads are
// harmless, because the data are discarded if the process has ended meanwhile. Large writes are harmless if every
// process that may have the number belongs to the same user (ProcessConfig.Trusting). Bind, called before the process
// executes another program, ends access by number:
//
//	direct --Bind--> binding --last access by number ended--> bound
//	   |                                                        |
//	   +------------------- the process has exited, or Close ---+--> dead
//
// In state bound, an access reaches the address space at the creation of the Process. If no process has that any more,
// the access returns ErrFault. If the kernel does not permit access by number (Yama, or the main thread has ended), the
// Process is bound from the start.
//
// The Process watches the process through a pidfd: after its exit every access returns ErrFault.
type Process struct {
	pid     int
	pidfd   *os.File
	conn    syscall.RawConn // connection of pidfd
	pidfdFD int
	files   *Files
	copies  *Copies

	trusting bool

	direct    atomic.Int64  // number of accesses by number in progress, plus binding once no new ones may begin
	drained   chan struct{} // closed when binding is set and the last of them has ended
	drainOnce sync.Once     // closes drained

	dead   atomic.Bool // exited, or closed
	exited chan struct{}
	once   sync.Once // closes exited
}

const binding = 1 << 62

// ProcessConfig holds the parameters of a Process. The Process owns the files, even after an error.
type ProcessConfig struct {
	PID   int      // its thread group's id
	Pidfd *os.File // pidfd_open(2) of it, non-blocking
	// Mem and Maps are /proc/TID/mem and /proc/TID/maps of one of its threads. They must have been opened before the
	// thread could exec. Mem may be opened by another process, with more rights than this one.
	Mem, Maps *os.File
	// Bound disables access by number from the start.
	Bound bool
	// Trusting allows writing by number: this process may write to every process that could have the number later. It
	// must not be set in a process that may access memory of other users.
	Trusting bool
	// Copies limits concurrent accesses; nil: no limit.
	Copies *Copies
}

// OpenProcess opens the current memory of a process by its process id (that of a thread group leader). The caller must
// ensure that the process exists and does not exec meanwhile, for example by holding its trapped system call. It
// returns ErrAccess if the kernel does not permit it, ESRCH if there is no such process. It may sleep.
func OpenProcess(pid int) (*Process, error) {
	cfg := ProcessConfig{PID: pid}
	fail := func(err error) (*Process, error) {
		cfg.close()
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = unix.ESRCH
		case errors.Is(err, os.ErrPermission):
			err = ErrAccess
		}
		return nil, fmt.Errorf("open memory of process %d: %w", pid, err)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fail(err)
	}
	cfg.Pidfd = os.NewFile(uintptr(fd), "pidfd")
	if cfg.Mem, err = openProc(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR); err != nil {
		return fail(err)
	}
	if cfg.Maps, err = openProc(fmt.Sprintf("/proc/%d/maps", pid), os.O_RDONLY); err != nil {
		return fail(err)
	}
	return NewProcess(cfg)
}

// openProc opens a file of a process. It does not follow symbolic links, which the filter of a confined process
// forbids.
func openProc(path string, how int) (*os.File, error) {
	return os.OpenFile(path, how|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
}

func (c *ProcessConfig) close() {
	for _, f := range [...]*os.File{c.Pidfd, c.Mem, c.Maps} {
		if f != nil {
			f.Close()
		}
	}
}

// NewProcess creates a Process from open files. It returns EINVAL if Mem is not a /proc/PID/mem. It may sleep.
func NewProcess(cfg ProcessConfig) (_ *Process, err error) {
	defer func() {
		if err != nil {
			cfg.close()
			err = fmt.Errorf("open memory of process %d: %w", cfg.PID, err)
		}
	}()
	files, err := NewFiles(cfg.Mem, cfg.Maps)
	if err != nil {
		return nil, err
	}
	p := &Process{
		pid: cfg.PID, pidfd: cfg.Pidfd, files: files, copies: cfg.Copies, trusting: cfg.Trusting,
		drained: make(chan struct{}), exited: make(chan struct{}),
	}
	if p.conn, err = p.pidfd.SyscallConn(); err != nil {
		return nil, err
	}
	if err := p.conn.Control(func(fd uintptr) { p.pidfdFD = int(fd) }); err != nil {
		return nil, err
	}
	if !cfg.Bound {
		// The kernel checks the permission before the address. The address is in the kernel's part of the address
		// space, where no process can map blocking memory.
		var b [1]byte
		_, err := p.vm([]unix.Iovec{{Base: &b[0], Len: 1}}, 1<<63, 1, false)
		cfg.Bound = err == unix.EPERM || err == unix.ESRCH
	}
	if cfg.Bound {
		p.direct.Store(binding)
		p.drainOnce.Do(func() { close(p.drained) })
	}
	go p.watch()
	return p, nil
}

// watch waits in the poller until the process exits or Close.
func (p *Process) watch() {
	_ = p.conn.Read(func(fd uintptr) bool { return exited(int(fd)) })
	p.MarkDead()
}

// exited reports whether the process of a pidfd has exited: then the pidfd is readable.
func exited(pidfd int) bool {
	pfd := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(pfd, 0)
	return err == nil && n > 0
}

// PID returns the process id.
func (p *Process) PID() int { return p.pid }

// Exited returns a channel that is closed when the process has exited, or is treated as exited (MarkDead, Close).
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Alive asks the kernel whether the process exists. If so, its id has not been reused.
func (p *Process) Alive() bool {
	alive := !exited(p.pidfdFD)
	return alive && !p.dead.Load() // it is set before the pidfd is closed
}

// Pidfd calls f with the pidfd of the process, which stays open until f returns.
func (p *Process) Pidfd(f func(fd int)) error { return p.conn.Control(func(fd uintptr) { f(int(fd)) }) }

// MarkDead makes all later accesses fail, for an owner that learns of the process's exit before the pidfd reports it.
func (p *Process) MarkDead() {
	p.once.Do(func() {
		p.dead.Store(true)
		close(p.exited)
	})
}

// Close ends the watch and makes all later accesses fail.
func (p *Process) Close() error {
	p.MarkDead()
	p.files.Close()
	return p.pidfd.Close()
}

// Bind restricts the Process to its address space, also after an exec of the process. It returns when no access by
// number is in progress, or ErrExec after the timeout; then the process must not be allowed to exec. It may be called
// again.
func (p *Process) Bind(timeout time.Duration) error {
	for {
		n := p.direct.Load()
		if n >= binding {
			break
		}
		// An access of its own ensures that there is a last one.
		if p.direct.CompareAndSwap(n, n+1+binding) {
			p.leave()
			break
		}
	}
	expired := time.NewTimer(timeout)
	defer expired.Stop()
	select {
	case <-p.drained:
		return nil
	case <-expired.C:
		return fmt.Errorf("process %d: %w", p.pid, ErrExec)
	}
}

// QueriesMappings reports whether the kernel supports a query for one mapping of a process (PROCMAP_QUERY, Linux 6.11).
func QueriesMappings() bool {
	maps, err := openProc("/proc/self/maps", os.O_RDONLY)
	if err != nil {
		return false
	}
	defer maps.Close()
	_, err = queryMapping(int(maps.Fd()), 0)
	return err == nil || err == unix.ENOENT
}

// Bound reports whether all accesses use the address space.
func (p *Process) Bound() bool { return p.direct.Load() >= binding }

// Left reports whether no process has the address space any more. It returns false if that is unknown.
func (p *Process) Left() bool { return p.dead.Load() || p.files.gone() }

// enter begins an access by number; it returns false if none may begin. leave ends it.
func (p *Process) enter() bool {
	if p.direct.Add(1) > binding {
		p.leave()
		return false
	}
	return true
}

func (p *Process) leave() {
	if p.direct.Add(-1) == binding {
		p.drainOnce.Do(func() { close(p.drained) })
	}
}

// ReadV implements Space.
func (p *Process) ReadV(dst [][]byte, addr uint64) error { return p.move(dst, addr, false) }

// WriteV implements Space.
func (p *Process) WriteV(src [][]byte, addr uint64) error { return p.move(src, addr, true) }

const (
	iovMax   = 1024 // IOV_MAX, the kernel's limit for one call
	iovStack = 16   // sufficient for most calls; larger vectors come from iovPool
)

var iovPool = sync.Pool{New: func() any { return new([iovMax]unix.Iovec) }}

// small is the size in bytes up to which access by file is as fast as access by number, if the kernel supports the
// query for one mapping. It is a variable for tests.
var small uint64 = 8 << 10

func (p *Process) move(bufs [][]byte, addr uint64, write bool) error {
	if p.dead.Load() {
		return ErrFault
	}
	if err := p.copies.begin(); err != nil {
		return err
	}
	defer p.copies.end()
	byNumber := p.trusting || !write
	if total(bufs) <= small && !p.files.noQuery.Load() || !byNumber || !p.enter() {
		return p.files.move(bufs, addr, write)
	}
	err := moveVectors(p, nil, bufs, addr, write)
	p.leave()
	switch {
	case err == unix.ESRCH && p.Alive(), errors.Is(err, ErrAccess):
		// The main thread of the process has ended, or the process has revoked the permission (Yama).
		if err := p.Bind(0); err != nil && !errors.Is(err, ErrExec) {
			return err
		}
		return p.files.move(bufs, addr, write)
	case err == unix.ESRCH, err == nil && !write && !p.trusting && (!p.Alive() || p.files.gone()):
		// It may be the memory of another process.
		return ErrFault
	}
	return err
}

// moveVectors transfers all of bufs, by process number or by files.
func moveVectors(p *Process, s *Files, bufs [][]byte, addr uint64, write bool) error {
	if len(bufs) <= iovStack {
		var iov [iovStack]unix.Iovec
		return moveBy(p, s, iov[:], bufs, addr, write)
	}
	iov := iovPool.Get().(*[iovMax]unix.Iovec)
	err := moveBy(p, s, iov[:], bufs, addr, write)
	clear(iov[:min(len(bufs), iovMax)])
	iovPool.Put(iov)
	return err
}

// moveBy makes as many calls as bufs requires, with at most len(iov) buffers each.
func moveBy(p *Process, s *Files, iov []unix.Iovec, bufs [][]byte, addr uint64, write bool) (err error) {
	for len(bufs) > 0 {
		n, size := 0, 0
		for len(bufs) > 0 && n < len(iov) {
			if b := bufs[0]; len(b) > 0 {
				iov[n].Base = &b[0]
				iov[n].SetLen(len(b))
				n++
				size += len(b)
			}
			bufs = bufs[1:]
		}
		if n == 0 {
			break
		}
		if s != nil {
			err = s.transfer(iov[:n], addr, size, write)
		} else {
			err = p.transfer(iov[:n], addr, size, write)
		}
		if err != nil {
			return err
		}
		addr += uint64(size)
	}
	return nil
}

// transfer returns ESRCH unchanged.
func (p *Process) transfer(iov []unix.Iovec, addr uint64, size int, write bool) error {
	n, err := p.vm(iov, addr, size, write)
	switch {
	case err == nil && n == size:
		return nil
	case err == nil, err == unix.EFAULT: // nil: part of the range is not mapped
		return ErrFault
	case err == unix.EPERM:
		return ErrAccess
	}
	return err
}

func (p *Process) vm(iov []unix.Iovec, addr uint64, size int, write bool) (int, error) {
	remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: size}}
	if write {
		return unix.ProcessVMWritev(p.pid, iov, remote[:], 0)
	}
	return unix.ProcessVMReadv(p.pid, iov, remote[:], 0)
}

// Check implements Space with the mappings of the address space.
func (p *Process) Check(addr, length uint64, write bool) error {
	if p.dead.Load() {
		return ErrFault
	}
	if err := p.copies.begin(); err != nil { // the process may block readers of its mappings, too
		return err
	}
	defer p.copies.end()
	return p.files.Check(addr, length, write)
}

// Exact returns the same memory for use within one call: its accesses use the address space from the start. Regions
// created from it belong to the Process.
func (p *Process) Exact() Space { return exact{p} }

type exact struct{ p *Process }

func (e exact) Check(addr, length uint64, write bool) error { return e.p.Check(addr, length, write) }
func (e exact) ReadV(dst [][]byte, addr uint64) error       { return e.move(dst, addr, false) }
func (e exact) WriteV(src [][]byte, addr uint64) error      { return e.move(src, addr, true) }

func (e exact) move(bufs [][]byte, addr uint64, write bool) error {
	if e.p.dead.Load() {
		return ErrFault
	}
	if err := e.p.copies.begin(); err != nil {
		return err
	}
	defer e.p.copies.end()
	return e.p.files.move(bufs, addr, write)
}

// Lasting implements lasting.
func (e exact) Lasting() Space { return e.p }
