package ibtest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// recordingTB is a testing.TB that records failures instead of failing the test.
type recordingTB struct {
	testing.TB // for all other methods

	mu       sync.Mutex
	failed   bool
	skipped  bool
	log      []string
	onFail   map[int]func()
	hooks    int
	cleanups []func()
}

func (r *recordingTB) recordOutput(fail bool, s string) {
	r.mu.Lock()
	r.log = append(r.log, s)
	var hooks map[int]func()
	if fail {
		r.failed = true
		hooks, r.onFail = r.onFail, nil
	}
	r.mu.Unlock()
	for _, f := range hooks {
		go f() // the caller may be in a report
	}
}

// onNextFailure makes the next failure call f, which releases the locks of a defect. off cancels that.
func (r *recordingTB) onNextFailure(f func()) (off func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.onFail == nil {
		r.onFail = map[int]func(){}
	}
	r.hooks++
	id := r.hooks
	r.onFail[id] = f
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.onFail, id)
	}
}

func (r *recordingTB) Helper()                   {}
func (r *recordingTB) Name() string              { return "recorder" }
func (r *recordingTB) Log(args ...any)           { r.recordOutput(false, fmt.Sprintln(args...)) }
func (r *recordingTB) Logf(f string, a ...any)   { r.recordOutput(false, fmt.Sprintf(f, a...)) }
func (r *recordingTB) Error(args ...any)         { r.recordOutput(true, fmt.Sprintln(args...)) }
func (r *recordingTB) Errorf(f string, a ...any) { r.recordOutput(true, fmt.Sprintf(f, a...)) }
func (r *recordingTB) Fail()                     { r.recordOutput(true, "failed") }
func (r *recordingTB) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *recordingTB) Fatal(args ...any)         { r.Error(args...); runtime.Goexit() }
func (r *recordingTB) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recordingTB) SkipNow()                  { r.skipped = true; runtime.Goexit() }
func (r *recordingTB) Skip(args ...any)          { r.Log(args...); r.SkipNow() }
func (r *recordingTB) Skipf(f string, a ...any)  { r.Logf(f, a...); r.SkipNow() }

func (r *recordingTB) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recordingTB) Skipped() bool { return r.skipped }

func (r *recordingTB) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// String returns the reports.
func (r *recordingTB) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, "\n")
}

// recordRun runs f and its clean-ups, and abandons a blocked f.
func recordRun(t testing.TB, f func(r *recordingTB)) *recordingTB {
	r := &recordingTB{TB: t}
	alone := func(f func()) bool {
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		select {
		case <-done:
			return true
		case <-time.After(20 * time.Second):
			r.recordOutput(true, "hangs")
			return false
		}
	}
	if !alone(func() { f(r) }) {
		return r
	}
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return r
		}
		last := r.cleanups[n-1]
		r.cleanups = slices.Delete(r.cleanups, n-1, n)
		r.mu.Unlock()
		if !alone(last) {
			return r
		}
	}
}

// findCheck returns the check with a name.
func findCheck(t testing.TB, name string) ruleTest {
	for _, c := range allChecks() {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("checks: got no %s, want one", name)
	return ruleTest{}
}
