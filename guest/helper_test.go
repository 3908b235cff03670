package guest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestByHelper runs what programs do where the supervisor may not access them itself, and asks their launcher.
func TestByHelper(t *testing.T) {
	askHelper = true
	defer func() { askHelper = false }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"ProgramSees", TestProgramSees},
		{"ProgramOpens", TestProgramOpens},
		{"Python", TestPython},
		{"Commands", TestCommands},
		{"Exec", TestExec},
		{"ExitCodes", TestExitCodes},
		{"LastClose", TestLastClose},
		{"KilledProgramLeavesNothing", TestKilledProgramLeavesNothing},
		{"KilledInACommand", TestKilledInACommand},
		{"Orphan", testOrphan},
		{"NoDescriptorIsLeftOver", TestNoDescriptorIsLeftOver},
	} {
		t.Run(c.name, c.test)
	}
}

// testOrphan: a process whose parent has ended is still within the Helper's reach.
func testOrphan(t *testing.T) {
	w := newWorld(t)
	code, out := w.sh(`(setsid sh -c 'sleep 0.3; cat /sys/class/infiniband_verbs/abi_version' &)
		sleep 1`)
	if code != 0 || out != "6\n" {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

// TestAncestorServesItsOwn: a launcher opens what descends from it, and nothing else.
func TestAncestorServesItsOwn(t *testing.T) {
	for _, pid := range []int{1, os.Getppid(), os.Getpid(), 1 << 22} {
		if f, err := (Ancestor{}).OpenMem(pid); err == nil {
			f.Close()
			t.Errorf("opens the memory of %d", pid)
		}
		if f, err := (Ancestor{}).Descriptor(pid, 0); err == nil {
			f.Close()
			t.Errorf("takes a descriptor of %d", pid)
		} else if pid < 1<<22 && !errors.Is(err, unix.EPERM) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}
