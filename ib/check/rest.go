package check

import (
	"strings"
	"time"

	"verbena/ib/internal/observe"
)

// A runtime does not tell which goroutine holds a lock. But where a callback waits for one, and no goroutine of the program runs or
// could run, the holder sleeps, or waits for one that does. Looks that find this in a row, for restTime, are as good as seeing it
// sleep. In a program that is busy all the time only Patience helps.
const (
	restLooks = 3
	restTime  = 50 * time.Millisecond
)

// rests counts looks that have found nothing running, for a callback that waits for a lock, and reports whether they suffice.
func (f *frame) rests(all map[int64]goroutine) bool {
	if f.kind != inCallback || !atRest(all) {
		f.resting = 0
		return false
	}
	if f.resting++; f.resting == 1 {
		f.restSince = time.Now()
	}
	return f.asleep()
}

// asleep reports that whatever the callback waits for has been seen asleep.
func (f *frame) asleep() bool { return f.resting >= restLooks && time.Since(f.restSince) >= restTime }

// atRest reports that all goroutines but the calling one sleep, or wait for locks.
func atRest(all map[int64]goroutine) bool {
	self := observe.Goroutine()
	for id, g := range all {
		if id != self && !g.sleeps() && !g.waitsForLock() && !strings.HasPrefix(g.trace, "os/signal.signal_recv(") {
			return false
		}
	}
	return true
}

// suspects are the sleeping goroutines that are in the package of the function that waits for the lock.
func (g goroutine) suspects(all map[int64]goroutine) (s []Stack) {
	p := g.lockedIn()
	for _, o := range all {
		if p != "" && o.sleeps() && strings.Contains("\n"+o.trace, "\n"+p) && len(s) < 4 {
			s = append(s, Stack{"a sleeping goroutine, which may hold it", o.trace})
		}
	}
	return s
}

// lockedIn is the package, with the dot after it, of the innermost function that is not of the packages of locks.
func (g goroutine) lockedIn() string {
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
