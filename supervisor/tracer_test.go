package supervisor

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTraced runs programs that name their supervisor before they are executed: they fare as others do.
func TestTraced(t *testing.T) {
	pidfd := openPidfd(t, os.Getpid())
	askHelper, tracer = true, &Tracer{PID: os.Getpid(), Pidfd: pidfd, Exec: "/proc/self/exe"}
	defer func() { askHelper, tracer = false, nil }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Commands", TestCommands},
		{"Exec", TestExec},
		{"ExitCodes", TestExitCodes},
		{"PassesOnWhatItHas", TestPassesOnWhatItHas},
		{"SignalsArePassedOn", TestSignalsArePassedOn},
		{"NoDescriptorIsLeftOver", TestNoDescriptorIsLeftOver},
	} {
		t.Run(c.name, c.test)
	}
	t.Run("Descriptors", func(t *testing.T) {
		w := newWorld(t)
		code, out := w.sh("ls /proc/$$/fd; ulimit -n")
		tracer = nil
		if plain, want := w.sh("ls /proc/$$/fd; ulimit -n"); code != plain || out != want {
			t.Errorf("got %q (exit code %d), want %q (%d), as without a tracer", out, code, want, plain)
		}
	})
}

// TestTracerCannotExecute: then the program starts without it.
func TestTracerCannotExecute(t *testing.T) {
	tracer = &Tracer{PID: os.Getpid(), Pidfd: openPidfd(t, os.Getpid()), Exec: "/no/such/file"}
	defer func() { tracer = nil }()
	w := newWorld(t)
	if code, out := w.sh("echo started"); code != 0 || out != "started\n" {
		t.Errorf("exit code %d, printed %q", code, out)
	}
}

func TestEnded(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd := openPidfd(t, c.Process.Pid)
	if ended(int(pidfd.Fd())) {
		t.Error("a process that runs has ended")
	}
	c.Process.Kill()
	c.Wait()
	if !ended(int(pidfd.Fd())) {
		t.Error("a process that has ended runs")
	}
	if !ended(1 << 20) {
		t.Error("no pidfd is of a process that runs")
	}
}

// TestExecTracedReturns for the arguments of other programs.
func TestExecTracedReturns(t *testing.T) {
	for _, args := range [][]string{
		nil, {"verbena"}, {"verbena", "run"}, {"verbena", execTraced}, {"verbena", execTraced, "1", "3", "/bin/true"},
		{"verbena", execTraced, "x", "3", "/bin/true", "true"}, {"verbena", execTraced, "1", "x", "/bin/true", "true"},
	} {
		ExecTraced(args)
	}
}

func openPidfd(t *testing.T, pid int) *os.File {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "pidfd "+strconv.Itoa(pid))
	t.Cleanup(func() { f.Close() })
	return f
}
