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

// ErrAccess reports that the kernel does not permit this process to access the memory of the other process. The access
// requires the same user, or CAP_SYS_PTRACE, and a Yama ptrace_scope that allows it (ptrace(2), "Ptrace access mode
// checking").
var ErrAccess = fmt.Errorf("may not access the process's memory (another user, not dumpable, or "+
	"kernel.yama.ptrace_scope): %w", unix.EPERM)

// ErrExec reports that an access in progress did not end within the time limit of Bind.
var ErrExec = fmt.Errorf("an access to the process's memory has not ended: %w", unix.EAGAIN)

// Process is the address space that a process had when the Process was opened. All methods are safe for concurrent use.
//
// There are two methods of access to another process's memory. Access by process number uses process_vm_readv(2).
// Access by number reaches the memory of any program that the process executes later. After the end of the process it
// reaches any process with the same number. Access by file uses /proc/PID/mem (proc_pid_mem(5)). Access by file reaches
// only one address space. Access by file is faster for up to a few kilobytes, and takes up to twice as long for more
// data. A Process uses access by number if this is much faster and harmless. Large reads are harmless, because the data
// are discarded if the process has ended in the meantime. Large writes are harmless if every process that may have the
// number belongs to the same user (ProcessConfig.Trusting). Bind ends access by number. Bind must be called before the
// process executes another program:
//
//	direct --Bind--> binding --last access by number ended--> bound
//	   |                                                        |
//	   +------------------- the process has exited, or Close ---+--> dead
//
// In state bound, an access reaches the address space that existed at the creation of the Process. If no process has
// this address space any more, the access returns ErrFault. The Process is bound from the start if the kernel does not
// permit access by number. The reason is Yama, or that the main thread has ended.
//
// The Process watches the process through a pidfd. After the exit of the process, every access returns ErrFault.
type Process struct {
	pid     int
	pidfd   *os.File
	conn    syscall.RawConn // connection of pidfd
	pidfdFD int
	files   *Files
	copies  *Copies

	trusting bool

	// number of accesses by number in progress, plus the constant binding when no new ones may begin
	direct    atomic.Int64
	drained   chan struct{} // closed when binding is set and the last access has ended
	drainOnce sync.Once     // closes drained

	dead   atomic.Bool // exited, or closed
	exited chan struct{}
	once   sync.Once // closes exited
}

const bindingFlag = 1 << 62

// ProcessConfig holds the parameters of a Process. The new Process owns the files, even if NewProcess fails.
type ProcessConfig struct {
	PID   int      // thread group id of the process
	Pidfd *os.File // non-blocking pidfd_open(2) descriptor of the process
	// Mem and Maps are /proc/TID/mem and /proc/TID/maps of a thread of the process. Both must have been opened before
	// the thread could exec. Another process with more rights than this process may have opened Mem.
	Mem, Maps *os.File
	// Bound disables access by number from the start.
	Bound bool
	// Trusting allows writes by number. Trusting means that this process may write to every process that could receive
	// the number later. Trusting must not be set in a process that may access memory of other users.
	Trusting bool
	// Copies limits concurrent accesses. nil means no limit.
	Copies *Copies
}

// OpenProcess opens the current memory of a process. pid is the process id, which is the id of the thread group leader.
// The caller must ensure that the process exists and does not exec during the call. For example, the caller can hold a
// trapped system call of the process. OpenProcess returns ErrAccess if the kernel does not permit the access, and ESRCH
// if the process does not exist. OpenProcess may sleep.
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

// openProc opens a file of a process. openProc does not follow symbolic links, because the seccomp filter of a confined
// process forbids them.
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

// NewProcess creates a Process from open files. NewProcess returns EINVAL if Mem is not a /proc/PID/mem file.
// NewProcess may sleep.
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
		// space. No process can map blocking memory there.
		var b [1]byte
		_, err := p.transferVM([]unix.Iovec{{Base: &b[0], Len: 1}}, 1<<63, 1, false)
		cfg.Bound = err == unix.EPERM || err == unix.ESRCH
	}
	if cfg.Bound {
		p.direct.Store(bindingFlag)
		p.drainOnce.Do(func() { close(p.drained) })
	}
	go p.watchExit()
	return p, nil
}

// watchExit waits in the poller until the process exits or Close is called.
func (p *Process) watchExit() {
	_ = p.conn.Read(func(fd uintptr) bool { return hasExited(int(fd)) })
	p.MarkDead()
}

// hasExited reports whether the process of a pidfd has exited. The pidfd is then readable.
func hasExited(pidfd int) bool {
	pfd := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(pfd, 0)
	return err == nil && n > 0
}

// PID returns the process id.
func (p *Process) PID() int { return p.pid }

// Exited returns a channel that is closed when the process has exited, or is treated as exited (MarkDead, Close).
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Alive asks the kernel whether the process exists. If the process exists, its id has not been reused.
func (p *Process) Alive() bool {
	alive := !hasExited(p.pidfdFD)
	return alive && !p.dead.Load() // dead is set before the pidfd is closed
}

// Pidfd calls f with the pidfd of the process. The pidfd remains open until f returns.
func (p *Process) Pidfd(f func(fd int)) error { return p.conn.Control(func(fd uintptr) { f(int(fd)) }) }

// MarkDead makes all later accesses fail. MarkDead is for an owner that detects the exit of the process before the
// pidfd reports the exit.
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

// Bind restricts the Process to its present address space, even after an exec of the process. Bind returns nil when no
// access by number is in progress. After the timeout it returns ErrExec, and the process must not be allowed to exec.
// Bind may be called again.
func (p *Process) Bind(timeout time.Duration) error {
	for {
		n := p.direct.Load()
		if n >= bindingFlag {
			break
		}
		// Bind counts as an access itself, so that some access is the last one.
		if p.direct.CompareAndSwap(n, n+1+bindingFlag) {
			p.endAccess()
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
func (p *Process) Bound() bool { return p.direct.Load() >= bindingFlag }

// SpaceGone reports whether no process has the address space any more. SpaceGone returns false if this is unknown.
func (p *Process) SpaceGone() bool { return p.dead.Load() || p.files.isGone() }

// FoundGone reports whether an access has found that no process has the address space any more. FoundGone may not
// sleep.
func (p *Process) FoundGone() bool { return p.dead.Load() || p.files.foundGone.Load() }

// beginAccess begins an access by number. beginAccess returns false if no access may begin. endAccess ends the access.
func (p *Process) beginAccess() bool {
	if p.direct.Add(1) > bindingFlag {
		p.endAccess()
		return false
	}
	return true
}

func (p *Process) endAccess() {
	if p.direct.Add(-1) == bindingFlag {
		p.drainOnce.Do(func() { close(p.drained) })
	}
}

// ReadV implements Space.
func (p *Process) ReadV(dst [][]byte, addr uint64) error { return p.moveData(dst, addr, false) }

// WriteV implements Space.
func (p *Process) WriteV(src [][]byte, addr uint64) error { return p.moveData(src, addr, true) }

const (
	iovMax   = 1024 // IOV_MAX, the kernel's limit for one call
	iovStack = 16   // sufficient for most calls; larger vectors come from iovPool
)

var iovPool = sync.Pool{New: func() any { return new([iovMax]unix.Iovec) }}

// maxFileAccess is the size in bytes up to which access by file is as fast as access by number. The size applies if the
// kernel supports the query for one mapping. Tests change this variable.
var maxFileAccess uint64 = 8 << 10

func (p *Process) moveData(bufs [][]byte, addr uint64, write bool) error {
	if p.dead.Load() {
		return ErrFault
	}
	if err := p.copies.beginAccess(); err != nil {
		return err
	}
	defer p.copies.endAccess()
	byNumber := p.trusting || !write
	if totalLen(bufs) <= maxFileAccess && !p.files.noQuery.Load() || !byNumber || !p.beginAccess() {
		return p.files.moveData(bufs, addr, write)
	}
	err := moveVectors(p, nil, bufs, addr, write)
	p.endAccess()
	switch {
	case err == unix.ESRCH && p.Alive(), errors.Is(err, ErrAccess):
		// The main thread of the process has ended, or the process has revoked the permission (Yama).
		if err := p.Bind(0); err != nil && !errors.Is(err, ErrExec) {
			return err
		}
		return p.files.moveData(bufs, addr, write)
	case err == unix.ESRCH, err == nil && !write && !p.trusting && (!p.Alive() || p.files.isGone()):
		// The number may now belong to another process.
		return ErrFault
	}
	return err
}

// moveVectors transfers all of bufs, either by process number or by files.
func moveVectors(p *Process, s *Files, bufs [][]byte, addr uint64, write bool) error {
	if len(bufs) <= iovStack {
		var iov [iovStack]unix.Iovec
		return moveInCalls(p, s, iov[:], bufs, addr, write)
	}
	iov := iovPool.Get().(*[iovMax]unix.Iovec)
	err := moveInCalls(p, s, iov[:], bufs, addr, write)
	clear(iov[:min(len(bufs), iovMax)])
	iovPool.Put(iov)
	return err
}

// moveInCalls makes as many calls as bufs requires. Each call has at most len(iov) buffers.
func moveInCalls(p *Process, s *Files, iov []unix.Iovec, bufs [][]byte, addr uint64, write bool) (err error) {
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
	n, err := p.transferVM(iov, addr, size, write)
	switch {
	case err == nil && n == size:
		return nil
	case err == nil, err == unix.EFAULT: // nil: a part of the range is not mapped
		return ErrFault
	case err == unix.EPERM:
		return ErrAccess
	}
	return err
}

func (p *Process) transferVM(iov []unix.Iovec, addr uint64, size int, write bool) (int, error) {
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
	if err := p.copies.beginAccess(); err != nil { // the process may also block readers of its mappings
		return err
	}
	defer p.copies.endAccess()
	return p.files.Check(addr, length, write)
}

// Exact returns the same memory for use within one call. From the start, all accesses through the returned Space are
// accesses by file, and reach only the address space. Regions created from the returned Space belong to the Process.
func (p *Process) Exact() Space { return exactSpace{p} }

type exactSpace struct{ p *Process }

func (e exactSpace) Check(addr, length uint64, write bool) error {
	return e.p.Check(addr, length, write)
}
func (e exactSpace) ReadV(dst [][]byte, addr uint64) error  { return e.moveData(dst, addr, false) }
func (e exactSpace) WriteV(src [][]byte, addr uint64) error { return e.moveData(src, addr, true) }

func (e exactSpace) moveData(bufs [][]byte, addr uint64, write bool) error {
	if e.p.dead.Load() {
		return ErrFault
	}
	if err := e.p.copies.beginAccess(); err != nil {
		return err
	}
	defer e.p.copies.endAccess()
	return e.p.files.moveData(bufs, addr, write)
}

// Lasting implements lasting.
func (e exactSpace) Lasting() Space { return e.p }
