package supervisor

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestEachCallIsTracedOnce tests that each answered call is traced once, with its arguments, result and time.
// Doorbells, calls continued in the kernel, and calls of other sessions are not traced.
func TestEachCallIsTracedOnce(t *testing.T) {
	w := newFixture(t)
	var traced logRecorder
	w.trace = func(line string) { traced.logf("%s", line) }
	r := w.startSelf("hold")
	w.waitForText(r, "open")
	w.trace = nil
	w.mustRunSelf("opens", deviceFile)
	w.mustRunSelf("opens", deviceFile)
	before := len(traced.takeLines())
	r.Signal(9)
	w.waitForExit(r)
	if more := traced.takeLines(); before == 0 || len(more) > 0 {
		t.Errorf("traced lines: got %d, want some; lines of other sessions: got %q, want none", before, more)
	}

	w.trace = func(line string) { traced.logf("%s", line) }
	if code, out := w.runShell(
		"cat /sys/class/infiniband/rxe0/node_type /etc/hostname; cat /sys/class/infiniband/rxe0/nosuch"); code == 0 {
		t.Errorf("exit code: got 0, want an error; printed %s", out)
	}
	w.mustRunSelf("commands") // the commands include doorbells
	w.logs.takeLines()        // removes the log of the panic that the program causes
	lines := traced.takeLines()
	line := regexp.MustCompile(`^\d+ [a-z0-9]+\(.*\) = (-1 E[A-Z]+ \(.+\)|\d+) <\d+\.\d{6}>$`)
	for _, l := range lines {
		if !line.MatchString(l) {
			t.Errorf("line of the trace: got %q, want the format of the trace", l)
		}
		if strings.Contains(l, "/etc/hostname") {
			t.Errorf("line for a call continued in the kernel: got %s, want none", l)
		}
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		`openat\(AT_FDCWD, "/sys/class/infiniband/rxe0/node_type", O_RDONLY.*\) = \d+ <`,
		`openat\(AT_FDCWD, "/sys/class/infiniband/rxe0/nosuch", O_RDONLY.*\) = -1 ENOENT \(no such file or directory\) <`,
		fmt.Sprintf(`openat\(AT_FDCWD, "%s", O_RDWR\|O_CLOEXEC\) = \d+ <`, deviceFile),
		`ioctl\(\d+<uverbs0>, 0xc0181b01, 0x[0-9a-f]+\) = 0 <`,
		`ioctl\(.*\) = -1 EBUSY \(the object is in use: device or resource busy\) <`,
	} {
		if !regexp.MustCompile(want).MatchString(all) {
			t.Errorf("trace: got no line that matches %s, want one:\n%s", want, all)
		}
	}
	if strings.Contains(all, "write(") {
		t.Errorf("lines for doorbells: got some, want none:\n%s", all)
	}
}
