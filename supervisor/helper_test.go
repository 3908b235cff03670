package supervisor

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProgramsWithHelper runs the programs of other tests with a supervisor that may not access them and asks their
// launcher instead.
func TestProgramsWithHelper(t *testing.T) {
	askHelper = true
	defer func() { askHelper = false }()
	for _, c := range []struct {
		name  string
		test  func(*testing.T)
		short bool // the test also runs with -short
	}{
		{"ProgramSees", TestProgramSeesDeviceFiles, false},
		{"ProgramOpens", TestProgramOpens, true},
		{"Python", TestPythonUsesDevice, false},
		{"Commands", TestCommands, true},
		{"Exec", TestExecOfScripts, false},
		{"ExitCodes", TestExitCodes, false},
		{"LastClose", TestLastClose, false},
		{"KilledProgramLeavesNothing", TestKilledProgramLeavesNothing, false},
		{"KilledInACommand", TestKilledInACommand, true},
		{"Orphan", testOrphanAccess, true},
		{"NoDescriptorIsLeftOver", TestNoDescriptorIsLeftOver, false},
	} {
		if testing.Short() && !c.short {
			continue
		}
		t.Run(c.name, c.test)
	}
}

// testOrphanAccess tests that the Helper can access a process after the end of its parent.
func testOrphanAccess(t *testing.T) {
	w := newFixture(t)
	code, out := w.runShell(`(setsid sh -c 'sleep 0.3; cat /sys/class/infiniband_verbs/abi_version' &)
		sleep 1`)
	if code != 0 || out != "6\n" {
		t.Errorf("exit code and output: got %d and %q, want 0 and 6", code, out)
	}
}

// TestAncestorOpensOnlyDescendants tests that a launcher opens only the memory of its descendants.
func TestAncestorOpensOnlyDescendants(t *testing.T) {
	for _, pid := range []int{1, os.Getppid(), os.Getpid(), 1 << 22} {
		if f, err := (Ancestor{}).OpenMem(pid); err == nil {
			f.Close()
			t.Errorf("OpenMem of process %d: got success, want an error", pid)
		} else if pid < 1<<22 && !errors.Is(err, unix.EPERM) {
			t.Errorf("OpenMem of process %d: got %v, want EPERM", pid, err)
		}
	}
}

// TestEndedThreadIsNotLogged tests that the supervisor logs a refusal of the helper, but not the end of a thread in its
// call by another thread's exec.
func TestEndedThreadIsNotLogged(t *testing.T) {
	c := exec.Command("/bin/true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	ended := c.Process.Pid
	var logs logRecorder
	s := &Session{sup: &Supervisor{}, log: logs.logger(), helper: Ancestor{}, asksOnly: true}
	if _, err := s.readThreadMemory(ended, 1<<20, make([]byte, 1)); err != unix.ESRCH {
		t.Errorf("read of an ended thread: got %v, want ESRCH", err)
	}
	if l := logs.takeLines(); len(l) > 0 {
		t.Errorf("log: got %q, want no lines", l)
	}
	if _, err := s.readThreadMemory(os.Getppid(), 1<<20, make([]byte, 1)); !errors.Is(err, unix.EPERM) {
		t.Errorf("read of a process that is not a descendant: got %v, want EPERM", err)
	}
	if l := logs.takeLines(); len(l) != 1 {
		t.Errorf("log: got %q, want 1 line", l)
	}
}
