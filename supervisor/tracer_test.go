package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTracedProgramsBehaveAlike tests that programs that name their supervisor before the exec behave like other
// programs.
func TestTracedProgramsBehaveAlike(t *testing.T) {
	pidfd := openPidfd(t, os.Getpid())
	askHelper, tracer = true, &Tracer{PID: os.Getpid(), Pidfd: pidfd, Exec: "/proc/self/exe"}
	defer func() { askHelper, tracer = false, nil }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Commands", TestCommands},
		{"Exec", TestExecOfScripts},
		{"ExitCodes", TestExitCodes},
		{"ProgramInheritsAttributes", TestProgramInheritsAttributes},
		{"SignalsArePassedOn", TestSignalsArePassedOn},
		{"NoDescriptorIsLeftOver", TestNoDescriptorIsLeftOver},
	} {
		if testing.Short() && c.name == "NoDescriptorIsLeftOver" {
			continue // takes seconds, and runs without a tracer elsewhere
		}
		t.Run(c.name, c.test)
	}
	t.Run("Descriptors", func(t *testing.T) {
		w := newFixture(t)
		code, out := w.runShell("ls /proc/$$/fd; ulimit -n")
		tracer = nil
		if plain, want := w.runShell("ls /proc/$$/fd; ulimit -n"); code != plain || out != want {
			t.Errorf("program with a tracer: got %q (exit code %d), want %q (%d)", out, code, want, plain)
		}
	})
}

// TestTracedProgramInheritsDescriptors tests that descriptors of the launcher's parent, such as those of make's job
// server, reach the program at their numbers, as without a tracer.
func TestTracedProgramInheritsDescriptors(t *testing.T) {
	script := ""
	for n := 3; n < 9; n++ {
		if flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err == nil {
			defer unix.FcntlInt(uintptr(n), unix.F_SETFD, flags)
			_, _ = unix.FcntlInt(uintptr(n), unix.F_SETFD, flags&^unix.FD_CLOEXEC)
		} else {
			if n, err = unix.FcntlInt(0, unix.F_DUPFD, n); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(n)
		}
		script += fmt.Sprintf("[ -e /proc/$$/fd/%d ] && echo %d; ", n, n)
	}
	tracer = &Tracer{PID: os.Getpid(), Pidfd: openPidfd(t, os.Getpid()), Exec: "/proc/self/exe"}
	defer func() { tracer = nil }()
	if code, out := newFixture(t).runShell(script + "true"); code != 0 || out != "3\n4\n5\n6\n7\n8\n" {
		t.Errorf("got exit code %d and descriptors %q, want 0 and 3 to 8", code, out)
	}
}

// TestProgramStartsWithoutTracer tests that the program starts without the tracer if the launcher cannot execute
// itself.
func TestProgramStartsWithoutTracer(t *testing.T) {
	tracer = &Tracer{PID: os.Getpid(), Pidfd: openPidfd(t, os.Getpid()), Exec: "/no/such/file"}
	defer func() { tracer = nil }()
	w := newFixture(t)
	if code, out := w.runShell("echo started"); code != 0 || out != "started\n" {
		t.Errorf("exit code and output: got %d and %q, want 0 and started", code, out)
	}
}

func TestHasEnded(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd := openPidfd(t, c.Process.Pid)
	if hasEnded(int(pidfd.Fd())) {
		t.Error("ended of a running process: got true, want false")
	}
	c.Process.Kill()
	c.Wait()
	if !hasEnded(int(pidfd.Fd())) {
		t.Error("ended of an ended process: got false, want true")
	}
	if !hasEnded(1 << 20) {
		t.Error("ended of a closed pidfd: got false, want true")
	}
}

// TestExecTracedReturns tests that ExecTraced returns if the arguments are those of another program.
func TestExecTracedReturns(t *testing.T) {
	for _, args := range [][]string{
		nil, {"verbena"}, {"verbena", "run"}, {"verbena", execTraced}, {"verbena", execTraced, "1", "3", "4", "/bin/true"},
		{"verbena", execTraced, "x", "3", "4", "/bin/true", "true"}, {"verbena", execTraced, "1", "x", "4", "/bin/true",
			"true"},
		{"verbena", execTraced, "1", "3", "x", "/bin/true", "true"},
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
