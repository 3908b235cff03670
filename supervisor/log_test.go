package supervisor

import (
	"log/slog"
	"strings"
	"testing"
)

// TestDebugLogShowsFiles tests that the log at level Debug shows each open and close of a device file with its user,
// and each refused command with its errno, reason and user. At higher levels the log shows none of these events.
func TestDebugLogShowsFiles(t *testing.T) {
	var logs logRecorder
	w := newFixture(t, func(c *SupervisorConfig) { c.Log = logs.loggerAt(slog.LevelDebug) })
	w.mustRunSelf("commands")
	var opened, closed, busy, memory int
	for _, l := range logs.takeLines() {
		if !strings.Contains(l, " uid=") {
			t.Errorf("log line: got %s, want one with \" uid=\"", l)
		}
		switch {
		case strings.Contains(l, `level=DEBUG msg="device file opened"`) && strings.Contains(l, " dev=uverbs0 fd="):
			opened++
		case strings.Contains(l, `level=DEBUG msg="device file closed"`) && strings.Contains(l, " dev=uverbs0"):
			closed++
		case strings.Contains(l, `level=DEBUG msg="memory of a process opened"`) && strings.Contains(l, " by=service"):
			memory++
		case strings.Contains(l, `level=DEBUG msg="command refused"`):
			if strings.Contains(l, ` dev=uverbs0 errno=EBUSY err="the object is in use`) {
				busy++
			}
		case !strings.Contains(l, "panic in ioctl"): // the program causes this panic
			t.Errorf("log: got %s, want only panics of an ioctl", l)
		}
	}
	if memory == 0 {
		t.Error("log lines about the process's memory: got none, want one")
	}
	if opened == 0 || opened != closed || busy != 1 {
		t.Errorf("got %d device files opened, %d closed and %d commands refused with EBUSY, want as many closed as opened and 1 refused",
			opened, closed, busy)
	}
}
