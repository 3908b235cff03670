package check_test

import (
	"strings"
	"sync"
	"testing"
	"time"
	"verbena/ib"
	"verbena/ib/check"
)

// TestCheckLockHeldBySleeper checks a callback that waits for a lock. The callback must be reported long before Timeout
// if the lock holder sleeps, and must not be reported if the holder works.
func TestCheckLockHeldBySleeper(t *testing.T) {
	for _, sleeps := range []bool{true, false} {
		w, core := &witness{}, &ib.Core{}
		check.On(core, check.Config{Timeout: 10 * time.Second, Report: w.report})
		var mu sync.Mutex
		begun := make(chan int, 1)
		b := newBenchOn(t, core, func(*ib.CQ) {
			begun <- 1
			mu.Lock()
			defer mu.Unlock()
		}, nil)
		mu.Lock()
		second(b.cq.ReqNotify(ib.NotifyNextComp))
		b.drv.cq.Completed()
		<-begun
		for end := time.Now().Add(time.Second); time.Now().Before(end) && len(w.seen()) == 0; {
			if sleeps {
				time.Sleep(300 * time.Millisecond)
			}
		}
		mu.Unlock()
		b.free(t)
		if !sleeps {
			w.expect(t)
			continue
		}
		w.expect(t, check.RuleSleepInCallback)
		for _, v := range w.seen() {
			if len(v.Stacks) < 2 || !strings.Contains(v.Stacks[1].Trace, "TestCheckLockHeldBySleeper") {
				t.Errorf("second stack: got %v, want the stack of the lock holder", v)
			}
		}
	}
}
