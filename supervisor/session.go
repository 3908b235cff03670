package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/umem"
)

// SessionInfo describes a program that is handed over.
type SessionInfo struct {
	// LauncherPID is the process that called Start.
	LauncherPID int
	// UID is the user id of the launcher, as the kernel knows it.
	UID int
	// Account is the user who is charged.
	Account quota.ID
	// Pidfd refers to the process LauncherPID, so that the number is known to be still its own; nil: the number is all
	// that is known. It is the caller's to close, after the session has ended.
	Pidfd *os.File
	// Args is the program's argument vector, for people to read.
	Args []string
	// Helper reaches the program where this process may not; nil: none.
	Helper Helper
	// Trace, if not nil, gets a line for each call of the program that is answered here, doorbells excepted: the thread,
	// the call with its arguments, the result and the time that the answer took, as strace(1) has them. It is called on
	// the threads that answer, before the program has the answer, and must not sleep.
	Trace func(line string)
	// Notice, if not nil, shows the user of the program a line of text. It may sleep.
	Notice func(text string) error
}

// Session is one program with its descendants, under supervision.
type Session struct {
	sup      *Supervisor
	info     SessionInfo
	name     string // the names of its queue files begin with it
	user     *quota.User
	tree     *userTree
	log      *slog.Logger // with the user's number
	listener *os.File
	// not nil: this process may access the memory of those processes only that allow it (Tracer); it is asked for the
	// others
	helper   Helper
	asksOnly bool    // it is asked for all
	fd       int     // of listener
	numbers  numbers // that command files get
	done     chan struct{}

	canSync bool        // the kernel has SYNC_WAKE_UP
	sync    atomic.Bool // and it is on

	turn    turn
	intake  intake
	workers sync.WaitGroup
	cache   [cacheSize]atomic.Pointer[descriptor]

	entered atomic.Bool // a working directory of the programs may be virtual

	opening sync.Mutex // serialises the choice of descriptor numbers
	execs   execs

	//verbena:program the processes of one session: what is read of a new one is an address of the kernel's
	mu        sync.Mutex
	processes map[int]*process // by number

	warned atomic.Bool
	limits sync.Map // the errnos that were logged

	faults [ib.NumLibraryFaults]atomic.Int32 // states of the notices of faults of the library
}

// Attach takes up a program, by the listener that Launch.Handover got, possibly in another process; it is the
// session's from then on, unless there is an error. When Attach returns, calls are being answered. It may sleep.
func (s *Supervisor) Attach(listener *os.File, info SessionInfo) (_ *Session, err error) {
	fail := func(cause error) (*Session, error) {
		return nil, fmt.Errorf("attach process %d: %w", info.LauncherPID, cause)
	}
	limit, err := hardLimitOf(info.LauncherPID)
	if err != nil {
		return fail(err)
	}
	id, err := identify(info.LauncherPID)
	if err != nil {
		return fail(err)
	}
	// From here on a thread may wait for the launcher's memory, which counts as one of the user's.
	user := s.cfg.Quota.Account(info.Account)
	if err := sessionCharges.take(user); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			sessionCharges.give(user)
		}
	}()
	// Access that is denied to the launcher's memory will be denied to the program's.
	var helper Helper
	if s.cfg.AskHelper || directAccess(info.LauncherPID) != nil {
		if helper = info.Helper; helper == nil || id.uids.effective != os.Geteuid() || isOverflow(id.uids.effective) ||
			ptraceScope() > "1" {
			return fail(explainAccess(ptraceScope()))
		}
	}
	if what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", listener.Fd())); err != nil ||
		what != "anon_inode:seccomp notify" {
		return fail(fmt.Errorf("the descriptor is no seccomp listener: %w", unix.EINVAL))
	}
	t := &Session{
		sup:       s,
		info:      info,
		user:      user,
		log:       s.cfg.Log.With("uid", info.UID),
		listener:  listener,
		helper:    helper,
		asksOnly:  s.cfg.AskHelper,
		fd:        int(listener.Fd()),
		numbers:   numbersFor(limit),
		done:      make(chan struct{}),
		processes: make(map[int]*process),
	}
	if info.Pidfd != nil && !runs(info.Pidfd) { // the number may be another's by now
		return fail(fmt.Errorf("the launcher has ended: %w", unix.ESRCH))
	}
	// It may wait for a directory that another program of the user keeps locked. The session is charged already.
	t.tree, err = s.trees.enter(user.ID())
	defer func() {
		if err != nil {
			s.trees.leave(t.tree)
		}
	}()
	if err != nil {
		return fail(s.explainFull(err))
	}
	t.name = filepath.Join(s.cfg.Dir, "run", fmt.Sprintf("%d-%d", s.sessionCount.Add(1), info.LauncherPID))
	switch err := setSyncWakeUp(t.fd, true); {
	case err == nil:
		t.canSync = true
		t.sync.Store(true)
	case !errors.Is(err, unix.EINVAL):
		return fail(fmt.Errorf("the descriptor is no seccomp listener: %w", err))
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fail(fmt.Errorf("the service is ending: %w", unix.ENODEV))
	}
	s.sessions[t] = struct{}{}
	s.mu.Unlock()
	t.turn.init(func() { t.workers.Go(newWorker(t).run) }, t.user)
	go t.finish()
	return t, nil
}

// sessionDescriptors is what a session costs the service: the listener.
const sessionDescriptors = 1

// sessionCharges counts the session, with its first worker.
var sessionCharges = charges{{quota.Sessions, 1}, {quota.Workers, 1}, {quota.Descriptors, sessionDescriptors}}

// charges are what a user is charged at once.
type charges []struct {
	kind quota.Kind
	n    uint64
}

// take charges all or nothing, and give ends that.
func (list charges) take(u *quota.User) error {
	for i, c := range list {
		if err := u.Take(c.kind, c.n); err != nil {
			list[:i].give(u)
			return err
		}
	}
	return nil
}

func (list charges) give(u *quota.User) {
	for _, c := range list {
		u.Give(c.kind, c.n)
	}
}

// runs reports whether the process of a pidfd exists.
func runs(pidfd *os.File) bool {
	conn, err := pidfd.SyscallConn()
	return err == nil && (&process{conn: conn}).alive()
}

// maxCopies bounds how many threads can be held up by the memory of one user's programs, maxAllCopies by that of all
// users' beyond the first few of each.
const (
	maxCopies    = 64
	maxAllCopies = 2048
)

// Copies returns the bound that a user's programs have in common.
func (s *Supervisor) Copies(u *quota.User) *umem.Copies {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.copies[u]
	if c == nil {
		c = umem.NewCopies(maxCopies, s.allCopies)
		s.copies[u] = c
	}
	return c
}

// Done returns a channel that is closed when no process of the session is left, or the Supervisor was closed, and
// everything that the session had is gone.
func (t *Session) Done() <-chan struct{} { return t.done }

// Name returns the name of the session, which no other on this machine has: a path, at which there is nothing. The
// names of the queue files of its programs (memfd_create(2)) begin with it.
func (t *Session) Name() string { return t.name }

// syncWakeUp turns the kernel's way to wake on or off. Several workers may differ; that costs time, nothing else.
func (t *Session) syncWakeUp(on bool) {
	if t.canSync && t.sync.Load() != on {
		t.sync.Store(on)
		_ = setSyncWakeUp(t.fd, on)
	}
}

// finish waits for the end and cleans up.
//
//verbena:allow close the listener was found to be one, whose close does not wait
func (t *Session) finish() {
	t.workers.Wait()
	t.turn.ended()
	s := t.sup
	s.closeFiles(nil, func(f *openFile) bool { return f.session == t })
	t.mu.Lock()
	for _, p := range t.processes {
		p.closeLocked()
	}
	clear(t.processes)
	t.mu.Unlock()
	t.listener.Close()
	s.trees.leave(t.tree)
	sessionCharges.give(t.user)
	s.mu.Lock()
	delete(s.sessions, t)
	s.mu.Unlock()
	close(t.done)
}

// explainAccess says why a program's memory cannot be reached, and what to do.
func explainAccess(scope string) error {
	if scope != "0" {
		return fmt.Errorf("%w; kernel.yama.ptrace_scope is %s: set it to 1 or 0 (sysctl), or run the service as root or with CAP_SYS_PTRACE",
			umem.ErrAccess, scope)
	}
	return fmt.Errorf("%w; run the service as the same user, or as root", umem.ErrAccess)
}

// hardLimitOf reads the hard limit on a process's descriptors, which needs no privilege (proc_pid_limits(5)).
func hardLimitOf(pid int) (uint64, error) {
	f, err := procfile.Open("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	defer f.Close()
	return hardLimitIn(f)
}

// hardLimitIn reads it from the text of proc_pid_limits(5).
func hardLimitIn(limits io.Reader) (uint64, error) {
	for lines := bufio.NewScanner(limits); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), "Max open files")
		if !ok {
			continue
		}
		v := strings.Fields(rest) // soft, hard, unit
		if len(v) < 2 {
			break
		}
		if v[1] == "unlimited" {
			return umem.Unlimited, nil
		}
		return strconv.ParseUint(v[1], 10, 64)
	}
	return 0, errors.New("read the limit of open files: /proc/PID/limits has none")
}

// warnOfLimit logs that a program has reached a limit, once for each errno: the errno alone does not say which limit it
// was. A refusal of the ledger's is logged by that.
func (t *Session) warnOfLimit(err error) {
	e := errno(err)
	var refusal *quota.Error
	switch {
	case e != unix.ENOMEM && e != unix.EMFILE && e != unix.ENFILE, errors.As(err, &refusal):
		return
	}
	if _, said := t.limits.LoadOrStore(e, true); !said {
		t.log.Warn("a limit is reached", "args", t.info.Args, "err", err)
	}
}

// warn logs what goes wrong for the program as a whole, once.
func (t *Session) warn(what func() error) {
	if t.warned.CompareAndSwap(false, true) {
		t.log.Warn("session", "args", t.info.Args, "err", what())
	}
}
