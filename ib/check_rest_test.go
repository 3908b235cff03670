package ib

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// A callback that waits for a lock is reported long before Patience when the lock's holder sleeps, and not when the holder works.
func TestCheckLockHeldBySleeper(t *testing.T) {
	for _, sleeps := range []bool{true, false} {
		w, core := &witness{}, &Core{}
		core.Check(CheckConfig{Patience: 10 * time.Second, Report: w.report})
		var mu sync.Mutex
		begun := make(chan int, 1)
		b := newBenchOn(t, core, func(*CQ) {
			begun <- 1
			mu.Lock()
			defer mu.Unlock()
		}, nil, nil)
		mu.Lock()
		second(b.cq.ReqNotify(NotifyNextComp))
		CQHandle{cq: b.cq}.Completed()
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
		w.expect(t, RuleSleepInCallback)
		for _, v := range w.seen() {
			if len(v.Stacks) < 2 || !strings.Contains(v.Stacks[1].Trace, "TestCheckLockHeldBySleeper") {
				t.Errorf("the second stack is not the holder's: %v", v)
			}
		}
	}
}

func TestLockedIn(t *testing.T) {
	for trace, want := range map[string]string{
		"sync.runtime_SemacquireMutex(0x1)\n\tsema.go:1\ninternal/sync.(*Mutex).lockSlow(0x1)\n\tmutex.go:2\n" +
			"verbena/test/wrong.init.func3.1(0x1)\n\tc.go:7\n": "verbena/test/wrong.",
		"main.(*T).f(...)\n\tm.go:1\n":              "main.",
		"gopkg.in/x.v1/y.F({0x1, 0x2})\n\ty.go:1\n": "gopkg.in/x.v1/y.",
		"": "",
	} {
		if got := (goroutine{trace: trace}).lockedIn(); got != want {
			t.Errorf("package of %q: got %q, want %q", trace, got, want)
		}
	}
}
