// Package expire makes the time limits of a consumer expire early. The command ib/ibtest/schedule inserts calls of its
// functions into the sources of a consumer and its tests. A limit that expires early is legal: the device, or the
// thread, may be slow.
//
//	SCHEDULE_FAULT=early-timers   limits expire early
//	SCHEDULE_FAULT=no-failure     no limits expire early, but the race detector observes the consumer
//	SCHEDULE_FAULT=late-threads   the same, and threads pause at locks and other synchronisation
//	SCHEDULE_FAULT=lost-wakeups   the same, with limits ten times as long
//	SCHEDULE_FAULT=long-limits    only longer limits
//	SCHEDULE_SEED=NUMBER          determines which limits expire early
package expire

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib/internal/observe"
)

const (
	// Env is the environment variable with the kind of fault. EarlyTimers is the kind of this package, LateThreads that of
	// the pauses, and NoFailure is none.
	Env         = "SCHEDULE_FAULT"
	EarlyTimers = "early-timers"
	LateThreads = "late-threads"
	NoFailure   = "no-failure"
	// With LostWakeups a consumer that has missed an event waits for a long time. LongLimits has the same limits.
	LostWakeups = "lost-wakeups"
	LongLimits  = "long-limits"
	seedEnv     = "SCHEDULE_SEED"

	// EndLine is printed when a test ends because of a failure.
	EndLine = "schedule: the test ends here"

	// linger is the time for which the process continues after the tests.
	linger   = 100 * time.Millisecond
	shortest = 2 * time.Millisecond // shorter limits do not change
	leap     = time.Hour            // the clock advances once by this time
	patience = 10                   // the ratio of long limits and the consumer's own
)

var (
	on      = os.Getenv(Env) == EarlyTimers
	long    = os.Getenv(Env) == LostWakeups || os.Getenv(Env) == LongLimits
	seed, _ = strconv.ParseUint(os.Getenv(seedEnv), 10, 64)
	limits  atomic.Uint64 // number of limits
	reads   atomic.Uint64 // number of clock readings
	failed  atomic.Bool
	ended   atomic.Bool
	// threads holds the goroutines that have recorded the failure of a test.
	threads sync.Map
)

// AtFailure is called by a goroutine that records the failure of a test, unless it is nil.
var AtFailure func()

// draw returns a pseudo-random number for the n-th use.
func draw(n uint64) uint64 {
	x := seed*0x9e3779b97f4a7c15 + n
	for range 2 {
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x ^= x >> 27
	}
	return x ^ x>>31
}

// Duration returns the time limit d, a shorter one, or a longer one. Duration may not sleep.
func Duration(d time.Duration) time.Duration {
	if long && d < leap {
		return d * patience
	}
	return Period(d)
}

// Period returns the duration d of a sleep, or the period d of a ticker, or a shorter one. Period may not sleep.
func Period(d time.Duration) time.Duration {
	if !on || d < shortest {
		return d
	}
	switch draw(limits.Add(1)) % 6 {
	case 0:
		return time.Microsecond
	case 1:
		return 100 * time.Microsecond
	case 2:
		return time.Millisecond
	}
	return d
}

// timers holds the timers of the consumer.
var timers struct {
	sync.Mutex
	all []*time.Timer
}

// Timer records a timer of the consumer, and returns it. Timer may not sleep.
func Timer(t *time.Timer) *time.Timer {
	if on {
		timers.Lock()
		defer timers.Unlock()
		timers.all = append(timers.all, t)
	}
	return t
}

// Pending makes the timers expire that the consumer has not stopped when its tests have ended. Pending may sleep.
func Pending() {
	timers.Lock()
	for _, t := range timers.all {
		if t.Stop() {
			t.Reset(time.Microsecond)
		}
	}
	timers.Unlock()
	time.Sleep(linger)
}

// Deadline returns the deadline t, or an earlier or later one. Deadline may not sleep.
func Deadline(t time.Time) time.Time {
	d := time.Until(t)
	return t.Add(Duration(d) - d)
}

// leapt returns the time by which the clock has advanced.
func leapt() time.Duration {
	scale := uint64(1) << (draw(0) % 8)
	if !on || reads.Add(1) < scale {
		return 0
	}
	return leap
}

// Now returns the time t, which has just been read, on a clock that advances once. Now may not sleep.
func Now(t time.Time) time.Time { return t.Add(leapt()) }

// Since returns d, the result of time.Since, on this clock. Since may not sleep.
func Since(d time.Duration) time.Duration { return d + leapt() }

// Until returns d, the result of time.Until, on this clock. Until may not sleep.
func Until(d time.Duration) time.Duration { return d - leapt() }

// settle is the time for which a test waits before it ends. The consumer continues in the meantime.
const settle = 300 * time.Millisecond

// Error records that the test has failed, and returns f, the function that reports it. Error may not sleep.
func Error[F any](f F) F {
	failed.Store(true)
	threads.Store(observe.GoroutineID(), nil)
	if AtFailure != nil {
		AtFailure()
	}
	return f
}

// Fatal records that the test ends, and returns f, the function that ends it. Fatal may sleep.
func Fatal[F any](f F) F {
	failed.Store(true)
	if os.Getenv(Env) == "" || ended.Load() {
		return f
	}
	time.Sleep(settle)
	if !ended.Swap(true) {
		fmt.Fprintln(os.Stderr, EndLine)
	}
	return f
}

// HasFailed reports whether a test has failed. Later calls may be mistakes of the test. HasFailed may not sleep.
func HasFailed() bool { return failed.Load() }

// HasFailedHere reports whether the calling goroutine has recorded the failure of a test. It may use the consumer in a
// wrong way afterwards: a consumer may require that its caller closes it after an error. Other threads do not know of
// the error. HasFailedHere may not sleep.
func HasFailedHere() bool {
	_, here := threads.Load(observe.GoroutineID())
	return here
}

// HasEnded reports whether a test has ended because of a failure. HasEnded may not sleep.
func HasEnded() bool { return ended.Load() }
