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

// A trapped thread can be killed at any moment, and its number, or that of its process, belong to another a moment
// later. A number only finds things: afterwards the worker asks whether the thread is still trapped (prove). If so, it
// has been trapped all the time, and the number was its own. Only objects that stay the process's own are then used: a
// pidfd, a directory or a file in /proc.

// errGone: the thread of the call has been killed. Nothing is done for it any more, and it gets no answer.
var errGone = fmt.Errorf("the caller has gone: %w", syscall.EFAULT)

// prove returns nil if the thread of the present call is still trapped, so that everything found by its number until
// now is its own; else errGone. (seccomp_unotify(2), SECCOMP_IOCTL_NOTIF_ID_VALID)
func (w *worker) prove() error {
	w.pause("prove")
	if stillTrapped(w.session.fd, w.n.id) != nil {
		return errGone
	}
	return nil
}

// goneOr returns errGone if the caller has gone, which explains the error, else err.
func (w *worker) goneOr(err error) error {
	if gone := w.prove(); gone != nil {
		return gone
	}
	return err
}

// pause lets a test interfere at a named point.
func (w *worker) pause(point string) {
	if f := w.session.sup.cfg.pause; f != nil {
		f(point, w.n.tid)
	}
}

// procThread is the trapped thread by its directory in /proc, which never becomes another thread's.
type procThread struct {
	dir int // O_PATH
	id  *identity
}

// look opens the caller's directory and reads its identity. The result must be closed.
func (w *worker) look() (*procThread, error) {
	w.pause("look")
	dir, err := openProc(int(w.n.tid))
	switch {
	case err == unix.ENOENT, err == unix.ESRCH:
		return nil, errGone
	case err != nil:
		return nil, fmt.Errorf("look up thread %d: %w", w.n.tid, err)
	}
	t := &procThread{dir: dir}
	t.id, err = identifyAt(dir)
	if gone := w.prove(); gone != nil {
		err = gone
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *procThread) close() { unix.Close(t.dir) }

// principal returns whom the thread's process is charged to, and whether it manages the service. The caller proves
// afterwards that the thread is still there.
func (s *Supervisor) principal(th *procThread) (principal.Principal, error) {
	return s.cfg.Authority.Of(th.dir, th.id.uids.real, th.id.uids.effective)
}

func openProc(tid int) (int, error) {
	return unix.Open("/proc/"+strconv.Itoa(tid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// identifyAt reads who a thread is, by its directory in /proc.
func identifyAt(dir int) (*identity, error) {
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
	// The creator of a user namespace has all capabilities in it, and none here.
	if (id.fileCapability || id.bindCapability || id.rawCapability) && !sameFileAt(dir, "ns/user", "/proc/self/ns/user") {
		id.fileCapability, id.bindCapability, id.rawCapability = false, false, false
	}
	return id, nil
}

// openAt opens a file of a directory in /proc, never a link to another one.
func openAt(dir int, name string, how int) (*os.File, error) {
	fd, err := unix.Openat(dir, name, how|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// sameFileAt reports whether two links lead to the same file, such as a namespace.
func sameFileAt(dir int, name, own string) bool {
	var a, b unix.Stat_t
	return unix.Fstatat(dir, name, &a, 0) == nil && unix.Stat(own, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// elsewhere reports whether the thread has another root directory, or other mounts, than this process.
func (t *procThread) elsewhere() bool {
	return !sameFileAt(t.dir, "ns/mnt", "/proc/self/ns/mnt") || !sameFileAt(t.dir, "root", "/")
}

// process is a process that issues commands, or has opened a device file. Its address space comes and goes with what it
// executes.
type process struct {
	pid   int
	name  string
	pidfd *os.File
	conn  syscall.RawConn // of pidfd
	user  *quota.User     // to whom descriptors are charged
	acct  *umem.Account   // of all its address spaces

	// Under Session.mu.
	space  *umem.Process   // the present one; nil: not known
	former []*umem.Process // before that, which some process may still have
}

// Descriptors of the service that a process takes (a pidfd), and each of its address spaces (a pidfd and two files).
const (
	processDescriptors = 1
	spaceDescriptors   = 3
)

// alive reports whether the process exists: if so, its number has been its own until now.
func (p *process) alive() bool {
	alive := false
	err := p.conn.Control(func(fd uintptr) {
		pfd := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(pfd[:], 0)
			if err != unix.EINTR { // a signal that is not blocked, outside of workers
				alive = err == nil && n == 0
				return
			}
		}
	})
	return err == nil && alive
}

// has reports whether a thread is one of the process's.
func (p *process) has(tid uint32) bool {
	// Signal 0 is none. That it may not be sent is as good an answer as that it was.
	return unix.Tgkill(p.pid, int(tid), 0) != unix.ESRCH && p.alive()
}

// closeLocked ends all access. Session.mu is held.
func (p *process) closeLocked() {
	for _, s := range p.former {
		p.closeSpace(s)
	}
	if p.space != nil {
		p.closeSpace(p.space)
	}
	p.former, p.space = nil, nil
	p.pidfd.Close()
	p.user.Give(quota.Descriptors, processDescriptors)
}

func (p *process) closeSpace(s *umem.Process) {
	s.Close()
	p.user.Give(quota.Descriptors, spaceDescriptors)
}

// lockLimit returns the limit of the account.
func (t *Session) lockLimit(p *process) (uint64, error) {
	t.mu.Lock()
	s := p.space
	if n := len(p.former); s == nil && n > 0 {
		s = p.former[n-1]
	}
	t.mu.Unlock()
	if s == nil {
		return 0, umem.ErrLimit
	}
	return s.LockLimit()
}

// errForeign: the caller is not of the user who has opened the device file. (ib_safe_file_access)
var errForeign = fmt.Errorf("the device file was opened by another user: %w", syscall.EACCES)

// known is what has been found out about the present call.
type known struct {
	done  bool
	stale bool // the descriptor is not the device's any more, as it was remembered to be
	proc  *process
	space *umem.Process
	err   error
}

// caller finds the process of the present call and its address space, once in a call.
func (w *worker) caller() (*process, *umem.Process, error) {
	if k := &w.known; !k.done {
		k.done = true
		k.proc, k.space, k.err = w.findCaller()
		if k.err == nil && w.desc != nil && k.proc.user != w.desc.file.user {
			k.err = fmt.Errorf("user %v's process %d: %w", k.proc.user.ID(), k.proc.pid, errForeign)
			k.proc, k.space = nil, nil
		}
		if k.err != nil && !errors.Is(k.err, errGone) && !errors.Is(k.err, errForeign) {
			w.session.warn(func() error { return k.err })
		}
	}
	return w.known.proc, w.known.space, w.known.err
}

func (w *worker) findCaller() (*process, *umem.Process, error) {
	if d := w.desc; d != nil {
		// A remembered descriptor is good enough for a doorbell, and for nothing else.
		if i, err := inodeOf(w.n.tid, d.fd); err != nil || i != d.file.inode {
			w.known.stale = true
			return nil, nil, errGone
		}
		if p := d.process.Load(); p != nil && p.has(w.n.tid) {
			if s := w.session.spaceOf(p); s != nil {
				return p, s, w.prove()
			}
		}
	}
	t, err := w.look()
	if err != nil {
		return nil, nil, err
	}
	defer t.close()
	p, s, err := w.process(t)
	if err == nil && w.desc != nil && p.user == w.desc.file.user {
		w.desc.process.Store(p)
	}
	return p, s, err
}

func (t *Session) spaceOf(p *process) *umem.Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return p.space
}

// process returns the process that a thread belongs to, and the address space that it has, opening them if need be.
func (w *worker) process(th *procThread) (*process, *umem.Process, error) {
	t := w.session
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.processes[th.id.pid]
	if p == nil || !p.alive() {
		t.reapLocked()
		var err error
		if p, err = w.newProcessLocked(th); err != nil {
			return nil, nil, err
		}
		t.processes[th.id.pid] = p
	}
	if p.space == nil {
		s, err := w.openSpaceLocked(th, p)
		if err != nil {
			return nil, nil, err
		}
		p.space = s
	}
	w.pause("process")
	return p, p.space, w.prove()
}

// reapLocked forgets processes that have ended.
func (t *Session) reapLocked() {
	for pid, p := range t.processes {
		if !p.alive() {
			p.closeLocked()
			delete(t.processes, pid)
		}
	}
}

func (w *worker) newProcessLocked(th *procThread) (*process, error) {
	t := w.session
	who, err := t.sup.principal(th)
	if err != nil {
		return nil, w.goneOr(err)
	}
	user := t.sup.cfg.Quota.Account(who.Account)
	if err := user.Take(quota.Descriptors, processDescriptors); err != nil {
		return nil, err
	}
	fail := func(err error) (*process, error) {
		user.Give(quota.Descriptors, processDescriptors)
		return nil, fmt.Errorf("open process %d: %w", th.id.pid, err)
	}
	fd, err := unix.PidfdOpen(th.id.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fail(w.goneOr(err))
	}
	p := &process{pid: th.id.pid, name: th.id.name, pidfd: os.NewFile(uintptr(fd), "pidfd"), user: user}
	p.acct = umem.NewLimitedAccount(func() (uint64, error) { return t.lockLimit(p) })
	w.pause("pidfd")
	if p.conn, err = p.pidfd.SyscallConn(); err == nil {
		err = w.prove() // the thread's process still has its number
	}
	if err != nil {
		p.pidfd.Close()
		return fail(err)
	}
	return p, nil
}

// openSpaceLocked opens the address space that the process has now.
func (w *worker) openSpaceLocked(th *procThread, p *process) (*umem.Process, error) {
	t := w.session
	if err := p.user.Take(quota.Descriptors, spaceDescriptors); err != nil {
		return nil, err
	}
	s, err := w.openSpace(th, p, t.execs.pending(w.n.tid, p))
	if err != nil {
		p.user.Give(quota.Descriptors, spaceDescriptors)
		return nil, err
	}
	return s, nil
}

func (w *worker) openSpace(th *procThread, p *process, bound bool) (*umem.Process, error) {
	mem, maps, direct, err := w.openMemory(th)
	if err != nil {
		return nil, err
	}
	bound = bound || !direct
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		mem.Close()
		maps.Close()
		return nil, w.goneOr(err)
	}
	s, err := umem.NewProcess(umem.ProcessConfig{
		PID: p.pid, Pidfd: os.NewFile(uintptr(fd), "pidfd"), Mem: mem, Maps: maps, Bound: bound, Copies: w.session.sup.Copies(
			p.user),
		Trusting: !accessesOthers(),
	})
	if err != nil {
		return nil, err
	}
	if err := w.prove(); err != nil {
		s.Close()
		return nil, err
	}
	w.session.log.Debug("memory of a process opened", "pid", p.pid, "by", access(direct))
	return s, nil
}

// access says in the log which process has opened a program's memory.
func access(direct bool) string {
	if direct {
		return "service"
	}
	return "launcher"
}

// openMemory opens the memory that the caller has now; direct says that this process has done so itself.
func (w *worker) openMemory(th *procThread) (mem, maps *os.File, direct bool, err error) {
	w.pause("memory")
	err = unix.EACCES
	if !w.session.asksOnly {
		mem, err = openAt(th.dir, "mem", unix.O_RDWR)
		direct = err == nil
	}
	if w.session.helper != nil && errors.Is(err, unix.EACCES) {
		mem, err = w.session.openMem(int(w.n.tid))
	}
	if err == nil {
		if maps, err = openAt(th.dir, "maps", unix.O_RDONLY); err == nil {
			return mem, maps, direct, nil
		}
		mem.Close()
	}
	if err = w.goneOr(err); err == errGone {
		return nil, nil, false, err
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		err = explainAccess(ptraceScope())
	}
	return nil, nil, false, fmt.Errorf("open memory of process %d: %w", th.id.pid, err)
}

// memory returns the caller's memory for one answer, also if the caller ends meanwhile.
func (w *worker) memory() (*umem.Files, error) {
	th, err := w.look()
	if err != nil {
		return nil, err
	}
	defer th.close()
	mem, maps, _, err := w.openMemory(th)
	if err != nil {
		return nil, err
	}
	f, err := umem.NewFiles(mem, maps)
	if err != nil {
		mem.Close()
		maps.Close()
		return nil, err
	}
	if err := w.prove(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// write stores an answer in the caller's memory.
func (w *worker) write(addr uint64, b []byte) error {
	m, err := w.memory()
	if err != nil {
		return err
	}
	defer m.Close()
	w.pause("write")
	return m.WriteV([][]byte{b}, addr)
}
