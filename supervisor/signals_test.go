package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

// launcher is a process that has started the program "signals".
type launcher struct {
	*exec.Cmd
	output *programOutput
}

func startLauncher(t *testing.T, attr *syscall.SysProcAttr, in, out, outReader *os.File) *launcher {
	t.Helper()
	if err := Probe(); err != nil {
		t.Skip(err)
	}
	l := &launcher{exec.Command("/proc/self/exe"), &programOutput{end: make(chan struct{})}}
	l.Env = append(os.Environ(), programEnvVar+"=launcher", "GORACE=atexit_sleep_ms=0")
	l.Stdin, l.Stdout, l.Stderr = in, out, out
	l.SysProcAttr = attr
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	go l.output.copyFrom(outReader)
	l.waitForOutput(t, "ready")
	return l
}

func (l *launcher) waitForOutput(t *testing.T, what string) {
	t.Helper()
	testutil.Eventually(t, fmt.Sprintf("%q to be printed", what), func() bool {
		return strings.Contains(l.output.String(), what)
	})
}

// finish ends the program with SIGTERM and returns its output lines.
func (l *launcher) finish(t *testing.T) []string {
	t.Helper()
	if err := l.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := l.Wait()
	<-l.output.end
	out := l.output.String()
	if code := l.ProcessState.ExitCode(); code != 7 {
		t.Fatalf("exit code: got %d (%v), want 7; output:\n%s", code, err, out)
	}
	return strings.Fields(strings.ReplaceAll(out, " ", "_"))
}

// TestLauncherSignalsReachProgramOnce tests that signals sent only to the launcher reach the program once, including
// those of the keyboard when the launcher is not in the foreground.
func TestLauncherSignalsReachProgramOnce(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := startLauncher(t, &syscall.SysProcAttr{Setsid: true}, nil, wr, rd)
	want := []string{"ready"}
	for _, tt := range []struct {
		sig  syscall.Signal
		name string
	}{{unix.SIGINT, "interrupt"}, {unix.SIGQUIT, "quit"}, {unix.SIGHUP, "hangup"}, {unix.SIGUSR1,
		"user_defined_signal_1"}, {unix.SIGCONT, "continued"}} {
		if err := l.Process.Signal(tt.sig); err != nil {
			t.Fatal(err)
		}
		l.waitForOutput(t, strings.ReplaceAll(tt.name, "_", " "))
		want = append(want, tt.name)
	}
	if got := l.finish(t); !slices.Equal(got, append(want, "terminated")) {
		t.Errorf("output: got %q, want %q", got, want)
	}
}

// TestLauncherStopsWithProgram tests that a launcher passes SIGTSTP on and then stops, and that it continues together
// with the program.
func TestLauncherStopsWithProgram(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := startLauncher(t, &syscall.SysProcAttr{Setpgid: true}, nil, wr, rd)
	for n := range 2 {
		if err := l.Process.Signal(unix.SIGTSTP); err != nil {
			t.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(l.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() ||
			status.StopSignal() != unix.SIGSTOP {
			t.Fatalf("status of the launcher: got %#x and error %v, want stopped", status, err)
		}
		testutil.Eventually(t, "the program to be stopped", func() bool {
			return strings.Count(l.output.String(), "stopped") == n+1
		})
		if err := l.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if _, err := syscall.Wait4(l.Process.Pid, &status, syscall.WCONTINUED, nil); err != nil || !status.Continued() {
			t.Fatalf("status of the launcher: got %#x and error %v, want continued", status, err)
		}
		// A stop would discard a pending SIGCONT.
		testutil.Eventually(t, "the program to be continued", func() bool {
			return strings.Count(l.output.String(), "continued") == n+1
		})
	}
	want := []string{"ready", "stopped", "continued", "stopped", "continued", "terminated"}
	if got := l.finish(t); !slices.Equal(got, want) {
		t.Errorf("output: got %q, want %q", got, want)
	}
}

// TestTerminalSignalArrivesOnce tests that a signal that the terminal sends to the process group reaches the program
// once.
func TestTerminalSignalArrivesOnce(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skip(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer tty.Close()
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := startLauncher(t, &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}, tty, wr, rd)
	want := []string{"ready"}
	for range 3 {
		if _, err := master.WriteString("\x03\x1c"); err != nil { // ^C and ^\
			t.Fatal(err)
		}
		want = append(want, "interrupt", "quit")
		testutil.Eventually(t, "signals", func() bool { return strings.Count(l.output.String(), "\n") >= len(want) })
	}
	got := l.finish(t)
	slices.Sort(got[1 : len(got)-1]) // two simultaneous signals arrive in any order
	slices.Sort(want[1:])
	if !slices.Equal(got, append(want, "terminated")) {
		t.Errorf("output: got %q, want %q", got, want)
	}
}

// TestWithoutSIGPROF tests that SIGPROF is blocked while the function runs, and that the signal mask is restored.
func TestWithoutSIGPROF(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	blocked := func() bool {
		t.Helper()
		var now unix.Sigset_t
		if err := unix.PthreadSigmask(unix.SIG_BLOCK, nil, &now); err != nil {
			t.Fatal(err)
		}
		return now.Val[0]&(1<<(unix.SIGPROF-1)) != 0
	}
	within := false
	if err := withoutSIGPROF(func() { within = blocked() }); err != nil {
		t.Fatal(err)
	}
	if !within || blocked() {
		t.Errorf("SIGPROF blocked: got %v within and %v after, want true and false", within, blocked())
	}
}
