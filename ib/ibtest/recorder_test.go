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

// recorder is a testing.TB that records failures instead of failing the test.
type recorder struct {
	testing.TB // for all other methods

	mu       sync.Mutex
	failed   bool
	skipped  bool
	log      []string
	onFail   map[int]func()
	hooks    int
	cleanups []func()
}

func (r *recorder) note(fail bool, s string) {
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

// whenFailed makes the next failure call f, which releases the locks of a defect. off cancels that.
func (r *recorder) whenFailed(f func()) (off func()) {
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

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return "recorder" }
func (r *recorder) Log(args ...any)           { r.note(false, fmt.Sprintln(args...)) }
func (r *recorder) Logf(f string, a ...any)   { r.note(false, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(args ...any)         { r.note(true, fmt.Sprintln(args...)) }
func (r *recorder) Errorf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Fail()                     { r.note(true, "failed") }
func (r *recorder) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *recorder) Fatal(args ...any)         { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) SkipNow()                  { r.skipped = true; runtime.Goexit() }
func (r *recorder) Skip(args ...any)          { r.Log(args...); r.SkipNow() }
func (r *recorder) Skipf(f string, a ...any)  { r.Logf(f, a...); r.SkipNow() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Skipped() bool { return r.skipped }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// String returns the reports.
func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, "\n")
}

// record runs f and its clean-ups, and abandons a blocked f.
func record(t testing.TB, f func(r *recorder)) *recorder {
	r := &recorder{TB: t}
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
			r.note(true, "hangs")
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

// find returns the check with a name.
func find(t testing.TB, name string) ruleTest {
	for _, c := range checks() {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("checks: got no %s, want one", name)
	return ruleTest{}
}
