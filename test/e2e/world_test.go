//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// fullMatrix reports whether the matrix runs with full counts.
var fullMatrix = os.Getenv("E2E_FULL") != ""

// needCondition skips the test if a requirement is missing, and fails the test in CI.
func needCondition(t *testing.T, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("CI") == "true":
		t.Fatalf("missing: %s", what)
	default:
		t.Skipf("missing: %s", what)
	}
}

func needProgram(t *testing.T, pkg string, names ...string) {
	t.Helper()
	for _, n := range names {
		_, err := exec.LookPath(n)
		needCondition(t, err == nil, fmt.Sprintf("%s: apt-get install %s", n, pkg))
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	needCondition(t, os.Getuid() == 0, "root")
}

func verbenaBinary(t *testing.T) string {
	t.Helper()
	b := os.Getenv("VERBENA")
	if b == "" {
		t.Fatal("VERBENA is not the path of the binary: use make e2e")
	}
	return b
}

// testUser is the user as which programs run.
type testUser struct {
	name string
	uid  uint32
}

// testUsers returns root and the user nobody if the test runs as root, and otherwise the current user.
func testUsers() []testUser {
	if os.Getuid() != 0 {
		return []testUser{{"user", uint32(os.Getuid())}}
	}
	return []testUser{{"root", 0}, {"nobody", 65534}}
}

// testService is a service, or the location of a service that starts on demand.
type testService struct {
	t      *testing.T
	user   testUser
	groups []uint32 // supplementary groups of the user
	netns  string
	socket string
	under  []string // command prefix that starts the service; may be empty
	clone  uintptr  // namespaces of the container in which the service and its programs run (clone(2)); 0: none
	serve  *exec.Cmd
	log    *testutil.Buffer
}

// doorbellMode, if not empty, is the value of --doorbells for all services of the tests. The value comes from `make
// e2e DOORBELLS=native`.
var doorbellMode = os.Getenv("DOORBELLS")

var addrCounter atomic.Uint32

// unusedAddr returns an address that no other test uses, and most likely no other run of the tests.
func unusedAddr() string {
	n := addrCounter.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 10+os.Getpid()%200, n/200, 1+n%200)
}

// newTestService returns a world without a running service.
func newTestService(t *testing.T, u testUser, netns string) *testService {
	t.Helper()
	dir, err := os.MkdirTemp("", "verbena-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if os.Getuid() == 0 {
		os.Chown(dir, int(u.uid), int(u.uid))
	}
	return &testService{t: t, user: u, netns: netns, socket: filepath.Join(dir, "sock")}
}

// startService starts `verbena serve` with the arguments, and stops the service at the end of the test. The test
// then fails if files remain on /dev/shm.
func startService(t *testing.T, u testUser, netns string, args ...string) *testService {
	t.Helper()
	w := newTestService(t, u, netns)
	w.start(args...)
	return w
}

// location returns the location of the service for a client in this process, which may run as another user.
func (w *testService) location() ctl.Location {
	uid := int(w.user.uid)
	return ctl.Location{Socket: w.socket, ServiceUser: &uid}
}

func (w *testService) start(args ...string) {
	t := w.t
	t.Helper()
	w.log = &testutil.Buffer{}
	if doorbellMode != "" {
		args = append(args, "--doorbells", doorbellMode)
	}
	w.serve = w.verbenaCommand(context.Background(), append([]string{"serve"}, args...)...)
	w.serve.Stderr = w.log
	if len(w.under) > 0 {
		w.serve.Path, w.serve.Args = "/bin/"+w.under[0], append(slices.Clone(w.under), w.serve.Args...)
	}
	if w.clone != 0 {
		ids := []syscall.SysProcIDMap{{Size: 65536}}
		a := w.serve.SysProcAttr
		a.Cloneflags, a.UidMappings, a.GidMappings, a.GidMappingsEnableSetgroups = w.clone, ids, ids, true
	}
	if err := w.serve.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := w.serve
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Errorf("service: did not end on SIGTERM")
			cmd.Process.Signal(syscall.SIGQUIT)
			<-done
		}
		if strings.Contains(w.log.String(), "WARNING: DATA RACE") { // printed by a binary that was built with -race
			t.Error("service: got data races")
		}
		if t.Failed() || testing.Verbose() && w.log.String() != "" {
			t.Logf("service:\n%s", lastLines(w.log.String(), 40))
		}
	})
	// The service listens before it has created its devices and directories. The service answers when it is ready.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ready := make(chan error, 1)
	go func() {
		c, err := ctl.Await(ctx, w.location())
		if err == nil {
			c.Close()
		}
		ready <- err
	}()
	select {
	case err := <-ready:
		if err != nil {
			t.Fatalf("service: not ready: %v\n%s", err, w.log)
		}
	case err := <-done:
		done <- err
		t.Fatalf("the service ended: %v\n%s", err, w.log)
	}
}

func lastLines(s string, lines int) string {
	l := strings.Split(s, "\n")
	return strings.Join(l[max(0, len(l)-lines):], "\n")
}

// runFlags are further flags of each verbena run, as of `make soak-programs RUN_FLAGS=--sanitize`.
var runFlags = strings.Fields(os.Getenv("RUN_FLAGS"))

// verbenaCommand returns a verbena command in this world.
func (w *testService) verbenaCommand(ctx context.Context, args ...string) *exec.Cmd {
	if len(args) > 0 && args[0] == "run" {
		args = slices.Concat(args[:1], runFlags, args[1:])
	}
	argv := append([]string{verbenaBinary(w.t)}, args...)
	if w.netns != "" {
		in := []string{"ip", "netns", "exec", w.netns}
		if w.user.uid != uint32(os.Getuid()) {
			id := fmt.Sprint(w.user.uid)
			in = append(in, "setpriv", "--reuid", id, "--regid", id, "--clear-groups")
		}
		argv = append(in, argv...)
	}
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Env = append(os.Environ(), "VERBENA_SOCKET="+w.socket, "HOME=/nonexistent")
	if w.runsInContainer() {
		w.enterContainer(c, w.user.uid)
	} else if w.netns == "" && w.user.uid != uint32(os.Getuid()) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: w.user.uid, Gid: w.user.uid,
			Groups: w.groups}}
		c.Dir = "/"
	}
	// The command runs in a separate process group, so that the cleanup can kill all its processes.
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Setpgid = true
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	w.t.Cleanup(func() {
		if c.Process != nil {
			syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		}
	})
	return c
}

// runsInContainer reports whether commands must run in a container.
func (w *testService) runsInContainer() bool {
	return w.clone != 0 && w.serve != nil && w.serve.Process != nil
}

// enterContainer changes a command to run in the container of the service.
func (w *testService) enterContainer(c *exec.Cmd, uid uint32) {
	id := fmt.Sprint(uid)
	c.Args = append([]string{"nsenter", "--target", fmt.Sprint(w.serve.Process.Pid), "--user", "--pid", "--mount",
		"--setuid", id, "--setgid", id,
		"--wd=/", "--", c.Path}, c.Args[1:]...)
	c.Path = "/usr/bin/nsenter"
}

// mustRun runs a verbena command to its end and returns its output. mustRun fails the test if the command fails.
func (w *testService) mustRun(args ...string) string {
	w.t.Helper()
	b, err := w.verbenaCommand(w.contextWithTimeout(60), args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("verbena %s: %v\n%s", strings.Join(args, " "), err, b)
	}
	return string(b)
}

func (w *testService) contextWithTimeout(seconds int) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds)*time.Second)
	w.t.Cleanup(cancel)
	return ctx
}

// sendRequest sends a request to the service. A request is faster than a command, which needs a process.
func (w *testService) sendRequest(r *ctl.Request) *ctl.Response {
	w.t.Helper()
	c, err := ctl.Dial(w.location())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	answer, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

// listOpenContexts returns the open device files of the service.
func (w *testService) listOpenContexts() []ctl.ContextInfo {
	w.t.Helper()
	return w.sendRequest(&ctl.Request{Op: ctl.OpResShow}).Contexts
}

// showResources returns the contexts that `res show --json` prints for the user of the world. A user sees only their
// own contexts.
func (w *testService) showResources() (list []ctl.ContextInfo) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.mustRun("res", "show", "--json")), &list); err != nil {
		w.t.Fatal(err)
	}
	return list
}

// awaitNoProgramObjects waits until no program has an object.
func (w *testService) awaitNoProgramObjects() {
	w.t.Helper()
	var r []ctl.ContextInfo
	if !testutil.PollUntil(func() bool {
		r = w.listOpenContexts()
		return len(r) == 0
	}) {
		w.t.Fatalf("objects left after %v: %v", testutil.Timeout, r)
	}
}

var portCounter atomic.Uint32

// unusedTCPPort returns a port for a pair of programs. No other pair uses this port, and most likely no other run of
// the tests.
func unusedTCPPort() string {
	return fmt.Sprint(18600 + (uint32(os.Getpid())*127+portCounter.Add(1))%12000)
}

// programPair is a server and a client that exchange data.
type programPair struct {
	server, client       *testService
	serverArgs, clArgs   []string // arguments without the program's name and the peer's address
	program, port, peer  string
	portFlag             string
	timeout              int
	serverOut, clientOut string
}

// peerErrorTimeout is the time that an end has to report its own error after the other end has failed.
const peerErrorTimeout = 2 * time.Second

// run runs the pair to its end. run starts the client when the server listens.
func (p *programPair) run() error {
	t := p.server.t
	t.Helper()
	if p.port == "" {
		p.port = unusedTCPPort()
	}
	if p.portFlag == "" {
		p.portFlag = "-p"
	}
	if p.timeout == 0 {
		p.timeout = 60
	}
	if p.peer == "" {
		p.peer = "127.0.0.1"
	}
	ctx := p.server.contextWithTimeout(p.timeout)
	run := func(w *testService, args []string) *exec.Cmd {
		return w.verbenaCommand(ctx, append([]string{"run", "--", p.program, p.portFlag, p.port}, args...)...)
	}
	var sout bytes.Buffer
	server := run(p.server, p.serverArgs)
	server.Stdout, server.Stderr = &sout, &sout
	if err := server.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- server.Wait() }()
	p.awaitListening(done)
	var cout bytes.Buffer
	client := run(p.client, append(p.clArgs, p.peer))
	client.Stdout, client.Stderr = &cout, &cout
	if err := client.Start(); err != nil {
		server.Process.Signal(syscall.SIGTERM)
		<-done
		return err
	}
	over := make(chan error, 1)
	go func() { over <- client.Wait() }()
	// After one end has failed, the other end may wait for ever.
	var serr, cerr error
	select {
	case cerr = <-over:
		if cerr != nil && ctx.Err() == nil {
			server.Process.Signal(syscall.SIGTERM)
		}
		serr = <-done
	case serr = <-done:
		if serr != nil {
			late := time.AfterFunc(peerErrorTimeout, func() { client.Process.Signal(syscall.SIGTERM) })
			defer late.Stop()
		}
		cerr = <-over
	}
	p.serverOut, p.clientOut = sout.String(), cout.String()
	if cerr != nil || serr != nil {
		return fmt.Errorf("%s %v: server: %v, client: %v (%v)\n--- server\n%s--- client\n%s", p.program, p.clArgs,
			serr, cerr, ctx.Err(), p.serverOut, p.clientOut)
	}
	return nil
}

// awaitListening returns when a process listens on the pair's TCP port in the server's network namespace.
func (p *programPair) awaitListening(ended chan error) {
	want := fmt.Sprintf(":%04X ", atoi(p.port))
	for range 2000 {
		for _, f := range []string{"tcp", "tcp6"} {
			path := "/proc/net/" + f
			if p.server.netns != "" {
				path = "netns"
			}
			var b []byte
			if path == "netns" {
				b, _ = exec.Command("ip", "netns", "exec", p.server.netns, "cat", "/proc/net/"+f).Output()
			} else {
				b, _ = os.ReadFile(path)
			}
			for l := range strings.Lines(string(b)) {
				fields := strings.Fields(l)
				if len(fields) > 3 && strings.HasSuffix(fields[1]+" ", want) && fields[3] == "0A" {
					return
				}
			}
		}
		select {
		case err := <-ended:
			ended <- err
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func atoi(s string) (n int) {
	fmt.Sscan(s, &n)
	return n
}

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}
