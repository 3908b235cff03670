package supervisor

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/rights"
	"verbena/internal/testutil"
)

// endedProcess returns an ended process with the ID of this process.
func endedProcess(t *testing.T) *process {
	t.Helper()
	c := exec.Command("/bin/sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd := openPidfd(t, c.Process.Pid)
	_ = c.Process.Kill()
	_ = c.Wait()
	conn, err := pidfd.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return &process{pid: os.Getpid(), pidfd: pidfd, conn: conn}
}

// TestReusedPIDIsOtherProcess tests that an ended process is not confused with the process that now has its ID.
func TestReusedPIDIsOtherProcess(t *testing.T) {
	p := endedProcess(t)
	if p.isAlive() {
		t.Error("alive of an ended process: got true, want false")
	}
	if p.hasThread(uint32(unix.Gettid())) {
		t.Error("has of an ended process: got true, want false")
	}
	if processExists(p.pidfd) {
		t.Error("runs of an ended process: got true, want false")
	}
}

// TestReusedPIDLimitIsNotRaised tests that raiseOpenFileLimit does not raise the limit of open files of a process that
// merely has the caller's process ID.
func TestReusedPIDLimitIsNotRaised(t *testing.T) {
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	lower := unix.Rlimit{Cur: before.Cur - 1, Max: before.Max}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &lower, nil); err != nil {
		t.Fatal(err)
	}
	defer unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil)
	w := newWorker(&Session{sup: &Supervisor{}})
	restore, err := w.caller.raiseOpenFileLimit(endedProcess(t), lower.Cur+1)
	if !errors.Is(err, errCallerGone) {
		t.Errorf("raiseOpenFileLimit: got %v, want errGone", err)
	}
	if unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &after) != nil || after != lower {
		t.Errorf("limit: got %+v, want %+v", after, lower)
	}
	restore()
}

// TestUserNamespaceCapabilitiesAreIgnored tests that capabilities that a process has in its own user namespace do not
// count.
func TestUserNamespaceCapabilitiesAreIgnored(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to have capabilities outside of a user namespace")
	start := func(flags uintptr) *identity {
		t.Helper()
		c := exec.Command("/bin/sleep", "60")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if flags != 0 {
			ids := []syscall.SysProcIDMap{{Size: 1}}
			c.SysProcAttr.UidMappings, c.SysProcAttr.GidMappings = ids, ids
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
		id, err := readIdentity(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	inside, outside := start(syscall.CLONE_NEWUSER), start(0)
	if inside.fileCapability || inside.bindCapability || inside.rawCapability {
		t.Errorf("inside: got CAP_DAC_OVERRIDE %v, CAP_NET_BIND_SERVICE %v, CAP_NET_RAW %v, want none", inside.fileCapability,
			inside.bindCapability, inside.rawCapability)
	}
	if !outside.fileCapability || !outside.bindCapability || !outside.rawCapability {
		t.Errorf("outside: got CAP_DAC_OVERRIDE %v, CAP_NET_BIND_SERVICE %v, CAP_NET_RAW %v, want all",
			outside.fileCapability,
			outside.bindCapability, outside.rawCapability)
	}
}

// TestOverflowUserOwnsNothing tests that the overflow user ID, which represents all unmapped users, does not own
// the device files.
func TestOverflowUserOwnsNothing(t *testing.T) {
	const nobody = 4242
	old := overflowUID
	defer func() { overflowUID = old }()
	n := Node{UID: nobody, GID: 1, Mode: 0o600}
	id := &identity{}
	if overflowUID = func() int { return -1 }; !n.allows(id, nobody, 2, mayRead|mayWrite) {
		t.Error("open by the owner: got denied, want allowed")
	}
	if overflowUID = func() int { return nobody }; n.allows(id, nobody, 2, mayRead) {
		t.Error("open by the overflow ID: got allowed, want denied")
	}
}

// TestEndedLauncherCannotAttach tests that an ended launcher cannot attach a program, because its process ID may have
// been reused.
func TestEndedLauncherCannotAttach(t *testing.T) {
	w := newFixture(t)
	th, listener := filteredThread(t)
	defer th.end()
	defer listener.Close()
	p := endedProcess(t)
	if s, err := w.sup.Attach(listener, SessionInfo{LauncherPID: p.pid, Pidfd: p.pidfd}); !errors.Is(err, unix.ESRCH) {
		t.Errorf("Attach: got %v, %v, want ESRCH", s, err)
	}
}

// TestAttachRefusesOtherFiles tests that Attach accepts no other file as a listener, even if the file answers an
// unknown ioctl(2) like an old listener.
func TestAttachRefusesOtherFiles(t *testing.T) {
	w := newFixture(t)
	const userModeOnly = 1 // UFFD_USER_MODE_ONLY
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly, 0, 0)
	if e != 0 {
		t.Fatal("userfaultfd:", e)
	}
	f := os.NewFile(fd, "userfaultfd")
	defer f.Close()
	if s, err := w.sup.Attach(f, SessionInfo{LauncherPID: os.Getpid()}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Attach of a userfaultfd: got %v, %v, want EINVAL", s, err)
	}
}

// TestNetlinkSocketsAreBounded tests the limit of netlink sockets per user, independently of other users.
func TestNetlinkSocketsAreBounded(t *testing.T) {
	ledger := quota.New(quota.Limits{})
	s := &Supervisor{netlinkUsers: map[*quota.User]*netlinkUserState{}, netlinks: map[inode]*netlinkSocket{}}
	next := uint64(0)
	enter := func(uid int) (*netlinkSocket, error) {
		next++
		n := &netlinkSocket{sup: s, user: ledger.User(uid), inode: inode{1, next}}
		s.mu.Lock()
		defer s.mu.Unlock()
		return n, s.countNetlinkSocket(n)
	}
	var last *netlinkSocket
	for i := range maxNetlinkSockets {
		var err error
		if last, err = enter(1); err != nil {
			t.Fatalf("socket %d: got %v, want success", i, err)
		}
	}
	if _, err := enter(1); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("socket beyond the limit: got %v, want EMFILE", err)
	}
	if _, err := enter(2); err != nil {
		t.Errorf("socket of another user: got %v, want success", err)
	}
	s.uncountNetlinkSocket(last)
	if _, err := enter(1); err != nil {
		t.Errorf("socket after the close of another: got %v, want success", err)
	}
}

// TestUnreadAnswersAreBounded tests the limit of unread netlink answers per user, for all sockets of the user
// together.
func TestUnreadAnswersAreBounded(t *testing.T) {
	s := newFixture(t).sup
	n := &netlinkSocket{sup: s, user: quota.New(quota.Limits{}).User(1), opener: netlinkOpener{uid: 1},
		all: &netlinkUserState{}}
	request := make([]byte, unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], 5<<10|1) // RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	errno := func() syscall.Errno {
		for _, b := range n.answerDatagram(&rights.Sender{PID: 1, UID: 1}, request) {
			if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
				return syscall.Errno(-int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr:])))
			}
		}
		return 0
	}
	for _, c := range []struct {
		unread int
		want   syscall.Errno
	}{{0, 0}, {maxNetlinkUnread, 0}, {maxNetlinkUnread + 1, syscall.ENOBUFS}} {
		if n.all.unread = c.unread; errno() != c.want {
			t.Errorf("request with %d unread bytes: got another error, want %v", c.unread, c.want)
		}
	}
}

// TestHelperMemoryIsNotAccessedByPID tests that the supervisor never uses a process ID to access memory that
// the launcher has opened.
// The service itself may not access the process, and the process ID may be reused.
func TestHelperMemoryIsNotAccessedByPID(t *testing.T) {
	defer func() { askHelper = false }()
	askHelper = true
	w := newFixture(t)
	r := w.startSelf("hold")
	w.waitForText(r, "open")
	r.session.processes.mu.Lock()
	spaces := 0
	for _, p := range r.session.processes.all {
		if p.space != nil {
			if spaces++; !p.space.Bound() {
				t.Errorf("process %d: got access by its number, want a bound address space", p.pid)
			}
		}
	}
	r.session.processes.mu.Unlock()
	if spaces == 0 {
		t.Error("open address spaces: got none, want one")
	}
	r.Signal(unix.SIGKILL)
	w.waitForExit(r)
}
