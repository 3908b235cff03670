package check

import (
	"strings"
	"time"

	"verbena/ib/internal/observe"
)

// The Go runtime does not report the owner of a lock. The checker therefore looks for a callback that waits for a lock
// while no goroutine of the program runs or is runnable. In this case the owner is asleep, or waits for a sleeping
// goroutine. Consecutive inspections with this result, over restTime, are treated as proof. In a program that is always
// busy, the checker can only rely on Timeout.
const (
	restLooks = 3
	restTime  = 50 * time.Millisecond
)

// countStuckInspection counts inspections that find a callback waiting for a lock while no goroutine runs.
// countStuckInspection reports whether their number is sufficient.
func (f *frame) countStuckInspection(all map[int64]goroutine) bool {
	if f.kind != inCallback || !areAllAsleep(all) {
		f.resting = 0
		return false
	}
	if f.resting++; f.resting == 1 {
		f.restSince = time.Now()
	}
	return f.isLockOwnerAsleep()
}

// isLockOwnerAsleep reports whether inspections have found the owner of the lock asleep.
func (f *frame) isLockOwnerAsleep() bool {
	return f.resting >= restLooks && time.Since(f.restSince) >= restTime
}

// areAllAsleep reports whether all goroutines except the caller sleep or wait for locks.
func areAllAsleep(all map[int64]goroutine) bool {
	self := observe.GoroutineID()
	for id, g := range all {
		if id != self && !g.isAsleep() && !g.isWaitingForLock() && !strings.HasPrefix(g.trace, "os/signal.signal_recv(") {
			return false
		}
	}
	return true
}

// sleepersInPackage returns the sleeping goroutines in the package of the function that waits for the lock.
func (g goroutine) sleepersInPackage(all map[int64]goroutine) (s []Stack) {
	p := g.lockingPackage()
	for _, o := range all {
		if p != "" && o.isAsleep() && strings.Contains("\n"+o.trace, "\n"+p) && len(s) < 4 {
			s = append(s, Stack{"a sleeping goroutine, which may hold it", o.trace})
		}
	}
	return s
}

// lockingPackage returns the package of the innermost function that is not in a package of locks. The name ends with a
// dot.
func (g goroutine) lockingPackage() string {
	for line := range strings.Lines(g.trace) {
		if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "sync.") || strings.HasPrefix(line, "internal/sync.") ||
			strings.HasPrefix(line, "runtime.") {
			continue
		}
		dir := strings.LastIndexByte(line[:max(0, strings.IndexByte(line, '('))], '/') + 1
		if dot := strings.IndexByte(line[dir:], '.'); dot >= 0 {
			return line[:dir+dot+1]
		}
		return ""
	}
	return ""
}
