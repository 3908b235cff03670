package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/privilege"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// commandDir is the folder of the binary of command.
var commandDir string

// runAsCommandEnv is the environment variable that makes the test binary behave as the verbena command.
const runAsCommandEnv = "VERBENA_TEST_COMMAND"

// commandPath returns the path of verbena, built without cgo, as in a release. With -short, and if the
// test binary has no cgo either, it is a link to the test binary, which spares a build.
var commandPath = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "verbena-test-")
	if err != nil {
		return "", err
	}
	commandDir = dir
	path := filepath.Join(dir, "verbena")
	if testing.Short() && !usesCgo() {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		return path, errors.Join(os.Symlink(self, path), os.Setenv(runAsCommandEnv, "1"))
	}
	build := exec.Command("go", "build", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// usesCgo reports whether the test binary was built with cgo. With cgo, a service cannot drop its capabilities.
func usesCgo() bool {
	info, ok := debug.ReadBuildInfo()
	return !ok || !slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "0"})
}

func TestMain(m *testing.M) {
	if os.Getenv(runAsCommandEnv) != "" {
		main()
		os.Exit(0)
	}
	code := m.Run()
	if commandDir != "" {
		os.RemoveAll(commandDir)
	}
	os.Exit(code)
}

// verbenaCommand returns a command line whose process ends at a time limit.
func verbenaCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := commandPath()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.WaitDelay = time.Second
	return cmd
}

// startServe starts a service, and returns its process and its location.
func startServe(t *testing.T, args ...string) (*exec.Cmd, ctl.Location) {
	t.Helper()
	loc := ctl.Location{Socket: filepath.Join(t.TempDir(), "sock")}
	cmd := verbenaCommand(t, append([]string{"--socket", loc.Socket, "serve"}, args...)...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("service:\n%s", log.String())
		}
	})
	testutil.Eventually(t, "the service to be ready", func() bool {
		c, err := ctl.Dial(loc)
		if err != nil {
			return false
		}
		defer c.Close()
		if _, err := c.Do(&ctl.Request{Op: ctl.OpInfo}); err != nil { // the service listens before it is ready
			t.Fatal(err)
		}
		return true
	})
	return cmd, loc
}

// threadStatuses returns the status files of a process's threads.
func threadStatuses(t *testing.T, pid int) (who []string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads: %v", err)
	}
	for _, task := range tasks {
		who = append(who, strings.TrimPrefix(task, "/proc/"))
	}
	return who
}

// TestThreadsHaveSeccompFilters tests that each thread of a service and of a launcher has a seccomp filter while a
// program runs, and that a service still has it after a device was added.
func TestThreadsHaveSeccompFilters(t *testing.T) {
	cmd, loc := startServe(t, "--link", "rxe0=127.91.10.9")
	if out, err := verbenaCommand(t, "--socket", loc.Socket, "link", "add", "rxe1", "--addr",
		"127.91.10.10").CombinedOutput(); err != nil {
		t.Errorf("link add: %v\n%s", err, out)
	}
	run := verbenaCommand(t, "--socket", loc.Socket, "run", "--", "sh", "-c", "echo started; read line")
	in, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, len("started"))); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{cmd.Process.Pid, run.Process.Pid} {
		// The launcher installs its filter once the program runs.
		testutil.Eventually(t, fmt.Sprintf("process %d to have a filter on each thread", pid), func() bool {
			return !slices.ContainsFunc(threadStatuses(t, pid), func(who string) bool {
				b, _ := os.ReadFile("/proc/" + who + "/status")
				return len(b) > 0 && !bytes.Contains(b, []byte("\nSeccomp:\t2\n"))
			})
		})
	}
	in.Close()
	if err := run.Wait(); err == nil || run.ProcessState.ExitCode() != 1 { // read(1) at the end of its input
		t.Errorf("run: %v", err)
	}
}

// TestServiceHasDocumentedCapabilities tests that a service of root has exactly the documented capabilities,
// permanently and on all threads.
func TestServiceHasDocumentedCapabilities(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to have capabilities")
	own, err := privilege.ReadCapabilities("self")
	if err != nil {
		t.Fatal(err)
	}
	if own.Permitted&(1<<unix.CAP_SYS_PTRACE) == 0 {
		t.Skip("needs CAP_SYS_PTRACE")
	}
	var want uint64
	for _, c := range privilege.KeptCapabilities {
		want |= 1 << c.Number
	}
	want &= own.Bounding
	cmd, loc := startServe(t, "--link", "rxe0=127.91.10.1", "--mode", "0666")
	check := func(when string) {
		for _, who := range threadStatuses(t, cmd.Process.Pid) {
			got, err := privilege.ReadCapabilities(who)
			if errors.Is(err, os.ErrNotExist) {
				continue // the thread has ended meanwhile
			}
			if err != nil || got != (privilege.CapabilitySets{Permitted: want, Effective: want, Bounding: want}) {
				t.Errorf("%s, thread %s: got %x, %v, want %x", when, who, got, err, want)
			}
			b, _ := os.ReadFile("/proc/" + who + "/status")
			if len(b) > 0 && !bytes.Contains(b, []byte("NoNewPrivs:\t1\n")) {
				t.Errorf("%s, thread %s: got NoNewPrivs 0, want 1", when, who)
			}
		}
	}
	check("at the start")
	if out, err := verbenaCommand(t, "--socket", loc.Socket, "run", "--", "true").CombinedOutput(); err != nil {
		t.Errorf("run: %v\n%s", err, out)
	}
	if out, err := verbenaCommand(t, "--socket", loc.Socket,
		"link", "add", "rxe1", "--addr", "127.91.10.2").CombinedOutput(); err != nil {
		t.Errorf("link add: %v\n%s", err, out)
	}
	check("after a program")
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", cmd.Process.Pid))
	if err != nil || len(fds) < 5 {
		t.Fatalf("descriptors: got %d, %v", len(fds), err)
	}
	for _, f := range fds {
		m := regexp.MustCompile(`(?m)^flags:\s+([0-7]+)$`).FindSubmatch(firstResult(os.ReadFile(f)))
		to, _ := os.Readlink(strings.Replace(f, "fdinfo", "fd", 1))
		if n, _ := strconv.Atoi(filepath.Base(f)); m == nil || n <= 2 ||
			to == firstResult(os.Readlink("/proc/self/fd/"+filepath.Base(f))) {
			continue // the descriptor was closed meanwhile, or is inherited
		}
		if flags, err := strconv.ParseUint(string(m[1]), 8, 64); err != nil || flags&syscall.O_CLOEXEC == 0 {
			t.Errorf("descriptor %s, %s: got no FD_CLOEXEC, want it set", filepath.Base(f), to)
		}
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", cmd.Process.Pid))
	if err != nil || !regexp.MustCompile(`Max core file size +0 +0 `).Match(b) {
		t.Errorf("dumpable service: got %v, want no core dumps\n%s", err, b)
	}
}

func firstResult[T any](v T, _ error) T { return v }

// TestServeReportsRunningService tests that a second service at a location reports the first service, and does not
// remove the first service's socket.
func TestServeReportsRunningService(t *testing.T) {
	t.Parallel()
	_, loc := startServe(t, "--link", "rxe0=127.91.10.3")
	out, err := verbenaCommand(t, "--socket", loc.Socket, "serve", "--link", "rxe0=127.91.10.4").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "running already") {
		t.Errorf("second service: got %v, %s, want an error that reports the first one", err, out)
	}
	if out, err := verbenaCommand(t, "--socket", loc.Socket, "link", "show").CombinedOutput(); err != nil {
		t.Errorf("the first service: %v\n%s", err, out)
	}
}

// TestFileAtSocketPathIsKept tests that neither serve nor run replaces a file at the path of the socket.
func TestFileAtSocketPathIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "letter")
	if err := os.WriteFile(path, []byte("dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve"}, {"run", "--", "true"}, {"link", "add", "rxe9"}} {
		out, err := verbenaCommand(t, append([]string{"--socket", path}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "is not a socket") {
			t.Errorf("%v: got %v, %s", args, err, out)
		}
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "dear" {
		t.Errorf("file at the path: got %q, %v, want it unchanged", b, err)
	}
}

// TestStopWaitsForServiceEnd tests that "stop" returns when the service has ended, and that no files remain.
func TestStopWaitsForServiceEnd(t *testing.T) {
	cmd, loc := startServe(t, "--link", "rxe0=127.91.10.5")
	if out, err := verbenaCommand(t, "--socket", loc.Socket, "stop").CombinedOutput(); err != nil {
		t.Fatalf("stop: %v\n%s", err, out)
	}
	if _, err := os.Lstat(loc.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after stop: got %v, want ErrNotExist", err)
	}
	var status syscall.WaitStatus
	testutil.Eventually(t, "the service to end after stop has returned", func() bool {
		pid, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WNOHANG, nil)
		return pid != 0 || err != nil
	})
	if status.ExitStatus() != 0 {
		t.Errorf("exit status %d", status.ExitStatus())
	}
}

// TestRunFailsIfCaptureFails tests that run fails if the capture cannot be written, unless the program itself fails.
func TestRunFailsIfCaptureFails(t *testing.T) {
	for program, want := range map[string]int{"true": exitFailure, "false": 1} {
		cmd := verbenaCommand(t, "run", "--private", "--link", "rxe0=127.91.10.6", "--capture", "/dev/full", "--", program)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != want || !strings.Contains(string(out), "/dev/full: ") ||
			!strings.Contains(string(out), "no space left") {
			t.Errorf("%s: exit code %d (%v), want %d\n%s", program, code, err, want, out)
		}
	}
	file := filepath.Join(t.TempDir(), "x.pcapng")
	cmd := verbenaCommand(t, "run", "--private", "--link", "rxe0=127.91.10.6", "--capture", file, "--", "true")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("a writable file: %v\n%s", err, out)
	}
}

// TestLimits tests that the service applies and shows the limits of the command line.
func TestLimits(t *testing.T) {
	_, loc := startServe(t, "--link", "rxe0=127.91.10.7", "--mode", "0600", "--limit", "qps=7/70", "--limit",
		"ring-bytes=1M")
	out, err := verbenaCommand(t, "--socket", loc.Socket, "res", "show", "--users", "--json").CombinedOutput()
	if err != nil || !regexp.MustCompile(`"kind": "qps",\s+"held": 0,\s+"limit": 70\b`).Match(out) ||
		!regexp.MustCompile(`"kind": "qps",\s+"held": 0,\s+"limit": 7\b`).Match(out) {
		t.Errorf("res show --json: got %v, want both limits of queue pairs\n%s", err, out)
	}
	out, err = verbenaCommand(t, "--socket", loc.Socket, "res", "show").CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)^\d+ +connections +1 +\d+$`).Match(out) ||
		!regexp.MustCompile(`(?m)^all +connections +1 +\d+$`).Match(out) {
		t.Errorf("res show: got %v, want the connections\n%s", err, out)
	}
	for _, bad := range []string{"qps", "things=1", "qps=2/1"} {
		if out, err := verbenaCommand(t, "--socket", loc.Socket+"2", "serve", "--limit", bad).CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "limit \""+bad) {
			t.Errorf("%s: got %v, %s", bad, err, out)
		}
	}
}

// TestServeHelpListsLimits tests that the help of serve lists all kinds of limits.
func TestServeHelpListsLimits(t *testing.T) {
	help := new(serveCmd).Help()
	for k := range quota.NumKinds {
		if !regexp.MustCompile(`\b` + k.String() + `\b`).MatchString(help) {
			t.Errorf("serve --help: got no limit %v", k)
		}
	}
}

func capabilityNameList(list ...privilege.Capability) (n []string) {
	for _, c := range list {
		n = append(n, c.Name)
	}
	slices.Sort(n)
	return n
}

// TestCapabilitiesAreDocumented tests that the systemd unit and SECURITY.md list the capabilities that the code
// keeps.
func TestCapabilitiesAreDocumented(t *testing.T) {
	all := capabilityNameList(append(slices.Clone(privilege.KeptCapabilities), privilege.StartCapabilities...)...)
	unit, err := os.ReadFile("../../packaging/verbena.service")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(unit)
	if m == nil {
		t.Fatal("packaging/verbena.service: got no CapabilityBoundingSet")
	}
	got := strings.Fields(string(m[1]))
	slices.Sort(got)
	if !slices.Equal(got, all) {
		t.Errorf("packaging/verbena.service: got %v, want %v", got, all)
	}
	page, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(slices.Clone(privilege.KeptCapabilities), privilege.StartCapabilities...) {
		if line := fmt.Sprintf("| `%s` | %s |", c.Name, c.Reason); !bytes.Contains(page, []byte(line)) {
			t.Errorf("SECURITY.md: got no line\n%s", line)
		}
	}
	if n := len(regexp.MustCompile("(?m)^\\| `CAP_").FindAll(page, -1)); n != len(all) {
		t.Errorf("SECURITY.md lists %d capabilities, want %d", n, len(all))
	}
}

// TestSystemdUnitIsValid tests that systemd-analyze accepts the unit.
func TestSystemdUnitIsValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	b, err := os.ReadFile("../../packaging/verbena.service")
	if err != nil {
		t.Fatal(err)
	}
	path, err := commandPath()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "verbena.service")
	b = bytes.Replace(b, []byte("/usr/bin/verbena"), []byte(path), 1)
	if err := os.WriteFile(unit, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "verbena.service:") {
		t.Errorf("systemd-analyze verify: got %v\n%s", err, out)
	}
}
