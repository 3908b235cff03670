//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"verbena/internal/testutil"
)

// TestRunPassesArgumentsThrough tests that run passes arguments, output and exit codes through.
func TestRunPassesArgumentsThrough(t *testing.T) {
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	notExecutable := filepath.Join(t.TempDir(), "plain")
	os.WriteFile(notExecutable, []byte("x"), 0o644)
	for _, c := range []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout string
		stderr string // text that standard error must contain
	}{
		{"exit code 0", []string{"true"}, "", 0, "", ""},
		{"exit code 7", []string{"sh", "-c", "exit 7"}, "", 7, "", ""},
		{"killed by a signal", []string{"sh", "-c", "kill -TERM $$"}, "", 128 + 15, "", ""},
		{"standard input and output", []string{"cat"}, "hello", 0, "hello", ""},
		{"standard error", []string{"sh", "-c", "echo oops >&2"}, "", 0, "", "oops"},
		{"arguments as they are", []string{"printf", "%s|", "a b", "", "--x", "*"}, "", 0, "a b||--x|*|", ""},
		{"not found", []string{"no-such-program"}, "", 127, "", "no-such-program"},
		{"path not found", []string{"/no/such/program"}, "", 127, "", "/no/such/program"},
		{"not executable", []string{notExecutable}, "", 126, "", "permission denied"},
		{"directory", []string{"/tmp"}, "", 126, "", "/tmp"},
		{"nested", []string{verbenaBinary(t), "run", "--", "true"}, "", 125, "", "omit the inner `verbena run`"},
		{"files of the host", []string{"cat", "/proc/sys/kernel/ostype"}, "", 0, "Linux\n", ""},
		{"the device file", []string{"stat", "-c", "%F", "/dev/infiniband/uverbs0"}, "", 0, "character special file\n", ""},
		{"listing the devices", []string{"ls", "/sys/class/infiniband"}, "", 0, "rxe0\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := w.verbenaCommand(w.contextWithTimeout(20), append([]string{"run", "--"}, c.args...)...)
			var stdout, stderr bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &stdout, &stderr
			code := exitCode(cmd.Run())
			if code != c.code || stdout.String() != c.stdout || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("run: got exit code %d, want %d; stdout %q, want %q; stderr %q, want %q in it", code, c.code,
					stdout.String(),
					c.stdout, stderr.String(), c.stderr)
			}
			if code >= 125 && code < 128 && strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("error message: got %q, want a single line", stderr.String())
			}
		})
	}
}

// TestSignalsReachProgram tests that a signal to the launcher reaches the program.
func TestSignalsReachProgram(t *testing.T) {
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			if signal.Ignored(sig) {
				t.Log("the signal is ignored here, as below nohup(1), and thus in the started programs")
				return
			}
			cmd := w.verbenaCommand(w.contextWithTimeout(20), "run", "--", "sh", "-c",
				`trap 'echo got; exit 3' TERM INT USR1 HUP; echo ready; while :; do sleep 0.02; done`)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var b [64]byte
			n, _ := out.Read(b[:])
			if string(b[:n]) != "ready\n" {
				t.Fatalf("read %q", b[:n])
			}
			cmd.Process.Signal(sig)
			n, _ = out.Read(b[:])
			if err := cmd.Wait(); exitCode(err) != 3 || string(b[:n]) != "got\n" {
				t.Errorf("program with a signal: got exit code %d, want 3; read %q", exitCode(err), b[:n])
			}
		})
	}
}

// TestServiceStartsOnDemand tests that the first run starts a service, that several programs share the service, and
// that `stop` ends it.
func TestServiceStartsOnDemand(t *testing.T) {
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			w := newTestService(t, u, "")
			t.Cleanup(func() { w.verbenaCommand(context.Background(), "stop").Run() })
			// Concurrent runs must use one service.
			var cmds []*exec.Cmd
			for range 4 {
				c := w.verbenaCommand(w.contextWithTimeout(30), "run", "--", "sleep", "0.3")
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				cmds = append(cmds, c)
			}
			for _, c := range cmds {
				if err := c.Wait(); err != nil {
					b, _ := os.ReadFile(w.socket + ".log")
					t.Errorf("%v\n%s", err, b)
				}
			}
			if out := w.mustRun("link", "show"); !strings.Contains(out, "rxe0") {
				t.Errorf("link show: %s", out)
			}
			w.mustRun("stop")
			testutil.Eventually(t, "the service to end", func() bool {
				return exitCode(w.verbenaCommand(context.Background(), "link", "show").Run()) == 125
			})
		})
	}
}

// TestPrivateServiceServesItsProgram tests that only the program of a private service finds the control socket. The
// socket is removed at the end.
func TestPrivateServiceServesItsProgram(t *testing.T) {
	w := newTestService(t, testUsers()[0], "")
	out := w.mustRun("run", "--private", "--link", "rxe5="+unusedAddr(), "--", "sh", "-c",
		`echo "$VERBENA_SOCKET" && "$0" fault add --dev rxe5 --drop 1% && "$0" fault show`, verbenaBinary(t))
	socket, faults, _ := strings.Cut(out, "\n")
	if !strings.Contains(faults, "rxe5") {
		t.Errorf("fault show of the program: got %s, want a rule of rxe5", faults)
	}
	if dir := filepath.Dir(socket); !filepath.IsAbs(dir) {
		t.Errorf("control socket of the program: got %q, want an absolute path", socket)
	} else if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory of the control socket: got %v, want it removed", err)
	}
	if _, err := os.Stat(w.socket); err == nil {
		t.Error("private service: created the control socket of the user's service")
	}
}

// TestInvalidInputIsRefused tests that invalid input causes exit code 125 and a single line with the reason, and that
// the service continues.
func TestInvalidInputIsRefused(t *testing.T) {
	addr := unusedAddr()
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+addr)
	other := newTestService(t, testUsers()[0], "")
	for _, c := range []struct {
		name string
		w    *testService
		args []string
		want string
	}{
		{"no service", other, []string{"link", "show"}, "no service is running"},
		{"no such address", w, []string{"link", "add", "rxe1", "--addr", "203.0.113.9"}, "203.0.113.9"},
		{"not an address", w, []string{"link", "add", "rxe1", "--addr", "nowhere"}, "nowhere"},
		{"no such interface", w, []string{"link", "add", "rxe1", "--netdev", "nope0"}, "nope0"},
		{"address in use", w, []string{"link", "add", "rxe1", "--addr", addr}, "address of link rxe0"},
		{"name taken", w, []string{"link", "add", "rxe0", "--addr", unusedAddr()}, "exists"},
		{"bad name", w, []string{"link", "add", "mlx5_0", "--addr", unusedAddr()}, "rxe"},
		{"delete what is not there", w, []string{"link", "del", "rxe9"}, "there are: rxe0"},
		{"fault on no device", w, []string{"fault", "add", "--dev", "rxe9", "--drop", "1%"}, "rxe9"},
		{"fault with nonsense", w, []string{"fault", "add", "--dev", "rxe0", "--drop", "150%"}, "150%"},
		{"second service", w, []string{"serve", "--link", "rxe0=" + unusedAddr()}, "running already"},
		{"no program", w, []string{"run"}, "PROGRAM"},
		{"flags of a private service", w, []string{"run", "--wire", "--", "true"}, "--private"},
		{"no such flag", w, []string{"run", "--nonsense", "--", "true"}, "--nonsense"},
		{"private service on a taken port", w, []string{"run", "--private", "--link", "rxe0=" + addr, "--", "true"}, "4791"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := c.w.verbenaCommand(c.w.contextWithTimeout(20), c.args...).CombinedOutput()
			if exitCode(err) != 125 || !strings.Contains(string(out), c.want) {
				t.Errorf("command: got exit code %d, want 125; got %q, want %q in it", exitCode(err), out, c.want)
			}
		})
	}
	w.mustRun("run", "--", "true")
}

// TestProgramsRunWithFullShm tests that programs need no space on /dev/shm for their queues. A service needs a little
// space on /dev/shm for virtual files. Without space its error must name the remedy.
func TestProgramsRunWithFullShm(t *testing.T) {
	needRoot(t)
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	full := newTestService(t, testUsers()[0], "")
	script := `mount -t tmpfs -o size=4m tmpfs /dev/shm; "$0" serve --link rxe0=$1 2>$2/log & service=$!; "$0" wait
		head -c 8m /dev/zero >/dev/shm/others 2>/dev/null
		"$0" run -- ibv_rc_pingpong -d rxe0 -g 1 -r 16000 -p 18517 >$2/server & server=$!
		"$0" wait --listen 18517; timeout 20 "$0" run -- ibv_rc_pingpong -d rxe0 -g 1 -r 16000 -p 18517 127.0.0.1 >$2/client
		wait $server && grep -q iters $2/client || echo "programs have failed"
		rm /dev/shm/others
		"$0" run -- ibv_devinfo >/dev/null || echo "programs have failed afterwards"
		kill $service; wait $service; cat $2/log`
	cmd := exec.CommandContext(full.contextWithTimeout(60), "unshare", "-m", "sh", "-c", script, verbenaBinary(t),
		unusedAddr(),
		t.TempDir())
	cmd.Env = append(os.Environ(), "VERBENA_SOCKET="+full.socket)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "have failed") {
		t.Errorf("%v: %s", err, out)
	}
	// A service cannot start without space for the files below /sys.
	for _, size := range []string{"4k", "64k"} {
		script := `mount -t tmpfs -o size=` + size + ` tmpfs /dev/shm && exec "$0" run --private --link rxe0=` +
			unusedAddr() +
			` -- ibv_devinfo`
		cmd := exec.Command("unshare", "-m", "sh", "-c", script, verbenaBinary(t))
		out, err := cmd.CombinedOutput()
		if code := exitCode(err); code != 125 || strings.Count(string(out), "\n") != 1 ||
			!strings.Contains(string(out), "no space left") ||
			!strings.Contains(string(out), "df /dev/shm") || !strings.Contains(string(out), "--shm-size") {
			t.Errorf("%s of /dev/shm: got exit code %d, want 125 and one line with the remedy:\n%s", size, code, out)
		}
	}
	w.mustRun("run", "--", "true")
}
