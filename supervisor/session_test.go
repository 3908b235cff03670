package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/testutil"
)

func TestLastClose(t *testing.T) {
	w := newFixture(t)
	n := 0
	for _, how := range []string{"close", "dup", "mapping", "reopen", "child", "exec"} {
		t.Run(how, func(t *testing.T) {
			r := w.startSelf("lastclose", how)
			n++
			f := w.srv.waitForOpen(t, n)
			if how == "dup" || how == "mapping" || how == "reopen" || how == "child" {
				testutil.Eventually(t, "the command after the first close", func() bool { return f.waiting.Load() > 0 })
				if how == "reopen" {
					// When the supervisor reports this close, it has already processed the close of the other
					// description.
					w.mustRunSelf("opens", deviceFile)
					n++
					w.waitForClose("the other file's close", w.srv.waitForOpen(t, n).closed)
				}
				if f.isClosed() {
					t.Error("device file: got a close while a descriptor was open, want none")
				}
				f.gate <- struct{}{}
			}
			w.waitForClose("the last close", f.closed)
			r.Signal(unix.SIGKILL)
			w.waitForExit(r)
		})
	}
}

// queueFilesOf returns links to the queue files that this process, which runs the service, has open for a session.
func queueFilesOf(t *testing.T, r *runningProgram) (links []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range all {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/memfd:"+r.session.Name()+"/uverbs0.") {
			links = append(links, link)
		}
	}
	return links
}

func TestKilledProgramLeavesNothing(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("hold")
	f := w.srv.waitForOpen(t, 1)
	w.waitForText(r, "open")
	if files := queueFilesOf(t, r); len(files) != 1 {
		t.Errorf("queue files: got %q, want one", files)
	}
	r.Signal(unix.SIGKILL)
	w.waitForClose("the file to be closed", f.closed)
	if code, _ := w.waitForExit(r); code != 128+9 {
		t.Errorf("exit code: got %d, want 137", code)
	}
	if files := queueFilesOf(t, r); len(files) != 0 {
		t.Errorf("remaining queue files: got %q, want none", files)
	}
}

func TestKilledInACommand(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("lastclose", "dup") // waits in a command
	f := w.srv.waitForOpen(t, 1)
	testutil.Eventually(t, "the command", func() bool { return f.waiting.Load() > 0 })
	r.Signal(unix.SIGKILL)
	if code := r.Wait(); code != 128+9 {
		t.Errorf("exit code: got %d, want 137", code)
	}
	if f.isClosed() {
		t.Error("device file: got a close during a command, want none")
	}
	f.gate <- struct{}{}
	w.waitForClose("the file to be closed", f.closed)
	w.waitForExit(r)
}

func TestSessionOutlivesTheProgram(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("stray")
	f := w.srv.waitForOpen(t, 1)
	if code := r.Wait(); code != 0 {
		t.Fatalf("exit code: got %d, want 0", code)
	}
	pid, err := strconv.Atoi(strings.Fields(r.output.String())[0])
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.session.Done():
		t.Error("session: got the end before its last process ended, want it afterwards")
	default:
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.waitForClose("the end of the session", r.session.Done())
	if !f.isClosed() {
		t.Error("device file at the end of the session: got an open file, want a closed one")
	}
}

func TestNestedIsRefused(t *testing.T) {
	w := newFixture(t)
	out := w.mustRunSelf("nested")
	if want := errNested.Error() + "\n" + errNested.Error(); out != want {
		t.Errorf("nested run: got\n%s\nwant\n%s", out, want)
	}
}

func TestOneThreadDoesNotStallAnother(t *testing.T) {
	w := newFixture(t)
	for _, second := range []string{"known", "unknown"} {
		if got := w.mustRunSelf("threads", second); got != "ok" {
			t.Errorf("output: got %q, want ok", got)
		}
	}
}

// TestWorkersShareTokens tests that two workers receive while several threads make calls, that one worker receives
// afterwards, and that no call is lost.
func TestWorkersShareTokens(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("turns")
	f := w.srv.waitForOpen(t, 1)
	defer func() { // releases the program after a failure
		r.Signal(unix.SIGKILL)
		close(f.gate)
	}()
	for i, want := range []int32{sharedTokens, 1, sharedTokens, 1} {
		testutil.Eventually(t, "the program's wait", func() bool { return f.waiting.Load() > int64(i) })
		testutil.Eventually(t, fmt.Sprintf("%d receive tokens", want), func() bool {
			return r.session.tokens.total.Load() == want
		})
		f.gate <- struct{}{}
	}
	code, out := w.waitForExit(r)
	if want := fmt.Sprintln(f.rung.Load()); code != 0 || out != want {
		t.Errorf("got exit code %d and %q doorbells, want 0 and %s", code, out, want)
	}
}

func TestProgramSeesDeviceChanges(t *testing.T) {
	w := newFixture(t)
	list := func() string { return w.mustRun("sh", "-c", "echo /sys/class/infiniband/* /dev/infiniband/*") }
	created := func() string { return w.mustRun("stat", "-c", "%y", "/sys/class/infiniband/rxe0") }
	first := created()
	w.srv.plug("uverbs1", 1, "rxe1")
	if got, want := list(),
		"/sys/class/infiniband/rxe0 /sys/class/infiniband/rxe1 /dev/infiniband/uverbs0 /dev/infiniband/uverbs1\n"; got != want {
		t.Errorf("files of two devices: got %q, want %q", got, want)
	}
	w.srv.unplug()
	if got, want := list(), "/sys/class/infiniband/rxe0 /dev/infiniband/uverbs0\n"; got != want {
		t.Errorf("files of one device: got %q, want %q", got, want)
	}
	if got := created(); got != first {
		t.Errorf("time stamp of the device: got %q, want the earlier %q", got, first)
	}
	r := w.startSelf("gone")
	f := w.srv.waitForOpen(t, 1)
	testutil.Eventually(t, "the command", func() bool { return f.waiting.Load() > 0 })
	w.srv.unplug()
	f.gate <- struct{}{}
	if code, out := w.waitForExit(r); code != 0 || out != "ok\n" {
		t.Errorf("exit code and output: got %d and %s, want 0 and ok", code, out)
	}
	if got, want := list(), "/sys/class/infiniband/* /dev/infiniband/*\n"; got != want {
		t.Errorf("files without devices: got %q, want %q", got, want)
	}
	w.srv.plug("uverbs0", 0, "rxe0")
	if got := created(); got == first {
		t.Error("time stamp of another device of the same name: got the same, want another one")
	}
}

func TestChangesAreSeenAtOnce(t *testing.T) {
	w := newFixture(t)
	cat := func(name string) string {
		return w.mustRun("sh", "-c", "cat /sys/class/infiniband/rxe0/ports/1/"+name+" 2>&1 || true")
	}
	for _, name := range []string{"state", "gids/0", "gid_attrs/types/0"} {
		cat(name)
	}
	w.srv.driver.ChangeQueryResults(func(a *ibfake.QueryResults) {
		a.Port.State = ib.PortDown
		a.GIDs = append([]ib.GIDEntry{a.GIDs[1], a.GIDs[0]}, a.GIDs[2:]...)
	})
	for _, tt := range []struct{ name, want string }{
		{"state", "1: DOWN\n"},
		{"gids/0", noGID},
		{"gids/1", "fe80:0000:0000:0000:0000:0000:0000:0001\n"},
		{"gid_attrs/types/1", "RoCE v2\n"},
		{"gid_attrs/types/0", "cat: /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/0: Invalid argument\n"},
	} {
		if got := cat(tt.name); got != tt.want {
			t.Errorf("content of %s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestNodePermissionsAreEnforced(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to act as different users")
	w := newFixture(t, func(c *SupervisorConfig) { c.Node = Node{UID: 0, GID: 12345, Mode: 0o660} })
	for _, tt := range []struct {
		who  []string
		want string
	}{
		{[]string{"--reuid=65534", "--regid=65534", "--clear-groups"}, "no\nno\n"},
		{[]string{"--reuid=65534", "--regid=12345", "--clear-groups"}, "yes\nyes\n"},
		{[]string{"--reuid=65534", "--regid=65534", "--groups=12345"}, "yes\nyes\n"},
		{[]string{"--reuid=0", "--regid=65534", "--clear-groups"}, "yes\nyes\n"},
	} {
		args := append(append([]string{"setpriv"}, tt.who...), "sh", "-c",
			`test -w /dev/infiniband/uverbs0 && echo yes || echo no; (exec 3<>/dev/infiniband/uverbs0) 2>/dev/null && echo yes || echo no`)
		if _, got := w.waitForExit(w.startProgram(nil, args...)); got != tt.want {
			t.Errorf("open as %q: got %q, want %q", tt.who, got, tt.want)
		}
	}
}

// TestClosedSupervisorLeavesPrograms tests that a closed supervisor leaves running programs to their guardians.
func TestClosedSupervisorLeavesPrograms(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("hold")
	f := w.srv.waitForOpen(t, 1)
	w.waitForText(r, "open")
	lost := make(chan struct{})
	abandoned := make(chan struct{})
	r.Guard(lost, func() { close(abandoned) })
	w.sup.Close()
	if !f.isClosed() {
		t.Error("device file after Close: got an open file, want a closed one")
	}
	close(lost)
	w.waitForClose("abandon", abandoned)
	r.Signal(unix.SIGKILL)
	w.waitForExit(r)
	if _, err := w.sup.Attach(nil, SessionInfo{LauncherPID: os.Getpid()}); err == nil {
		t.Error("Attach after Close: got success, want an error")
	}
}

// TestSessionsEnd tests that a session ends with its last process, and that it ends with the supervisor while its
// processes run on, with and without a poll before each receive.
func TestSessionsEnd(t *testing.T) {
	before := directReceiveSince
	t.Cleanup(func() { directReceiveSince = before })
	for _, since := range []int{before, math.MaxInt} {
		directReceiveSince = since
		for _, closes := range []bool{false, true} {
			w := newFixture(t)
			r := w.startSelf("hold")
			w.waitForText(r, "open")
			if got, want := r.session.direct != nil, kernelVersion() >= since; got != want {
				t.Errorf("receives without polling: got %v, want %v", got, want)
			}
			if closes {
				w.sup.Close()
				select {
				case <-r.session.Done():
				default:
					t.Error("session after Close: got a running one, want its end")
				}
			}
			r.Signal(unix.SIGKILL)
			w.waitForExit(r)
			w.waitForClose("session", r.session.Done())
		}
	}
}

// TestReceiveDoesNotSleepAfterTakenCall tests that a thread does not sleep until the next call if another thread has
// taken the call that it saw.
func TestReceiveDoesNotSleepAfterTakenCall(t *testing.T) {
	w := newFixture(t)
	r := w.startSelf("hold")
	w.waitForText(r, "open")
	fd, err := unix.FcntlInt(uintptr(r.session.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	listener := os.NewFile(uintptr(fd), "listener")
	defer listener.Close()
	s := newNotificationSource(listener, w.sup.stop, &r.session.intake)
	got := make(chan bool)
	go func() { got <- s.takePendingNotification(r.session.intake.taken.Load()-1, new(notification)) }()
	select {
	case ok := <-got:
		if ok {
			t.Error("receive without a notification: got true, want false")
		}
	case <-time.After(20 * time.Second):
		t.Error("receive without a notification: got no return after 20 s, want one")
	}
	r.Signal(unix.SIGKILL)
	w.waitForExit(r)
}

func TestGuardian(t *testing.T) {
	if err := Probe(); err != nil {
		t.Skip(err)
	}
	for range 3 {
		testGuardian(t)
	}
}

func testGuardian(t *testing.T) {
	service := exec.Command("/proc/self/exe", newShmDir(t))
	service.Env = append(os.Environ(), programEnvVar+"=service")
	service.Stderr = os.Stderr
	pipe, err := service.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(pipe)
	hear := func(what string) {
		if line, err := said.ReadString('\n'); err != nil || !strings.HasPrefix(line, what) {
			t.Fatalf("line of the service: got %q and error %v, want %q", line, err, what)
		}
	}
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	p, err := Start(&Launch{
		Path: "/proc/self/exe", Args: []string{"guarded"}, Env: append(os.Environ(), programEnvVar+"=guarded"),
		Files: []*os.File{rd, wr, wr},
		Handover: func(listener *os.File) error {
			service.ExtraFiles = []*os.File{listener}
			if err := service.Start(); err != nil {
				return err
			}
			hear("attached")
			return nil
		},
	})
	wr.Close()
	if err != nil {
		t.Fatal(err)
	}
	lost, abandoned := make(chan struct{}), make(chan struct{})
	p.Guard(lost, func() { close(abandoned) })
	hear("busy")
	service.Process.Kill()
	service.Wait()
	close(lost)
	<-abandoned
	out, err := io.ReadAll(rd)
	if err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(); code != 0 || string(out) != "ok\n" {
		t.Errorf("exit code and output: got %d and\n%s\nwant 0 and ok", code, out)
	}
}

// TestFailedHandoverRemovesProgram tests that the program is removed completely if its supervisor refuses it.
func TestFailedHandoverRemovesProgram(t *testing.T) {
	if err := Probe(); err != nil {
		t.Skip(err)
	}
	fds := countOpenDescriptors(t)
	refused := fmt.Errorf("refused: %w", syscall.EPERM)
	if _, err := Start(&Launch{Path: "/bin/true", Args: []string{"true"}, Handover: func(*os.File) error {
		return refused
	}}); !errors.Is(err, refused) {
		t.Errorf("Start: got %v, want %v", err, refused)
	}
	if n := countOpenDescriptors(t); n != fds {
		t.Errorf("open descriptors: got %d, want %d", n, fds)
	}
}

// rerunTests runs tests of this binary under other conditions.
func rerunTests(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q: got %v, want success:\n%s", cmd.Args, err, out)
	} else if !strings.Contains(string(out), "PASS: TestCommands") {
		t.Errorf("%q: got no line \"PASS: TestCommands\", want one:\n%s", cmd.Args, out)
	}
}

func TestProgramsAsNobody(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to become another user")
	tests := "^(TestCommands|TestProgramOpens|TestExitCodes|TestLastClose|TestNestedIsRefused|TestGuardian|TestAttachRefuses|TestOneThread.*|TestOpenForAnotherUser)$"
	if testing.Short() { // the other tests take seconds, and run as this user
		tests = "^(TestCommands|TestProgramOpens|TestOpenForAnotherUser)$"
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run", tests)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	rerunTests(t, cmd)
}

func TestLowLimitOfOpenFiles(t *testing.T) {
	rerunTests(t, exec.Command("/bin/sh", "-c",
		`ulimit -n 256; exec "$0" -test.v -test.run '^TestCommands$'`, executablePath(t)))
}

func executablePath(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}
