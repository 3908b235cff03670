package supervisor

import (
	"log/slog"
	"strings"
	"testing"
)

// TestDebugLog: at the level of Debug the log has who opened and closed a device file, and each command that was
// refused, with the errno, the reason and the user; above that it has none of them.
func TestDebugLog(t *testing.T) {
	var logs logBook
	w := newWorld(t, func(c *SupervisorConfig) { c.Log = logs.loggerAt(slog.LevelDebug) })
	w.mustRunSelf("commands")
	var opened, closed, busy, memory int
	for _, l := range logs.take() {
		if !strings.Contains(l, " uid=") {
			t.Errorf("no user: %s", l)
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
		case !strings.Contains(l, "panic in ioctl"): // which the program asks for
			t.Errorf("logged: %s", l)
		}
	}
	if memory == 0 {
		t.Error("nothing is logged of the process's memory")
	}
	if opened == 0 || opened != closed || busy != 1 {
		t.Errorf("%d device files opened, %d closed, %d commands refused with EBUSY; want as many closed as opened, and 1",
			opened, closed, busy)
	}
}
