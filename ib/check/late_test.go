package check_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/internal/testutil"
)

// TestCheckReleasesHoldOfEndedThread checks that a hold whose thread has ended is reported and released. Callbacks must
// not wait for the hold.
func TestCheckReleasesHoldOfEndedThread(t *testing.T) {
	b, w := newCheckedBench(t, func(*ib.CQ) {}, nil)
	var wg sync.WaitGroup
	wg.Go(b.handle.HoldCallbacks)
	wg.Wait()
	testutil.Eventually(t, "the hold to be reported", func() bool { return len(w.violations()) > 0 })
	w.expectRules(t, check.RuleHold)
	b.destroyAll(t)
}

// TestCheckReportsLockAcrossUnregisterClient: Remove waits for a lock that the caller of UnregisterClient holds.
func TestCheckReportsLockAcrossUnregisterClient(t *testing.T) {
	var lock sync.Mutex
	w, core := &violationRecorder{}, &ib.Core{}
	check.On(core, check.Config{Timeout: 100 * time.Millisecond, Report: func(v check.Violation) {
		w.recordViolation(v)
		lock.Unlock()
	}})
	dev, _ := newDevice("fake0")
	must(t, core.Register(dev))
	cl := &ib.Client{Name: "A", Add: func(*ib.Device) (any, error) { return nil, nil }, Remove: func(*ib.Device, any) {
		lock.Lock()
		defer lock.Unlock()
	}}
	must(t, core.RegisterClient(cl))
	lock.Lock()
	core.UnregisterClient(cl)
	w.expectRules(t, check.RuleLockAcrossRegister)
	must(t, core.Unregister(dev))
}

// TestCheckReportsClientSleepingWithLock checks a client that sleeps in Add with a lock held. The client's event
// function waits for the same lock. The report must not name the driver.
func TestCheckReportsClientSleepingWithLock(t *testing.T) {
	var lock sync.Mutex
	reported := make(chan check.Violation, 1)
	core := &ib.Core{}
	check.On(core, check.Config{Timeout: 100 * time.Millisecond, Report: func(v check.Violation) { reported <- v }})
	dev, _ := newDevice("fake0")
	cl := &ib.Client{Name: "A", Add: func(d *ib.Device) (any, error) {
		stop := d.OnEvent(func(ib.Event) {
			lock.Lock()
			defer lock.Unlock()
		})
		lock.Lock()
		dev.DispatchEvent(ib.EventPortActive, 1)
		v := <-reported
		lock.Unlock()
		stop()
		if v.Rule != check.RuleSleepInCallback || !strings.Contains(v.What, "Add of client A is in progress") {
			t.Errorf("violation: got %v: %s, want %v, in Add of client A", v.Rule, v.What, check.RuleSleepInCallback)
		}
		return nil, nil
	}, Remove: func(*ib.Device, any) {}}
	must(t, core.RegisterClient(cl))
	must(t, core.Register(dev))
	must(t, core.Unregister(dev))
}

// TestCheckReportsSlowClient checks that an Add and a Remove that take too long are reported.
func TestCheckReportsSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, core := &violationRecorder{}, &ib.Core{}
		check.On(core, check.Config{Report: w.recordViolation, ClientTimeout: time.Minute})
		dev, _ := newDevice("fake0")
		cl := &ib.Client{
			Name:   "A",
			Add:    func(*ib.Device) (any, error) { time.Sleep(59 * time.Second); return nil, nil },
			Remove: func(*ib.Device, any) { time.Sleep(61 * time.Second) },
		}
		must(t, core.RegisterClient(cl))
		must(t, core.Register(dev))
		must(t, core.Unregister(dev))
		w.expectRules(t, check.RuleClientReturns)
	})
}

// TestCheckReportsLongCallback checks that a callback that computes for too long is reported, unless the callback makes
// calls.
func TestCheckReportsLongCallback(t *testing.T) {
	var done atomic.Bool
	w, core := &violationRecorder{}, &ib.Core{}
	check.On(core, check.Config{Timeout: 50 * time.Millisecond, Report: func(v check.Violation) {
		w.recordViolation(v)
		done.Store(true)
	}})
	began := time.Now()
	begun := make(chan int, 1)
	b := newBenchOn(t, core, func(cq *ib.CQ) {
		begun <- 1
		for time.Since(began) < 200*time.Millisecond {
			errorOf(cq.Poll(nil)) // progress
		}
		for !done.Load() && time.Since(began) < 20*time.Second {
		}
	}, nil)
	errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
	b.drv.cq.Completed()
	<-begun
	b.destroyAll(t)
	w.expectRules(t, check.RuleSleepInCallback)
	if d := time.Since(began); d < 200*time.Millisecond {
		t.Errorf("delay of the report: got %v, want at least 200ms", d)
	}
}

// TestCheckReportsCallbackWithoutReturn checks that a callback that makes progress but does not return is reported
// after ClientTimeout.
func TestCheckReportsCallbackWithoutReturn(t *testing.T) {
	var done atomic.Bool
	w, core := &violationRecorder{}, &ib.Core{}
	check.On(core, check.Config{ClientTimeout: 100 * time.Millisecond, Report: func(v check.Violation) {
		w.recordViolation(v)
		done.Store(true)
	}})
	began := time.Now()
	begun := make(chan int, 1)
	b := newBenchOn(t, core, func(cq *ib.CQ) {
		begun <- 1
		for !done.Load() && time.Since(began) < 20*time.Second {
			errorOf(cq.Poll(nil))
		}
	}, nil)
	errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
	b.drv.cq.Completed()
	<-begun
	b.destroyAll(t)
	w.expectRules(t, check.RuleCallbackReturns)
	if d := time.Since(began); d < 100*time.Millisecond {
		t.Errorf("delay of the report: got %v, want at least 100ms", d)
	}
}

// TestCheckReportsCallDuringDestroy checks that a thread inside a call on an object is reported when the object is
// destroyed.
func TestCheckReportsCallDuringDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := newCheckedBench(t, nil, nil)
		enter, leave := make(chan int), make(chan int)
		b.drv.onQuery = nil
		b.drv.onPoll = func() { enter <- 1; <-leave }
		go b.cq.Poll(make([]ib.WC, 1))
		<-enter
		must(t, b.qp.Destroy())
		must(t, b.cq.Destroy())
		close(leave)
		must(t, b.pd.Dealloc())
		must(t, b.core.Unregister(b.handle))
		w.expectRules(t, check.RuleInUse)
	})
}

// TestCheckAllowsJoinedDestroy checks that a thread waiting for the destruction of an object does not count as inside
// the object. The thread may have started the destruction with a context or may have joined it.
func TestCheckAllowsJoinedDestroy(t *testing.T) {
	b, w := newCheckedBench(t, nil, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { b.qp.DestroyContext(ctx) })
	}
	wg.Wait()
	must(t, b.cq.DestroyContext(ctx))
	must(t, b.pd.DeallocContext(ctx))
	must(t, b.core.UnregisterContext(ctx, b.handle))
	for _, v := range w.violations() {
		if v.Rule != check.RuleUseAfterDestroy { // a late second call is reported as well
			t.Error(v)
		}
	}
}

// TestCheckReportsArmWithoutPoll checks a consumer that arms a queue with completions in it and does not poll
// afterwards. Such a consumer may wait for ever.
func TestCheckReportsArmWithoutPoll(t *testing.T) {
	for _, test := range []struct {
		name  string
		rules []check.Rule
		run   func(b *testBench)
	}{
		{"arms after polling, and does not poll again", []check.Rule{check.RuleArmWithoutPoll}, func(b *testBench) {
			errorOf(b.cq.Poll(make([]ib.WC, 8)))
			b.qp.PostSend(ib.SendWR{})
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
		}},
		{"ignores that completions were missed", []check.Rule{check.RuleArmWithoutPoll}, func(b *testBench) {
			b.qp.PostSend(ib.SendWR{})
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed))
		}},
		{"polls then", nil, func(b *testBench) {
			b.qp.PostSend(ib.SendWR{})
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
			errorOf(b.cq.Poll(make([]ib.WC, 8)))
		}},
		{"arms an empty queue", nil, func(b *testBench) { errorOf(b.cq.ReqNotify(ib.NotifyNextComp)) }},
		{"is notified after it has armed", nil, func(b *testBench) {
			errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
			b.qp.PostSend(ib.SendWR{})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, w := newCheckedBench(t, func(*ib.CQ) {}, nil)
				test.run(b)
				testutil.AdvanceTime(time.Second)
				b.destroyAll(t)
				w.expectRules(t, test.rules...)
			})
		})
	}
}
