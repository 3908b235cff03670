package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

// commandsForSocket returns a function that builds command lines for the service at a control socket. The test cleanup
// ends the service.
func commandsForSocket(t *testing.T, socket string) func(args ...string) *exec.Cmd {
	t.Helper()
	path, err := commandPath()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exec.Command(path, "--socket", socket, "stop").Run() })
	return func(args ...string) *exec.Cmd {
		t.Helper()
		return verbenaCommand(t, append([]string{"--socket", socket}, args...)...)
	}
}

// mustRun runs a command and returns its output.
func mustRun(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", c.Args[1:], err, out)
	}
	return string(out)
}

// mustFail runs a command, which must exit with verbena's own exit code and print one line that contains each of want.
func mustFail(t *testing.T, c *exec.Cmd, want ...string) {
	t.Helper()
	out, err := c.CombinedOutput()
	if code := c.ProcessState.ExitCode(); code != exitFailure || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v: exit code %d, %v, want %d and one line:\n%s", c.Args[1:], code, err, exitFailure, out)
	}
	for _, w := range want {
		if !strings.Contains(string(out), w) {
			t.Errorf("%v: got %q, want %q in it", c.Args[1:], out, w)
		}
	}
}

// TestServeDaemonReturnsWhenReady tests that "serve --daemon" returns when the service is ready, and that the service
// continues and writes a log.
func TestServeDaemonReturnsWhenReady(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "sock")
	v := commandsForSocket(t, socket)
	out := mustRun(t, v("serve", "--daemon", "--link", "rxe3=127.91.11.1"))
	m := regexp.MustCompile(`^process (\d+) serves at (\S+); its messages are in (\S+)\n$`).FindStringSubmatch(out)
	if m == nil || m[2] != socket {
		t.Fatalf("serve --daemon: got output %q, want the process, the socket and the log", out)
	}
	if got := mustRun(t, v("link", "show")); !strings.Contains(got, "rxe3") {
		t.Errorf("link show: %s", got)
	}
	if b, err := os.ReadFile(m[3]); err != nil || !strings.Contains(string(b), "serving") {
		t.Errorf("log: got %q, %v", b, err)
	}
	pid, _ := strconv.Atoi(m[1])
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session: got %d, %v, want the new session %d", sid, err, pid)
	}
	// The first service holds the location, so the second one fails without truncating the first one's log.
	mustFail(t, v("serve", "--daemon"), "running already at "+socket, "verbena stop", "--socket")
	if b, err := os.ReadFile(m[3]); err != nil || !strings.Contains(string(b), "serving") {
		t.Errorf("log after the second service: got %q, %v, want the first service's log", b, err)
	}
	mustRun(t, v("stop"))
	mustFail(t, v("link", "show"), "no service is running")
	mustRun(t, v("serve", "--link", "rxe3=127.91.11.1", "--daemon", "--")) // daemon appends flags, which must precede "--"
	mustRun(t, v("stop"))
}

// TestServeDaemonReportsServiceError tests that "serve --daemon" fails with the error of the service.
func TestServeDaemonReportsServiceError(t *testing.T) {
	v := commandsForSocket(t, filepath.Join(t.TempDir(), "sock"))
	mustFail(t, v("serve", "--daemon", "--link", "rxe0=203.0.113.77"), "link rxe0", "203.0.113.77")
	mustFail(t, v("serve", "--daemon", "--link", "mlx5_0=127.91.11.2"), "rxe or efa followed by")
	mustFail(t, v("serve", "--daemon", "--limit", "ring-bytes=8K"),
		"limit ring-bytes", "8192", "raise --limit ring-bytes=")
	mustFail(t, v("link", "show"), "no service is running")
}

// TestRelativeSocketPathIsResolved tests that the command resolves a relative path in its own directory, and that the
// service that it starts uses the same path.
func TestRelativeSocketPathIsResolved(t *testing.T) {
	dir := t.TempDir()
	v := commandsForSocket(t, "sock")
	in := func(c *exec.Cmd) *exec.Cmd { c.Dir = dir; return c }
	t.Cleanup(func() { in(commandsForSocket(t, "sock")("stop")).Run() })
	mustRun(t, in(v("serve", "--daemon", "--link", "rxe0=127.91.11.3")))
	if _, err := os.Stat(filepath.Join(dir, "sock")); err != nil {
		t.Error(err)
	}
	mustRun(t, in(v("stop")))
}

// TestServeReplacesIdleService tests that a service replaces an idle service that was started on demand, in the
// foreground and in the background.
func TestServeReplacesIdleService(t *testing.T) {
	for _, flag := range []string{"--daemon", "--debug"} {
		socket := filepath.Join(t.TempDir(), "sock")
		v := commandsForSocket(t, socket)
		mustRun(t, v("run", "--", "true"))
		serve := v("serve", flag, "--link", "rxe7=127.91.11.4")
		if flag == "--daemon" {
			mustRun(t, serve)
		} else if err := serve.Start(); err != nil {
			t.Fatal(err)
		}
		var out []byte
		var err error
		if !testutil.PollUntil(func() bool {
			out, err = v("link", "show").CombinedOutput()
			return err == nil && strings.Contains(string(out), "rxe7")
		}) {
			t.Fatalf("serve %s: %v, want a takeover of the idle service\n%s", flag, err, out)
		}
		mustRun(t, v("stop"))
	}
}

// TestServeKeepsServiceInUse tests that a service that was started on demand is not replaced while a program uses it,
// and that the program continues.
func TestServeKeepsServiceInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "sock")
	v := commandsForSocket(t, socket)
	program := v("run", "--", "cat")
	stdin, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(stdin, "running")
	if _, err := stdout.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--daemon", "--debug"} {
		mustFail(t, v("serve", flag, "--link", "rxe7=127.91.11.5"),
			"running already at "+socket, "programs and captures that use it: 1", "verbena stop")
	}
	stdin.Close()
	if err := program.Wait(); err != nil {
		t.Errorf("program's Wait: %v", err)
	}
	// The next check has no program, but a fault rule that a takeover would lose.
	mustRun(t, v("fault", "add", "--dev", "rxe0", "--drop", "1%"))
	mustFail(t, v("serve", "--link", "rxe7=127.91.11.5"), "changed by hand", "verbena stop")
}

// TestFaultAddStartsService tests that "fault add" starts a service if necessary, and reports the start, like "run".
func TestFaultAddStartsService(t *testing.T) {
	v := commandsForSocket(t, filepath.Join(t.TempDir(), "sock"))
	if out := mustRun(t, v("fault", "add", "--dev", "rxe0", "--drop", "1%")); !strings.Contains(out, "started one") {
		t.Errorf("fault add: got output %q, want the start of a service in it", out)
	}
	if out := mustRun(t, v("fault", "show")); !strings.Contains(out, "drop 0.01") {
		t.Errorf("fault show: got output %q, want the rule in it", out)
	}
}

// TestCommandsFailWithoutService tests that commands about the objects of a service fail if no service runs.
func TestCommandsFailWithoutService(t *testing.T) {
	v := commandsForSocket(t, filepath.Join(t.TempDir(), "sock"))
	for _, args := range [][]string{
		{"dev", "reset", "rxe0"}, {"dev", "hang", "rxe0"}, {"dev", "plug", "rxe0"}, {"dev", "unplug", "rxe0"},
		{"dev", "show"}, {"link", "del", "rxe0"}, {"link", "show"}, {"res", "show"}, {"stat", "show"}, {"fault", "show"},
		{"fault", "clear"}, {"stop"},
	} {
		mustFail(t, v(args...), "no service is running", "verbena serve --daemon")
	}
}

// TestWaitReturnsWhenReady tests that "wait" returns when a starting service is ready, and fails after its timeout
// otherwise.
func TestWaitReturnsWhenReady(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "sock")
	v := commandsForSocket(t, socket)
	mustFail(t, v("wait", "--timeout", "50ms"), "no service is ready at "+socket+" after 50ms", "verbena serve --daemon")
	serve := v("serve", "--link", "rxe0=127.91.11.6")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	mustRun(t, v("wait"))
	mustRun(t, v("link", "show"))

	mustFail(t, v("wait", "--timeout", "500ms", "--open", "rxe0"), "no program has device rxe0 open after 500ms")
	mustFail(t, v("wait", "--open", "rxe1"), "rxe1", "rxe0")

	mustRun(t, v("wait", "--active", "rxe0"))
	mustFail(t, v("wait", "--active", "rxe1"), `no device is named "rxe1" (the devices are: rxe0)`)
	for _, c := range [][2][]string{
		{{"dev", "unplug", "rxe0"}, {"dev", "plug", "rxe0"}},
		{{"link", "set", "rxe0", "down"}, {"link", "set", "rxe0", "up"}},
	} {
		mustRun(t, v(c[0]...))
		mustFail(t, v("wait", "--timeout", "500ms", "--active", "rxe0"), "device rxe0 is not active after 500ms")
		mustRun(t, v(c[1]...))
		mustRun(t, v("wait", "--active", "rxe0"))
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l2, err := net.Listen("unix", filepath.Join(t.TempDir(), "nbd"))
	if err != nil {
		t.Fatal(err)
	}
	defer l2.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	mustRun(t, v("wait", "--listen", port))
	l.Close()
	mustFail(t, v("wait", "--timeout", "50ms", "--listen", port), "TCP port "+port)
	mustRun(t, v("wait", "--listen", l2.Addr().String()))
	mustFail(t, v("wait", "--timeout", "50ms", "--listen", l2.Addr().String()+"2"), "socket "+l2.Addr().String()+"2")
	mustFail(t, v("wait", "--listen", "0"), "--listen", "65535")
}

func TestIsListeningFindsSocket(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:4854 0100007F:4853 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000
`
	for port, want := range map[uint16]bool{0x4853: true, 0x4854: false, 0x50: true, 0x51: false} {
		if got := isListeningTCP(table, port); got != want {
			t.Errorf("port %d: got %v, want %v", port, got, want)
		}
	}
}

// TestMissingSocketDirectoryNamesFlag tests that the error for a control socket in a missing directory names the flag
// or variable with the path.
func TestMissingSocketDirectoryNamesFlag(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no", "sock")
	for _, args := range [][]string{
		{"serve"}, {"serve", "--daemon"}, {"run", "--", "true"}, {"link", "show"}, {"wait"},
	} {
		mustFail(t, verbenaCommand(t, append([]string{"--socket", missing}, args...)...),
			"--socket "+missing, "no such file or directory", "create it")
		c := verbenaCommand(t, args...)
		c.Env = append(os.Environ(), "VERBENA_SOCKET="+missing)
		mustFail(t, c, "VERBENA_SOCKET "+missing, "no such file or directory", "create it")
	}
}

// TestRunEndsHoldersAfterService tests that verbena run ends processes that keep a device of an ended service open,
// unless --outlive is given.
func TestRunEndsHoldersAfterService(t *testing.T) {
	const script = `exec 9<>/dev/infiniband/uverbs0; echo ready; sleep 12 >/dev/null 2>&1; echo outlived`
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"ended", nil, 128 + 15, "sending SIGTERM"},
		{"left alone", []string{"--outlive"}, 0, "outlived"},
		{"ignores SIGTERM", []string{"--", "env", "--ignore-signal=TERM"}, 128 + 9, "sending SIGKILL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && c.name != "ended" {
				t.Skip("waits holdTimeout before the programs are killed")
			}
			socket := filepath.Join(t.TempDir(), "sock")
			v := commandsForSocket(t, socket)
			mustRun(t, v("serve", "--daemon", "--link", "rxe0=127.91.11.1"+fmt.Sprint(len(c.args))))
			args := append([]string{"run"}, c.args...)
			program := v(append(args, "sh", "-c", script)...)
			var out strings.Builder
			program.Stderr = &out
			stdout, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := stdout.Read(make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
			mustRun(t, v("stop"))
			rest, _ := io.ReadAll(stdout)
			err = program.Wait()
			all := out.String() + string(rest)
			if code := program.ProcessState.ExitCode(); code != c.code || !strings.Contains(all, c.want) {
				t.Errorf("exit code %d, %v, want %d and %q in\n%s", code, err, c.code, c.want, all)
			}
		})
	}
}
