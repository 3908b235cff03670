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
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/umem"
)

// SessionInfo describes a program to attach.
type SessionInfo struct {
	// LauncherPID is the ID of the process that called Start.
	LauncherPID int
	// UID is the launcher's user ID, as reported by the kernel.
	UID int
	// Account is the user to charge.
	Account quota.ID
	// Pidfd refers to the process LauncherPID, and proves that its ID was not reused. If Pidfd is nil, only the ID
	// is known. The caller must close Pidfd after the session has ended.
	Pidfd *os.File
	// Args is the program's argument vector, for display.
	Args []string
	// Helper accesses the program if this process may not access it; nil if there is no helper.
	Helper Helper
	// If Trace is not nil, the answering threads call it with a line for each call of the program that the
	// supervisor answers, except doorbells. The line contains the thread, the call with its arguments, the result
	// and the time of the answer, in the style of strace(1). Trace is called before the program receives the
	// answer, and must not sleep.
	Trace func(line string)
	// Weak, if not nil, makes the devices of the program the least convenient that the specification permits.
	Weak *weak.Config
	// Checks is the set of the rules that the sanitizer checks. If it is not empty, doorbells are not native. Violation is
	// called for each violation by a process. It may not sleep.
	Checks    check.RuleSet
	Violation func(pid int, name string, v check.Violation)
	// Notice, if not nil, shows a line of text to the user of the program. It may sleep.
	Notice func(text string) error
}

// Session is a supervised program with its descendants.
type Session struct {
	sup      *Supervisor
	info     SessionInfo
	checked  check.ProgramGroup // device files with checks
	name     string             // prefix of the names of the session's queue files
	user     *quota.User
	tree     *userTree
	log      *slog.Logger // logger with the user ID as an attribute
	listener *os.File
	// If helper is not nil, this process may access only processes that allow the access (Tracer), and asks the
	// helper for other processes.
	helper   Helper
	asksOnly bool         // asks the helper for every process
	fd       int          // descriptor of listener
	numbers  commandFDSet // descriptor numbers for command files
	done     chan struct{}

	canSync bool        // the kernel supports SYNC_WAKE_UP
	sync    atomic.Bool // SYNC_WAKE_UP is enabled

	tokens workerTokens
	// lateWorkers is the number of workers that run work after an answer, or have it to run.
	lateWorkers atomic.Int32
	intake      receiveState
	direct      *directReceive
	workers     sync.WaitGroup
	cache       [cacheSize]atomic.Pointer[cachedFile]

	entered atomic.Bool // the working directory of a process may be virtual

	opening sync.Mutex // serialises the choice of descriptor numbers

	processes processTable

	warned       atomic.Bool
	loggedErrnos sync.Map

	faults [ib.NumLibraryFaults]atomic.Int32 // states of the notices about faults of the library
	hints  sessionHints

	weakDevices deviceNames
}

// Attach attaches a program by the listener from Launch.Handover, which another process may have sent. On success,
// the session owns the listener. When Attach returns, the supervisor is answering calls. Attach may sleep.
func (s *Supervisor) Attach(listener *os.File, info SessionInfo) (_ *Session, err error) {
	fail := func(cause error) (*Session, error) {
		return nil, fmt.Errorf("attach process %d: %w", info.LauncherPID, cause)
	}
	limit, err := hardFileLimitOf(info.LauncherPID)
	if err != nil {
		return fail(err)
	}
	id, err := readIdentity(info.LauncherPID)
	if err != nil {
		return fail(err)
	}
	// From here on a thread may wait for the launcher's memory. The thread is charged to the user.
	user := s.cfg.Quota.Account(info.Account)
	if err := sessionCharges.takeAll(user); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			sessionCharges.giveBack(user)
		}
	}()
	// If access to the launcher's memory is denied, access to the program's memory will be denied too.
	var helper Helper
	if s.cfg.AskHelper || checkDirectAccess(info.LauncherPID) != nil {
		if helper = info.Helper; helper == nil || id.uids.effective != os.Geteuid() || isOverflow(id.uids.effective) ||
			ptraceScope() > "1" {
			return fail(explainAccess(ptraceScope()))
		}
	}
	if what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", listener.Fd())); err != nil ||
		what != "anon_inode:seccomp notify" {
		return fail(fmt.Errorf("the descriptor is not a seccomp listener: %w", unix.EINVAL))
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
		numbers:   commandFDsForHardLimit(limit),
		done:      make(chan struct{}),
		processes: processTable{all: make(map[int]*process)},
	}
	if info.Pidfd != nil && !processExists(info.Pidfd) { // the process ID may have been reused
		return fail(fmt.Errorf("the launcher has ended: %w", unix.ESRCH))
	}
	// The next step may wait for a directory that another program of the user keeps locked. The session is already
	// charged.
	t.tree, err = s.trees.acquireTree(user.ID())
	defer func() {
		if err != nil {
			s.trees.releaseTree(t.tree)
		}
	}()
	if err != nil {
		return fail(s.explainFullDisk(err))
	}
	if t.direct, err = newDirectReceive(listener); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			t.direct.close()
		}
	}()
	t.name = filepath.Join(s.cfg.Dir, "run", fmt.Sprintf("%d-%d", s.sessionCount.Add(1), info.LauncherPID))
	switch err := setSyncWakeUp(t.fd, true); {
	case err == nil:
		t.canSync = true
		t.sync.Store(true)
	case !errors.Is(err, unix.EINVAL):
		return fail(fmt.Errorf("the descriptor is not a seccomp listener: %w", err))
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fail(fmt.Errorf("the service is ending: %w", unix.ENODEV))
	}
	s.sessions[t] = struct{}{}
	s.mu.Unlock()
	t.tokens.init(func() { t.workers.Go(newWorker(t).run) }, t.user)
	go t.awaitEndAndRelease()
	return t, nil
}

// descriptorsPerSession is the number of descriptors charged for a session: two for the listener (directReceive).
const descriptorsPerSession = 2

// sessionCharges lists the charges of a session, including its first worker.
var sessionCharges = quotaCharges{{quota.Sessions, 1}, {quota.Workers, 1}, {quota.Descriptors, descriptorsPerSession}}

// quotaCharges is a list of charges made together.
type quotaCharges []struct {
	kind quota.ResourceKind
	n    uint64
}

// takeAll makes all charges or none. give ends the charges.
func (list quotaCharges) takeAll(u *quota.User) error {
	for i, c := range list {
		if err := u.Charge(c.kind, c.n); err != nil {
			list[:i].giveBack(u)
			return err
		}
	}
	return nil
}

func (list quotaCharges) giveBack(u *quota.User) {
	for _, c := range list {
		u.Release(c.kind, c.n)
	}
}

// processExists reports whether the process of a pidfd exists.
func processExists(pidfd *os.File) bool {
	conn, err := pidfd.SyscallConn()
	return err == nil && (&process{conn: conn}).isAlive()
}

// maxCopies limits the number of threads that the memory of one user's programs can block. maxAllCopies is the
// limit for all users, beyond the first few threads of each user.
const (
	maxCopies    = 64
	maxAllCopies = 2048
)

// CopiesOf returns the limit that a user's programs share.
func (s *Supervisor) CopiesOf(u *quota.User) *umem.Copies {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.copies[u]
	if c == nil {
		c = umem.NewCopies(maxCopies, s.allCopies)
		s.copies[u] = c
	}
	return c
}

// Done returns a channel that is closed at the end of the session. The session ends when no process of it is left,
// or the Supervisor was closed, and all its resources were released.
func (t *Session) Done() <-chan struct{} { return t.done }

// Name returns the name of the session, which is unique on this machine. The name is a path without a file. The name
// is the prefix of the names of the queue files of the session's programs (memfd_create(2)).
func (t *Session) Name() string { return t.name }

// switchSyncWakeUp enables or disables SYNC_WAKE_UP. Concurrent workers may set different values, which only costs
// time.
func (t *Session) switchSyncWakeUp(on bool) {
	if t.canSync && t.sync.Load() != on {
		t.sync.Store(on)
		_ = setSyncWakeUp(t.fd, on)
	}
}

// awaitEndAndRelease waits for the end of the session and releases its resources.
//
//verbena:allow close the listener was found to be one, whose close does not wait
func (t *Session) awaitEndAndRelease() {
	t.workers.Wait()
	t.tokens.releaseWorkers()
	s := t.sup
	s.closeFiles(nil, func(f *openFile) bool { return f.session == t })
	t.processes.closeAll()
	t.direct.close()
	t.listener.Close()
	s.trees.releaseTree(t.tree)
	sessionCharges.giveBack(t.user)
	s.mu.Lock()
	delete(s.sessions, t)
	s.mu.Unlock()
	close(t.done)
}

// explainAccess returns the error for a program's memory that the service may not access, with the reason and the
// remedy.
func explainAccess(scope string) error {
	if scope != "0" {
		return fmt.Errorf("%w; kernel.yama.ptrace_scope is %s: set it to 1 or 0 (sysctl), or run the service as root or with CAP_SYS_PTRACE",
			umem.ErrAccess, scope)
	}
	return fmt.Errorf("%w; run the service as the same user, or as root", umem.ErrAccess)
}

// hardFileLimitOf reads the hard limit of a process's descriptors, which needs no privilege (proc_pid_limits(5)).
func hardFileLimitOf(pid int) (uint64, error) {
	f, err := procfile.OpenNoFollow("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	defer f.Close()
	return parseHardFileLimit(f)
}

// parseHardFileLimit reads the limit from the text of proc_pid_limits(5).
func parseHardFileLimit(limits io.Reader) (uint64, error) {
	for lines := bufio.NewScanner(limits); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), "Max open files")
		if !ok {
			continue
		}
		v := strings.Fields(rest) // fields: soft, hard, unit
		if len(v) < 2 {
			break
		}
		if v[1] == "unlimited" {
			return umem.Unlimited, nil
		}
		return strconv.ParseUint(v[1], 10, 64)
	}
	return 0, errors.New("read the limit of open files: /proc/PID/limits does not contain it")
}

// warnIfLimitReached logs the first error of each errno that means that a program has reached a limit. The program
// itself receives only the errno. The ledger logs its own refusals.
func (t *Session) warnIfLimitReached(err error) {
	e := errnoOf(err)
	var refusal *quota.LimitError
	switch {
	case e != unix.ENOMEM && e != unix.EMFILE && e != unix.ENFILE, errors.As(err, &refusal):
		return
	}
	if _, said := t.loggedErrnos.LoadOrStore(e, true); !said {
		t.log.Warn("a limit is reached", "args", t.info.Args, "err", err)
	}
}

// warnOnce logs the first error that affects the program as a whole.
func (t *Session) warnOnce(what func() error) {
	if t.warned.CompareAndSwap(false, true) {
		t.log.Warn("session", "args", t.info.Args, "err", what())
	}
}
