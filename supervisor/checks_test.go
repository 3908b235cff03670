package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/internal/testutil"
	"verbena/rdmacm"
	"verbena/rdmacm/ucma"
	"verbena/umem"
	"verbena/uverbs"
)

// endingPidfd is a pidfd. Its process seems to have ended from the at-th check on.
type endingPidfd struct {
	syscall.RawConn
	ended     syscall.RawConn
	looks, at int
}

func (m *endingPidfd) Control(f func(uintptr)) error {
	if m.looks++; m.looks == m.at {
		return m.ended.Control(f)
	}
	return m.RawConn.Control(f)
}

// thisProcess returns this process, with its address space, as a process of a session.
func thisProcess(t *testing.T) *process {
	t.Helper()
	p := &process{pid: os.Getpid(), pidfd: openPidfd(t, os.Getpid())}
	var err error
	if p.conn, err = p.pidfd.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	space, err := umem.OpenProcess(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	p.space = space
	return p
}

// TestRaiseOpenFileLimit tests that raiseOpenFileLimit raises the limit of open files only for an existing process and
// only as far as needed, and that the limit is restored.
func TestRaiseOpenFileLimit(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil)
	var logs logRecorder
	w := newWorker(&Session{sup: &Supervisor{}, log: logs.logger()})
	p := thisProcess(t)
	alive, ended := p.conn, endedProcess(t).conn
	low := before.Cur - 1
	for _, tt := range []struct {
		name          string
		endsAt        int // number of the check at which the process has ended; 0 for a process that stays alive
		least         uint64
		during, after uint64
		want          error
		warned        bool
	}{
		{name: "more than the soft limit", least: low + 1, during: low + 1, after: low},
		{name: "the soft limit", least: low, during: low, after: low},
		{name: "less than the soft limit", least: low - 5, during: low, after: low},
		{name: "above the hard limit", least: before.Max + 1, during: low, after: low, want: syscall.EMFILE, warned: true},
		{name: "process ends before the call", endsAt: 1, least: low + 1, during: low, after: low, want: errCallerGone},
		{name: "process ends after the read of its limit", endsAt: 2, least: low + 1, during: low, after: low,
			want: errCallerGone},
		{name: "process ends while the limit is raised", endsAt: 3, least: low + 1, during: low + 1, after: low + 1},
		{name: "process ends before the limit is restored", endsAt: 4, least: low + 1, during: low + 1, after: low + 1},
	} {
		if tt.warned && before.Max == unix.RLIM_INFINITY {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: low, Max: before.Max}, nil); err != nil {
				t.Fatal(err)
			}
			limit := func() uint64 {
				var l unix.Rlimit
				if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &l); err != nil {
					t.Fatal(err)
				}
				return l.Cur
			}
			p.conn = &endingPidfd{RawConn: alive, ended: ended, at: tt.endsAt}
			restore, err := w.caller.raiseOpenFileLimit(p, tt.least)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("raiseOpenFileLimit: got %v, want %v", err, tt.want)
			}
			if got := limit(); got != tt.during {
				t.Errorf("raised limit: got %d, want %d", got, tt.during)
			}
			if restore(); limit() != tt.after {
				t.Errorf("restored limit: got %d, want %d", limit(), tt.after)
			}
			if l := logs.takeLines(); (len(l) > 0) != tt.warned {
				t.Errorf("log: got %q, want lines: %t", l, tt.warned)
			}
		})
	}
}

// TestHelperIsOnlyForOwnUser tests that a session uses a helper only for programs of the service's own user.
func TestHelperIsOnlyForOwnUser(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to start a process of another user")
	w := newFixture(t, func(c *SupervisorConfig) { c.AskHelper = true })
	other := exec.Command("/bin/sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	old := overflowUID
	defer func() { overflowUID = old }()
	for _, tt := range []struct {
		name     string
		pid      int
		helper   Helper
		overflow int
		want     error
	}{
		{"the service's user", os.Getpid(), Ancestor{}, -1, nil},
		{"no helper", os.Getpid(), nil, -1, umem.ErrAccess},
		{"another user", other.Process.Pid, Ancestor{}, -1, umem.ErrAccess},
		{"an overflow user ID", os.Getpid(), Ancestor{}, os.Geteuid(), umem.ErrAccess},
	} {
		overflowUID = func() int { return tt.overflow }
		th, listener := filteredThread(t)
		s, err := w.sup.Attach(listener, SessionInfo{LauncherPID: tt.pid, Helper: tt.helper})
		if !errors.Is(err, tt.want) || (s == nil) != (tt.want != nil) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		th.end()
		if s == nil {
			listener.Close()
			continue
		}
		if !s.UsesHelper() || s.NeedsPtracer() {
			t.Errorf("%s: got helped %v and traced %v, want true and false", tt.name, s.UsesHelper(), s.NeedsPtracer())
		}
		w.waitForClose("the end of the session", s.Done())
	}
}

// TestDeniedAccessNamesYama tests that the error of a denied access names the setting of Yama if Yama restricts access.
func TestDeniedAccessNamesYama(t *testing.T) {
	for scope, want := range map[string]string{
		"0": "; run the service as the same user, or as root",
		"1": "; kernel.yama.ptrace_scope is 1: set it to 1 or 0 (sysctl), or run the service as root or with CAP_SYS_PTRACE",
		"2": "; kernel.yama.ptrace_scope is 2: set it to 1 or 0 (sysctl), or run the service as root or with CAP_SYS_PTRACE",
	} {
		if err := explainAccess(scope); !errors.Is(err, umem.ErrAccess) || err.Error() != umem.ErrAccess.Error()+want {
			t.Errorf("scope %s: got %q, want %q", scope, err, umem.ErrAccess.Error()+want)
		}
	}
}

// TestParseHardFileLimit tests that parseHardFileLimit reads the second column of the line about open files.
func TestParseHardFileLimit(t *testing.T) {
	const none = "read the limit of open files: /proc/PID/limits does not contain it"
	for _, tt := range []struct {
		text string
		want uint64
		err  string
	}{
		{"Max processes 1 2 processes\nMax open files            1024          4096          files\n", 4096, ""},
		{"Max open files 1024 unlimited files\n", umem.Unlimited, ""},
		{"Max open files 1024\n", 0, none},
		{"Max open files\n", 0, none},
		{"Max processes 1 2 processes\n", 0, none},
		{"", 0, none},
		{"Max open files 1 x files\n", 0, `strconv.ParseUint: parsing "x": invalid syntax`},
	} {
		got, err := parseHardFileLimit(strings.NewReader(tt.text))
		if got != tt.want || fmt.Sprint(err) != tt.err && (err != nil || tt.err != "") {
			t.Errorf("%q: got %d, %v, want %d, %q", tt.text, got, err, tt.want, tt.err)
		}
	}
}

// TestNativeDoorbellsNeedProcessors tests that DoorbellsAuto selects native doorbells with three processors or more.
func TestNativeDoorbellsNeedProcessors(t *testing.T) {
	for processors := range 5 {
		for how, want := range map[Doorbells]bool{
			DoorbellsAuto: processors >= 3, DoorbellsTrapped: false, DoorbellsNative: true,
		} {
			if got := how.canBeNative(processors); got != want {
				t.Errorf("possible of doorbells %d with %d processors: got %v, want %v", how, processors, got, want)
			}
		}
	}
}

// TestAllowAccessChecksPidfd tests that a process may access this process's memory only while a pidfd proves that the
// process ID was not reused.
func TestAllowAccessChecksPidfd(t *testing.T) {
	live, ended := openPidfd(t, os.Getpid()), endedProcess(t).pidfd
	for _, tt := range []struct {
		name  string
		pidfd *os.File
		err   error // result of setPtracer, an error without Yama
		want  []int
	}{
		{"a running process", live, nil, []int{7}},
		{"an ended process", ended, nil, []int{7, 0}},
		{"without Yama", ended, unix.EINVAL, []int{7}},
	} {
		var set []int
		allowAccess(7, int(tt.pidfd.Fd()), func(pid int) error {
			set = append(set, pid)
			return tt.err
		})
		if !slices.Equal(set, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, set, tt.want)
		}
	}
}

// TestInodesOfTwoFileSystemsDiffer tests that files of two file systems differ, even with equal inode numbers.
func TestInodesOfTwoFileSystemsDiffer(t *testing.T) {
	roots := []string{"/proc", "/sys", "/dev/shm", "/dev/pts", "/dev/mqueue", "/run", "/tmp"}
	compared := 0
	for _, a := range roots {
		for _, b := range roots {
			var x, y unix.Stat_t
			if unix.Stat(a, &x) != nil || unix.Stat(b, &y) != nil || a != b && (x.Ino != y.Ino || x.Dev == y.Dev) {
				continue
			}
			compared++
			if got, want := isSameFileAt(unix.AT_FDCWD, a, b), a == b; got != want {
				t.Errorf("isSameFileAt of %s and %s, both inode %d: got %v, want %v", a, b, x.Ino, got, want)
			}
		}
	}
	if compared <= len(roots) {
		t.Skip("no two file systems have the same inode number for their root")
	}
}

// TestProcessStateIsRemoved tests that the state kept for a process is removed at its end, and that an exec binds
// only the memory of its own process.
func TestProcessStateIsRemoved(t *testing.T) {
	own, ended := thisProcess(t), endedProcess(t)
	s := processTable{all: map[int]*process{1: own, 2: ended}}
	s.removeEndedLocked()
	if len(s.all) != 1 || s.all[1] != own {
		t.Errorf("processes after the end of one: got %v, want the other one", s.all)
	}
	if n, err := s.memlockLimit(&process{}); n != 0 || err != umem.ErrLimit {
		t.Errorf("memlockLimit of a process without an address space: got %d, %v, want 0, %v", n, err, umem.ErrLimit)
	}

	child := exec.Command("/bin/sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	foreign := &process{pid: child.Process.Pid, pidfd: openPidfd(t, child.Process.Pid)}
	var err error
	if foreign.conn, err = foreign.pidfd.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	if foreign.space, err = umem.OpenProcess(foreign.pid); err != nil {
		t.Fatal(err)
	}
	defer foreign.space.Close()
	left, former := thisProcess(t).space, thisProcess(t).space
	left.MarkDead()
	space := own.space
	own.former = []*umem.Process{left, former}
	s.all[foreign.pid] = foreign
	tid := uint32(os.Getpid())
	got := s.beginExec(tid)
	if !slices.Equal(got, []*umem.Process{former, space}) || own.space != nil || foreign.space == nil {
		t.Errorf("executes: got %v and current space %v, want both address spaces of the process and no current one", got,
			own.space)
	}
	for _, tt := range []struct {
		name   string
		caller uint32
		p      *process
		want   bool
	}{
		{"another thread of the process", tid + 1<<30, own, true},
		{"the thread itself", tid, own, false},
		{"another process", tid + 1<<30, foreign, false},
	} {
		if got := s.execs.isExecPending(tt.caller, tt.p); got != tt.want {
			t.Errorf("pending for %s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	for i := range uint32(firstExecCheck) {
		s.execs.add(1<<30 + i)
	}
	if n := len(s.execs.tids); n != 2 {
		t.Errorf("entries after %d execs of ended threads: got %d, want 2, the existing thread and the last one",
			firstExecCheck,
			n)
	}
}

// TestStartRefusesInvalidLaunch tests that Start requires an argument vector and a supported architecture, and that an
// ended program receives no signal.
func TestStartRefusesInvalidLaunch(t *testing.T) {
	var e *ExecError
	const noArguments = "run /bin/true: no argument vector"
	if _, err := Start(&Launch{Path: "/bin/true"}); !errors.As(err, &e) || err.Error() != noArguments {
		t.Errorf("Start without arguments: got %v, want %s", err, noArguments)
	}
	arch := architectures[runtime.GOARCH]
	delete(architectures, runtime.GOARCH)
	_, err := Start(&Launch{Path: "/bin/true", Args: []string{"true"}})
	architectures[runtime.GOARCH] = arch
	want := ErrUnsupported.Error() + ": not for " + runtime.GOARCH
	if !errors.Is(err, ErrUnsupported) || err.Error() != want {
		t.Errorf("Start on another architecture: got %v, want %s", err, want)
	}
	p := &Program{pid: os.Getpid(), reaped: true}
	if err := p.Signal(0); err != os.ErrProcessDone {
		t.Errorf("Signal after the end: got %v, want %v", err, os.ErrProcessDone)
	}
}

// TestPollErrorEndsSource tests that an error of poll(2) ends a source.
func TestPollErrorEndsSource(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s := newNotificationSource(r, r, &receiveState{})
	if ready, ok := s.poll(0); ready || !ok {
		t.Errorf("poll without a notification: got ready %v and ok %v, want false and true", ready, ok)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	// poll(2) of two descriptors then fails with EINVAL.
	unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: before.Max}, nil)
	ready, ok := s.poll(0)
	unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil)
	if ready || ok {
		t.Errorf("poll after an error of poll(2): got ready %v and ok %v, want false and false", ready, ok)
	}
}

// TestFstatOfRemovedDeviceFails tests that fstat fails on an open file after both its device and its queues were
// removed.
func TestFstatOfRemovedDeviceFails(t *testing.T) {
	sup := newFixture(t).sup
	m, err := shm.Create("queues", quota.RingBytes, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorker(&Session{sup: sup, tree: sup.own})
	for _, tt := range []struct {
		name   string
		memory *shm.File
		want   string
	}{
		{"queues", m, "ok"},
		{"no queues", nil, "EIO"},
		{"closed queues", m, "EIO"},
	} {
		if tt.name == "closed queues" {
			m.Close()
		}
		f := &openFile{node: deviceNode{device: "gone"}, memory: tt.memory}
		v := w.caller.withDeviceInfo(f, func(int, fileInfo) callResult { return callResult{} })
		if got := v.String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestPhysStateText(t *testing.T) {
	for s, want := range map[uint8]string{
		0: "<unknown>", 1: "Sleep", 5: "LinkUp", 7: "Phy Test", 8: "<unknown>", 255: "<unknown>",
	} {
		if got := physStateText(s); got != want {
			t.Errorf("physStateText of %d: got %q, want %q", s, got, want)
		}
	}
}

// TestEmptyGIDAttributesFail tests that reading the type and the interface of an empty entry of the GID table fails.
func TestEmptyGIDAttributesFail(t *testing.T) {
	srv := newFakeServer()
	gid := ib.GID{0xfe, 0x80, 15: 9}
	entry := ib.GIDEntry{GID: gid, Type: ib.GIDTypeRoCEv2}
	named := entry
	named.Netdev = "lo"
	srv.driver.ChangeQueryResults(func(a *ibfake.QueryResults) { a.GIDs = []ib.GIDEntry{named, entry, {Netdev: "lo"}} })
	all := makeDeviceEntries(srv.devices(), false)
	for i, want := range [][2]string{{"RoCE v2\n", "lo\n"}, {"RoCE v2\n", "EINVAL"}, {"EINVAL", "EINVAL"}} {
		for j, name := range []string{"types", "ndevs"} {
			e := all.find(fmt.Sprintf("%s/infiniband/rxe0/ports/1/gid_attrs/%s/%d", virtualDir, name, i))
			if e == nil {
				t.Fatalf("%s of entry %d: got no file, want one", name, i)
			}
			got, err := e.read()
			if err != nil {
				got = unix.ErrnoName(errnoOf(err))
			}
			if got != want[j] {
				t.Errorf("%s of entry %d: got %q, want %q", name, i, got, want[j])
			}
		}
	}
}

// TestUserSeesOwnNetlinkResources tests that a user sees only the user's own objects and connections, and that a
// manager sees those of all users.
func TestUserSeesOwnNetlinkResources(t *testing.T) {
	w := newFixture(t)
	mine, others := quota.ID{UID: 1001}, quota.ID{UID: 1002}
	w.srv.contexts = []uverbs.ContextInfo{
		{Device: "rxe0", PID: 1, Owner: mine}, {Device: "rxe0", PID: 2, Owner: others}, {Device: "rxe1", PID: 3, Owner: mine},
		{Device: "rxe0", PID: 4, Owner: mine, Zombie: true},
	}
	dev := w.srv.devices()[0].ib
	view := rdmacm.View{Device: dev}
	ids := []ucma.IDInfo{{PID: 1, Owner: mine, View: view}, {PID: 2, Owner: others, View: view}, {PID: 3, Owner: mine}}
	for _, tt := range []struct {
		name   string
		source netlinkSource
		want   []int
	}{
		{"the user", netlinkSource{sup: w.sup, account: mine, owns: true}, []int{1}},
		{"another user", netlinkSource{sup: w.sup, account: others, owns: true}, []int{2}},
		{"a user on another's socket", netlinkSource{sup: w.sup, account: mine}, nil},
		{"a manager", netlinkSource{sup: w.sup, account: mine, manages: true}, []int{1, 2}},
	} {
		var contexts, connections []int
		for _, c := range tt.source.visibleResources("rxe0").Contexts() {
			contexts = append(contexts, int(c.Owner.PID))
		}
		for _, i := range tt.source.visibleIDs(ids, "rxe0") {
			connections = append(connections, i.PID)
		}
		if !slices.Equal(contexts, tt.want) || !slices.Equal(connections, tt.want) {
			t.Errorf("%s: got contexts of %v and connections of %v, want %v", tt.name, contexts, connections, tt.want)
		}
	}
}

// TestDoorbellPassesToken tests that a doorbell passes the receive token if several threads make calls and recent
// doorbells took long.
func TestDoorbellPassesToken(t *testing.T) {
	for _, tt := range []struct {
		lately time.Duration
		free   uint32
	}{{0, 0}, {passThreshold - 1, 0}, {passThreshold, 1}, {time.Second, 1}} {
		w := newWorker(&Session{})
		w.token.held = true
		receiveTokens := &w.caller.session.tokens
		receiveTokens.init(func() {}, nil)
		atomic.StoreUint32(&receiveTokens.free, 0)
		for i := range receiveTokens.watching {
			receiveTokens.watching[i].Store(true) // disables the timers
		}
		receiveTokens.mixture.Store(mixtureLimit)
		receiveTokens.doorbell.Store(int64(tt.lately))
		w.token.beginCommand(callWrite, false)
		if n := atomic.LoadUint32(&receiveTokens.free); n != tt.free || w.token.held != (tt.free == 0) {
			t.Errorf("doorbells of %v: got %d free tokens and a held token %v, want %d free", tt.lately, n, w.token.held, tt.free)
		}
		w.token.endBusy()
	}
}

// TestTokenIsSharedAfterChanges tests that the receive token is shared from the third change of callers on.
func TestTokenIsSharedAfterChanges(t *testing.T) {
	var receiveTokens workerTokens
	for i, want := range []bool{false, false, true, true} {
		receiveTokens.recordCaller(uint32(i + 1))
		if got := receiveTokens.isShared(); got != want {
			t.Errorf("shared after %d changes: got %v, want %v", i+1, got, want)
		}
	}
}
