//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"verbena/internal/testutil"
)

// TestRunTrace tests that run --trace writes the calls of its own program to a file or to standard error, and
// returns the exit code of the program. The test also tests that serve --debug logs each attached program and each
// refused call.
func TestRunTrace(t *testing.T) {
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong", "ibv_devices")
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			w := startService(t, u, "", "--debug", "--link", "rxe0="+unusedAddr())
			file := filepath.Join(filepath.Dir(w.socket), "calls")
			// Only the server of the pair is traced.
			port := unusedTCPPort()
			server := w.verbenaCommand(w.contextWithTimeout(60), "run", "--trace="+file, "--", "sh", "-c",
				"ibv_rc_pingpong -d rxe0 -g 1 -n 20 -p "+port+"; exit 7")
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			w.mustRun("wait", "--listen", port)
			w.mustRun("run", "--", "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "20", "-p", port, "127.0.0.1")
			if err := server.Wait(); exitCode(err) != 7 {
				t.Errorf("run --trace: got %v, want exit code 7", err)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			trace := string(b)
			for _, want := range []string{
				`openat\(AT_FDCWD, "/dev/infiniband/uverbs0", O_RDWR\|O_CLOEXEC\) = \d+ <\d+\.\d+>`,
				`ioctl\(\d+<uverbs0>, QP_CREATE\{\d+: .*\}\) = 0 \{0: 0x[0-9a-f]+, .*\} <`,
				`ioctl\(\d+<uverbs0>, REG_MR\{.*Length: 0x1000, .*\}\) = 0 \{.*LKey: \d+.*\} <`,
				`ioctl\(\d+<uverbs0>, MODIFY_QP\{.*DestQPNum: \d+, QPState: RTR, .*\}\) = 0 <`,
				`ioctl\(\d+<uverbs0>, QP_DESTROY\{`,
			} {
				if n := len(regexp.MustCompile("(?m)^[0-9]+ "+want).FindAllString(trace, -1)); n != 1 &&
					!strings.Contains(trace, "not shown") {
					t.Errorf("trace: got %d lines that match %s, want 1:\n%s", n, want, trace)
				}
			}
			out := w.mustRun("run", "--trace", "--", "ibv_devices")
			if !strings.Contains(out, `socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_RDMA) = `) {
				t.Errorf("run --trace to standard error: got\n%s", out)
			}
			w.mustRun("stop")
			for _, want := range []string{`msg="program attached" uid=%d pid=\d+ args="\[sh -c ibv_rc_pingpong`,
				`msg="program ended" uid=%d pid=\d+ `,
				`msg="device file opened" uid=%d pid=\d+ name=ibv_rc_pingpong dev=uverbs0 `, `msg="device file closed" uid=%d `,
				`msg="command refused" uid=%d tid=\d+ dev=uverbs0 errno=ENOSPC `} {
				re := regexp.MustCompile(fmt.Sprintf("level=DEBUG "+want, u.uid))
				testutil.Eventually(t, "the log to have "+want, func() bool { return re.MatchString(w.log.String()) })
			}
		})
	}
}

// TestAttackTrace tests that a stopped launcher with a trace blocks neither its own program nor another user's
// program. A traced program must not increase the memory of the service without bound.
func TestAttackTrace(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_devinfo")
	w := startSharedService(t, "--mode", "0666")
	attacker, other := w.asUser(1001), w.asUser(1002)
	dir, err := os.MkdirTemp("", "verbena-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o777)
	started, over := filepath.Join(dir, "started"), filepath.Join(dir, "over")
	run := attacker.verbenaCommand(w.contextWithTimeout(120), "run", "--trace="+filepath.Join(dir, "trace"), "--", "sh",
		"-c",
		fmt.Sprintf("ibv_devinfo >/dev/null; touch %s; read go; for i in $(seq 10); do ibv_devinfo -v >/dev/null; done; touch %s",
			started, over))
	in, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	await := func(file string) {
		t.Helper()
		testutil.Eventually(t, file+" to be there", func() bool {
			_, err := os.Stat(file)
			return err == nil
		})
	}
	await(started)
	if err := run.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	in.Close()
	await(over)
	other.mustRun("run", "--", "ibv_devinfo")
	w.awaitNoProgramObjects()
	if err := run.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := run.Wait(); err != nil {
		t.Errorf("run --trace: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "trace"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^--- [1-9]\d* calls not shown`).Match(b) {
		t.Errorf("trace: got no line about missing calls; its end:\n%s", lastLines(string(b), 5))
	}
}

// TestOnlyOwnerProfilesService tests that the owner of a service can profile it, and that other users cannot.
func TestOnlyOwnerProfilesService(t *testing.T) {
	t.Parallel()
	w := startSharedService(t, "--mode", "0666")
	for _, args := range [][]string{{"heap"}, {"goroutine"}, {"profile", "--seconds", "1"}} {
		out := w.mustRun(append([]string{"debug", "pprof"}, args...)...)
		if !strings.HasPrefix(out, "\x1f\x8b") {
			t.Errorf("debug pprof %v: %.40q", args, out)
		}
	}
	b, err := w.asUser(1001).verbenaCommand(w.contextWithTimeout(20), "debug", "pprof", "heap").CombinedOutput()
	if err == nil || !strings.Contains(string(b), "operation not permitted") {
		t.Errorf("as another user: %v, %.100q", err, b)
	}
}
