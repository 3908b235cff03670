package expire

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib/internal/observe"
)

// The limits of a hold. A held thread continues after holdTime, unless objects are being destroyed meanwhile. It then
// continues after none has been destroyed for holdTime, and at the latest after longestHold.
const (
	holdTime    = 15 * time.Millisecond
	longestHold = 200 * time.Millisecond
	holdTick    = time.Millisecond
	freeTime    = 100 * time.Millisecond // holds of this duration are permitted at once
	holdDraw    = 8                      // one of this number of calls holds
)

var (
	holds   = os.Getenv(Env) == LateThreads || os.Getenv(Env) == LostWakeups
	began   = realTime()
	calls   atomic.Uint64
	holding atomic.Bool
	held    atomic.Int64 // total duration
)

// Hold delays one thread of a consumer at a time, at a place where another thread could run, until the objects that the
// thread may be about to use have been destroyed. In a correct consumer their destruction waits for the thread. The
// sleep is a system call, which takes real time also in a bubble of package testing/synctest. At most half of the time
// a thread is held. Hold has no effect without LateThreads or LostWakeups.
func Hold() {
	if !holds || draw(calls.Add(1))%holdDraw != 0 || held.Load() > int64(freeTime+(realTime()-began)/2) ||
		holding.Swap(true) {
		return
	}
	last, start := observe.Endings.Load(), realTime()
	for changed, now := start, start; now-changed < holdTime && now-start < longestHold; now = realTime() {
		tick := syscall.NsecToTimespec(int64(holdTick))
		_ = syscall.Nanosleep(&tick, nil)
		if n := observe.Endings.Load(); n != last {
			last, changed = n, realTime()
		}
	}
	held.Add(int64(realTime() - start))
	holding.Store(false)
}

// realTime returns the time of the system, also in a bubble.
func realTime() time.Duration {
	var t syscall.Timeval
	if syscall.Gettimeofday(&t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
