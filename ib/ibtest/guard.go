package ibtest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// guardedTB is the testing.TB of a check that runs on a goroutine of its own. A check that blocks can be abandoned: the
// driver under test may wait for ever at any point, including the clean-up. Later reports of an abandoned check are
// dropped.
type guardedTB struct {
	testing.TB

	mu       sync.Mutex
	over     bool // the check has ended, or is abandoned
	failed   bool
	skipped  bool
	failure  chan struct{} // closed at the first failure
	cleanups []func()
}

// runWithTimeLimit runs f and then its Cleanup functions, the latest first. It fails t if they exceed limit in all, or
// afterFailure from the first failure on.
func runWithTimeLimit(t testing.TB, limit, afterFailure time.Duration, f func(t testing.TB)) {
	g := &guardedTB{TB: t, failure: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.runOnGoroutine(func() { f(g) })
		for c := g.popCleanup(); c != nil; c = g.popCleanup() {
			g.runOnGoroutine(c)
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
			t.Errorf("the check hangs, and is given up; all goroutines:\n%s", allStacks())
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

// runOnGoroutine runs f, which may end its goroutine.
func (g *guardedTB) runOnGoroutine(f func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	wg.Wait()
}

func (g *guardedTB) popCleanup() func() {
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

// allStacks returns the stacks of all goroutines, possibly truncated.
func allStacks() []byte {
	buf := make([]byte, 256<<10)
	return buf[:runtime.Stack(buf, true)]
}

// callUnlessOver calls f unless the check is over.
//
//verbena:allow nosleep a finding is told wherever it was made
func (g *guardedTB) callUnlessOver(fails bool, f func()) {
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

func (g *guardedTB) Log(args ...any) {
	g.TB.Helper()
	s := fmt.Sprintln(args...)
	g.callUnlessOver(false, func() { g.TB.Helper(); g.TB.Log(s) })
}

func (g *guardedTB) Logf(format string, args ...any) {
	g.TB.Helper()
	g.Log(fmt.Sprintf(format, args...))
}

func (g *guardedTB) Error(args ...any) {
	g.TB.Helper()
	s := fmt.Sprintln(args...)
	g.callUnlessOver(true, func() { g.TB.Helper(); g.TB.Error(s) })
}

func (g *guardedTB) Errorf(format string, args ...any) {
	g.TB.Helper()
	g.Error(fmt.Sprintf(format, args...))
}

func (g *guardedTB) Fail() { g.callUnlessOver(true, g.TB.Fail) }

func (g *guardedTB) FailNow() {
	g.Fail()
	runtime.Goexit()
}

func (g *guardedTB) Fatal(args ...any) {
	g.TB.Helper()
	g.Error(args...)
	runtime.Goexit()
}

func (g *guardedTB) Fatalf(format string, args ...any) {
	g.TB.Helper()
	g.Errorf(format, args...)
	runtime.Goexit()
}

func (g *guardedTB) SkipNow() {
	g.mu.Lock()
	g.skipped = true
	g.mu.Unlock()
	runtime.Goexit()
}

func (g *guardedTB) Skip(args ...any) {
	g.TB.Helper()
	g.Log(args...)
	g.SkipNow()
}

func (g *guardedTB) Skipf(format string, args ...any) {
	g.TB.Helper()
	g.Logf(format, args...)
	g.SkipNow()
}

func (g *guardedTB) Failed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

func (g *guardedTB) Skipped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.skipped
}

func (g *guardedTB) Cleanup(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cleanups = append(g.cleanups, f)
}
