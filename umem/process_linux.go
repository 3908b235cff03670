package umem

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrAccess: the kernel does not let this process look into the other one. That takes the same user, or
// CAP_SYS_PTRACE, and a Yama ptrace_scope that allows it (ptrace(2), "Ptrace access mode checking").
var ErrAccess = fmt.Errorf("may not access the process's memory (another user, not dumpable, or kernel.yama.ptrace_scope): %w", unix.EPERM)

// Process is the memory of another process, by process_vm_readv(2) and process_vm_writev(2). Page protections
// hold as for the process itself. It is safe for concurrent use.
//
// The process is watched through a pidfd: once it has exited, every access is ErrFault, so that another process
// which gets the same number is not touched. While it lives, so must its main thread, by whose id it is accessed.
type Process struct {
	pid    int
	by     *procMem // not nil: another way in
	pidfd  *os.File
	conn   syscall.RawConn // of pidfd
	dead   atomic.Bool     // exited, or closed
	exited chan struct{}
	once   sync.Once // closes exited
}

// OpenProcess opens the memory of a process by its process id (a thread group leader's, not another thread's).
// The caller sees to it that the process that it means still exists, for example by holding its trapped system
// call. It may sleep. ErrAccess if the kernel forbids it, ESRCH if there is no such process.
func OpenProcess(pid int) (*Process, error) {
	return openProcess(pid, nil)
}

// OpenProcessBy opens the memory of a process where the kernel denies it to OpenProcess, with the help of somebody
// who may open /proc/PID/mem (proc_pid_mem(5)), such as an ancestor of the process under Yama. open returns that file,
// and is called again after the process has executed another program. Page protections do not hold for the file, so
// that each access looks up the mappings first; this takes some ten times as long. It may sleep.
func OpenProcessBy(pid int, open func() (*os.File, error)) (*Process, error) {
	return openProcess(pid, &procMem{pid: pid, open: open})
}

func openProcess(pid int, by *procMem) (*Process, error) {
	fail := func(err error) (*Process, error) {
		return nil, fmt.Errorf("open memory of process %d: %w", pid, err)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fail(err)
	}
	p := &Process{pid: pid, by: by, pidfd: os.NewFile(uintptr(fd), "pidfd"), exited: make(chan struct{})}
	if p.conn, err = p.pidfd.SyscallConn(); err != nil {
		p.pidfd.Close()
		return fail(err)
	}
	if by != nil {
		if _, err := by.file(nil); err != nil {
			p.pidfd.Close()
			return fail(err)
		}
		go p.watch()
		return p, nil
	}
	// The kernel checks the permission before the address, so that any address will do.
	if err := p.ReadV([][]byte{make([]byte, 1)}, 0); errors.Is(err, ErrAccess) {
		p.pidfd.Close()
		return fail(err)
	}
	go p.watch()
	return p, nil
}

// watch sleeps in the poller until the process exits or Close.
func (p *Process) watch() {
	_ = p.conn.Read(func(fd uintptr) bool { return exited(int(fd)) })
	p.MarkDead()
}

// exited reports whether the process of a pidfd is gone: then the pidfd is readable.
func exited(pidfd int) bool {
	pfd := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(pfd, 0)
	return err == nil && n > 0
}

// PID is the process's id.
func (p *Process) PID() int { return p.pid }

// Exited is closed when the process has exited, or is to be treated so (MarkDead, Close).
func (p *Process) Exited() <-chan struct{} { return p.exited }

// MarkDead ends every access from now on, for an owner that learns of the process's end earlier than the pidfd
// tells.
func (p *Process) MarkDead() {
	p.once.Do(func() {
		p.dead.Store(true)
		close(p.exited)
	})
}

// Close ends the watch and every access from now on.
func (p *Process) Close() error {
	p.MarkDead()
	p.by.close()
	return p.pidfd.Close()
}

// ReadV implements Space.
func (p *Process) ReadV(dst [][]byte, addr uint64) error { return p.move(dst, addr, false) }

// WriteV implements Space.
func (p *Process) WriteV(src [][]byte, addr uint64) error { return p.move(src, addr, true) }

const (
	iovMax   = 1024 // IOV_MAX, the kernel's limit for one call
	iovStack = 16   // what most calls need; more come from iovPool
)

var iovPool = sync.Pool{New: func() any { return new([iovMax]unix.Iovec) }}

func (p *Process) move(bufs [][]byte, addr uint64, write bool) error {
	if p.by != nil {
		return p.moveByMem(bufs, addr, write)
	}
	if len(bufs) <= iovStack {
		var iov [iovStack]unix.Iovec
		return p.moveBy(iov[:], bufs, addr, write)
	}
	iov := iovPool.Get().(*[iovMax]unix.Iovec)
	err := p.moveBy(iov[:], bufs, addr, write)
	clear(iov[:min(len(bufs), iovMax)])
	iovPool.Put(iov)
	return err
}

// moveBy makes as many calls as bufs needs with at most len(iov) buffers each.
func (p *Process) moveBy(iov []unix.Iovec, bufs [][]byte, addr uint64, write bool) error {
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
		if err := p.transfer(iov[:n], addr, size, write); err != nil {
			return err
		}
		addr += uint64(size)
	}
	return nil
}

func (p *Process) transfer(iov []unix.Iovec, addr uint64, size int, write bool) (err error) {
	if p.dead.Load() {
		return ErrFault
	}
	remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: size}}
	var n int
	if write {
		n, err = unix.ProcessVMWritev(p.pid, iov, remote[:], 0)
	} else {
		n, err = unix.ProcessVMReadv(p.pid, iov, remote[:], 0)
	}
	switch {
	case err == nil && n == size:
		return nil
	case err == nil, err == unix.EFAULT, err == unix.ESRCH: // nil: part of the range is not there
		return ErrFault
	case err == unix.EPERM:
		return ErrAccess
	}
	return err
}

// Check implements Space, by /proc/PID/maps.
func (p *Process) Check(addr, length uint64, write bool) error {
	if p.dead.Load() {
		return ErrFault
	}
	if err := CheckProcess(p.pid, addr, length, write); err != nil {
		return err
	}
	if length > 0 && !p.alive() {
		return ErrFault
	}
	return nil
}

// alive asks the pidfd: what was opened by number until now was then opened of this process.
func (p *Process) alive() bool {
	alive := false
	err := p.conn.Control(func(fd uintptr) { alive = !exited(int(fd)) })
	return err == nil && alive && !p.dead.Load()
}
