package check_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"verbena/ib"
	"verbena/ib/check"
)

// TestCheckReportsLockHeldBySleeper checks a callback that waits for a lock. The callback must be reported long before
// Timeout if the lock holder sleeps, and must not be reported if the holder works.
func TestCheckReportsLockHeldBySleeper(t *testing.T) {
	for _, sleeps := range []bool{true, false} {
		w, core := &violationRecorder{}, &ib.Core{}
		check.On(core, check.Config{Timeout: 10 * time.Second, Report: w.recordViolation})
		var mu sync.Mutex
		begun := make(chan int, 1)
		b := newBenchOn(t, core, func(*ib.CQ) {
			begun <- 1
			mu.Lock()
			defer mu.Unlock()
		}, nil)
		mu.Lock()
		errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
		b.drv.cq.Completed()
		<-begun
		for end := time.Now().Add(time.Second); time.Now().Before(end) && len(w.violations()) == 0; {
			if sleeps {
				time.Sleep(300 * time.Millisecond)
			}
		}
		mu.Unlock()
		b.destroyAll(t)
		if !sleeps {
			w.expectRules(t)
			continue
		}
		w.expectRules(t, check.RuleSleepInCallback)
		for _, v := range w.violations() {
			if len(v.Stacks) < 2 || !strings.Contains(v.Stacks[1].Trace, "TestCheckReportsLockHeldBySleeper") {
				t.Errorf("second stack: got %v, want the stack of the lock holder", v)
			}
		}
	}
}

// TestCheckReportsLockHeldAcrossCall checks a callback that waits for a lock while another thread's call that may sleep
// returns. The callback must be reported if the lock is held across the call, although the call has not slept.
func TestCheckReportsLockHeldAcrossCall(t *testing.T) {
	for _, c := range []struct {
		name   string
		across bool
	}{{"held across the call", true}, {"held by a thread that works", false}} {
		t.Run(c.name, func(t *testing.T) {
			w, core := &violationRecorder{}, &ib.Core{}
			check.On(core, check.Config{Timeout: 10 * time.Second, Report: w.recordViolation})
			var mu sync.Mutex
			begun := make(chan int, 1)
			b := newBenchOn(t, core, func(*ib.CQ) {
				begun <- 1
				mu.Lock()
				defer mu.Unlock()
			}, nil)
			locked := make(chan int)
			var calls atomic.Int32
			var wg sync.WaitGroup
			if c.across {
				mu.Lock()
			} else {
				wg.Go(func() {
					mu.Lock()
					defer mu.Unlock()
					close(locked)
					for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end) || calls.Load() < 10; {
					}
				})
				<-locked
			}
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
			b.drv.cq.Completed()
			<-begun
			for range 10 {
				must(t, errorOf(b.dev.QueryDevice()))
				calls.Add(1)
			}
			if c.across {
				mu.Unlock()
			}
			wg.Wait()
			b.destroyAll(t)
			if !c.across {
				w.expectRules(t)
				return
			}
			w.expectRules(t, check.RuleSleepInCallback)
			for _, v := range w.violations() {
				if len(v.Stacks) < 2 || !strings.Contains(v.Stacks[1].Trace, "TestCheckReportsLockHeldAcrossCall") {
					t.Errorf("second stack: got %v, want the stack of the lock holder", v)
				}
			}
		})
	}
}
