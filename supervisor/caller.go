package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/umem"
)

// A trapped thread can be killed at any time. The kernel can then reuse its thread ID and the ID of its process.
// The worker therefore uses a thread ID only to find objects, and afterwards checks that the thread is still
// trapped (prove). A thread that is still trapped was trapped all the time, so the ID belonged to it. Later
// accesses use only objects that stay bound to the process: a pidfd, or a directory or file below /proc/TID.

// errCallerGone is the error for a call of a killed thread. Such a call has no effect and gets no answer.
var errCallerGone = fmt.Errorf("the caller was killed: %w", syscall.EFAULT)

// caller is the thread that makes a trapped call. The thread is blocked in the kernel until the answer.
type caller struct {
	session *Session
	n       notification
	trace   *callTrace // nil if the session is not traced
}

// checkTrapped returns nil if the thread of the current call is still trapped, which makes all objects found by its
// thread ID valid. Otherwise checkTrapped returns errCallerGone. (seccomp_unotify(2), SECCOMP_IOCTL_NOTIF_ID_VALID)
func (c *caller) checkTrapped() error {
	c.pauseForTest("prove")
	if checkStillTrapped(c.session.fd, c.n.id) != nil {
		return errCallerGone
	}
	return nil
}

// preferErrCallerGone returns errCallerGone if the caller was killed, which explains err; otherwise preferErrCallerGone
// returns err.
func (c *caller) preferErrCallerGone(err error) error {
	if gone := c.checkTrapped(); gone != nil {
		return gone
	}
	return err
}

// pauseForTest is a hook for tests, called at a named point.
func (c *caller) pauseForTest(point string) {
	if f := c.session.sup.cfg.pause; f != nil {
		f(point, c.n.tid)
	}
}

// procThread is the trapped thread, identified by its directory in /proc. That directory never refers to another
// thread.
type procThread struct {
	dir int // opened with O_PATH
	id  *identity
}

// lookUpThread opens the caller's directory in /proc and reads its identity. The caller of lookUpThread must close the
// result.
func (c *caller) lookUpThread() (*procThread, error) {
	c.pauseForTest("look")
	dir, err := openProcDir(int(c.n.tid))
	switch {
	case err == unix.ENOENT, err == unix.ESRCH:
		return nil, errCallerGone
	case err != nil:
		return nil, fmt.Errorf("look up thread %d: %w", c.n.tid, err)
	}
	t := &procThread{dir: dir}
	t.id, err = readIdentityAt(dir)
	if gone := c.checkTrapped(); gone != nil {
		err = gone
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *procThread) close() { unix.Close(t.dir) }

// principalOf returns the account charged for the thread's process, and whether it manages the service. The caller
// must prove afterwards that the thread is still trapped.
func (s *Supervisor) principalOf(th *procThread) (principal.Principal, error) {
	return s.cfg.Authority.PrincipalOf(th.dir, th.id.uids.real, th.id.uids.effective)
}

func openProcDir(tid int) (int, error) {
	return unix.Open("/proc/"+strconv.Itoa(tid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// readIdentityAt reads the identity of a thread from its directory in /proc.
func readIdentityAt(dir int) (*identity, error) {
	f, err := openAt(dir, "status", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	id, err := parseStatus(text)
	if err != nil {
		return nil, err
	}
	// The creator of a user namespace has all capabilities in that namespace, but none in the service's namespace.
	if (id.fileCapability || id.bindCapability || id.rawCapability) && !isSameFileAt(dir, "ns/user",
		"/proc/self/ns/user") {
		id.fileCapability, id.bindCapability, id.rawCapability = false, false, false
	}
	return id, nil
}

// openAt opens a file of a directory in /proc without following links.
func openAt(dir int, name string, how int) (*os.File, error) {
	fd, err := unix.Openat(dir, name, how|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// isSameFileAt reports whether two links refer to the same file, such as a namespace.
func isSameFileAt(dir int, name, own string) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(dir, name, &a, 0) == nil && unix.Stat(own, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// hasOtherRoot reports whether the thread's root directory or mounts differ from those of this process.
func (t *procThread) hasOtherRoot() bool {
	return !isSameFileAt(t.dir, "ns/mnt", "/proc/self/ns/mnt") || !isSameFileAt(t.dir, "root", "/")
}

// findOrOpenProcess returns the process of a thread and its address space. findOrOpenProcess opens them if necessary.
func (c *caller) findOrOpenProcess(th *procThread) (*process, *umem.Process, error) {
	t := &c.session.processes
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.all[th.id.pid]
	if p == nil || !p.isAlive() {
		t.removeEndedLocked()
		var err error
		if p, err = c.newProcessLocked(th); err != nil {
			return nil, nil, err
		}
		t.all[th.id.pid] = p
	}
	if p.space == nil {
		s, err := c.openAddressSpaceLocked(th, p)
		if err != nil {
			return nil, nil, err
		}
		p.space = s
	}
	c.pauseForTest("process")
	return p, p.space, c.checkTrapped()
}

func (c *caller) newProcessLocked(th *procThread) (*process, error) {
	t := c.session
	who, err := t.sup.principalOf(th)
	if err != nil {
		return nil, c.preferErrCallerGone(err)
	}
	user := t.sup.cfg.Quota.Account(who.Account)
	if err := user.Charge(quota.Descriptors, processDescriptors); err != nil {
		return nil, err
	}
	fail := func(err error) (*process, error) {
		user.Release(quota.Descriptors, processDescriptors)
		return nil, fmt.Errorf("open process %d: %w", th.id.pid, err)
	}
	fd, err := unix.PidfdOpen(th.id.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fail(c.preferErrCallerGone(err))
	}
	p := &process{pid: th.id.pid, name: th.id.name, pidfd: os.NewFile(uintptr(fd), "pidfd"), user: user}
	p.acct = umem.NewLimitedAccount(func() (uint64, error) { return t.processes.memlockLimit(p) })
	c.pauseForTest("pidfd")
	if p.conn, err = p.pidfd.SyscallConn(); err == nil {
		err = c.checkTrapped() // the thread ID still belongs to the thread's process
	}
	if err != nil {
		p.pidfd.Close()
		return fail(err)
	}
	return p, nil
}

// openAddressSpaceLocked opens the current address space of the process.
func (c *caller) openAddressSpaceLocked(th *procThread, p *process) (*umem.Process, error) {
	if err := p.user.Charge(quota.Descriptors, spaceDescriptors); err != nil {
		return nil, err
	}
	s, err := c.openAddressSpace(th, p, c.session.processes.execs.isExecPending(c.n.tid, p))
	if err != nil {
		p.user.Release(quota.Descriptors, spaceDescriptors)
		return nil, err
	}
	return s, nil
}

func (c *caller) openAddressSpace(th *procThread, p *process, bound bool) (*umem.Process, error) {
	mem, maps, direct, err := c.openMemory(th)
	if err != nil {
		return nil, err
	}
	bound = bound || !direct
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		mem.Close()
		maps.Close()
		return nil, c.preferErrCallerGone(err)
	}
	s, err := umem.NewProcess(umem.ProcessConfig{
		PID: p.pid, Pidfd: os.NewFile(uintptr(fd),
			"pidfd"), Mem: mem, Maps: maps, Bound: bound, Copies: c.session.sup.CopiesOf(
			p.user),
		Trusting: !canAccessOthers(),
	})
	if err != nil {
		return nil, err
	}
	if err := c.checkTrapped(); err != nil {
		s.Close()
		return nil, err
	}
	c.session.log.Debug("memory of a process opened", "pid", p.pid, "by", memoryAccessText(direct))
	return s, nil
}

// memoryAccessText returns the log text for the process that opened a program's memory.
func memoryAccessText(direct bool) string {
	if direct {
		return "service"
	}
	return "launcher"
}

// openMemory opens the caller's current memory. direct reports whether this process opened the memory without the
// helper.
func (c *caller) openMemory(th *procThread) (mem, maps *os.File, direct bool, err error) {
	c.pauseForTest("memory")
	err = unix.EACCES
	if !c.session.asksOnly {
		mem, err = openAt(th.dir, "mem", unix.O_RDWR)
		direct = err == nil
	}
	if c.session.helper != nil && errors.Is(err, unix.EACCES) {
		mem, err = c.session.openMem(int(c.n.tid))
	}
	if err == nil {
		if maps, err = openAt(th.dir, "maps", unix.O_RDONLY); err == nil {
			return mem, maps, direct, nil
		}
		mem.Close()
	}
	if err = c.preferErrCallerGone(err); err == errCallerGone {
		return nil, nil, false, err
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		err = explainAccess(ptraceScope())
	}
	return nil, nil, false, fmt.Errorf("open memory of process %d: %w", th.id.pid, err)
}

// openCallerMemory returns the caller's memory for one answer. The memory stays valid if the caller ends meanwhile.
func (c *caller) openCallerMemory() (*umem.Files, error) {
	th, err := c.lookUpThread()
	if err != nil {
		return nil, err
	}
	defer th.close()
	mem, maps, _, err := c.openMemory(th)
	if err != nil {
		return nil, err
	}
	f, err := umem.NewFiles(mem, maps)
	if err != nil {
		mem.Close()
		maps.Close()
		return nil, err
	}
	if err := c.checkTrapped(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readMemory reads from the caller's memory. n is less than len(b) if part of the range is not mapped. The caller must
// prove afterwards that the thread is still trapped.
func (c *caller) readMemory(addr uint64, b []byte) (n int, err error) {
	return c.session.readThreadMemory(int(c.n.tid), addr, b)
}

// writeMemory copies an answer to the caller's memory.
func (c *caller) writeMemory(addr uint64, b []byte) error {
	m, err := c.openCallerMemory()
	if err != nil {
		return err
	}
	defer m.Close()
	c.pauseForTest("write")
	return m.WriteV([][]byte{b}, addr)
}
