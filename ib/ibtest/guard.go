package ibtest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// guard is the testing.TB of a check that runs on a goroutine of its own. A check that blocks can be abandoned: the
// driver under test may wait for ever at any point, including the clean-up. Later reports of an abandoned check are
// dropped.
type guard struct {
	testing.TB

	mu       sync.Mutex
	over     bool // the check has ended, or is abandoned
	failed   bool
	skipped  bool
	failure  chan struct{} // closed at the first failure
	cleanups []func()
}

// guarded runs f and then its Cleanup functions, the latest first. It fails t if they exceed limit in all, or
// afterFailure from the first failure on.
func guarded(t testing.TB, limit, afterFailure time.Duration, f func(t testing.TB)) {
	g := &guard{TB: t, failure: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.alone(func() { f(g) })
		for c := g.lastCleanup(); c != nil; c = g.lastCleanup() {
			g.alone(c)
		}
	}()
	end := time.NewTimer(limit)
	defer end.Stop()
	failure := g.failure
	for {
		select {
		case <-failure:
			failure = nil
			end.Reset(afterFailure)
			continue
		case <-end.C:
			t.Errorf("the check hangs, and is given up; all goroutines:\n%s", stacks())
		case <-done:
		}
		break
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	switch {
	case g.failed:
		t.FailNow() //verbena:allow nosleep the goroutine ends here
	case g.skipped && !t.Failed():
		t.SkipNow() //verbena:allow nosleep the goroutine ends here
	}
}

// alone runs f, which may end its goroutine.
func (g *guard) alone(f func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	wg.Wait()
}

func (g *guard) lastCleanup() func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.cleanups)
	if n == 0 {
		return nil
	}
	c := g.cleanups[n-1]
	g.cleanups = slices.Delete(g.cleanups, n-1, n)
	return c
}

// stacks returns the stacks of all goroutines, possibly truncated.
func stacks() []byte {
	buf := make([]byte, 256<<10)
	return buf[:runtime.Stack(buf, true)]
}

// say calls f unless the check is over.
//
//verbena:allow nosleep a finding is told wherever it was made
func (g *guard) say(fails bool, f func()) {
	g.TB.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	f()
	if fails && !g.failed {
		g.failed = true
		close(g.failure)
	}
}

func (g *guard) Log(args ...any) {
	g.TB.Helper()
	s := fmt.Sprintln(args...)
	g.say(false, func() { g.TB.Helper(); g.TB.Log(s) })
}

func (g *guard) Logf(format string, args ...any) { g.TB.Helper(); g.Log(fmt.Sprintf(format, args...)) }

func (g *guard) Error(args ...any) {
	g.TB.Helper()
	s := fmt.Sprintln(args...)
	g.say(true, func() { g.TB.Helper(); g.TB.Error(s) })
}

func (g *guard) Errorf(format string, args ...any) {
	g.TB.Helper()
	g.Error(fmt.Sprintf(format, args...))
}

func (g *guard) Fail() { g.say(true, g.TB.Fail) }

func (g *guard) FailNow() {
	g.Fail()
	runtime.Goexit()
}

func (g *guard) Fatal(args ...any) {
	g.TB.Helper()
	g.Error(args...)
	runtime.Goexit()
}

func (g *guard) Fatalf(format string, args ...any) {
	g.TB.Helper()
	g.Errorf(format, args...)
	runtime.Goexit()
}

func (g *guard) SkipNow() {
	g.mu.Lock()
	g.skipped = true
	g.mu.Unlock()
	runtime.Goexit()
}

func (g *guard) Skip(args ...any) {
	g.TB.Helper()
	g.Log(args...)
	g.SkipNow()
}

func (g *guard) Skipf(format string, args ...any) {
	g.TB.Helper()
	g.Logf(format, args...)
	g.SkipNow()
}

func (g *guard) Failed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

func (g *guard) Skipped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.skipped
}

func (g *guard) Cleanup(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cleanups = append(g.cleanups, f)
}
