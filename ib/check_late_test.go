package ib

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A hold whose thread has ended is reported and ended: callbacks do not wait for it.
func TestCheckHoldOfThreadThatEnded(t *testing.T) {
	b, w := checkedBench(t, func(*CQ) {}, nil)
	var wg sync.WaitGroup
	wg.Go(b.dev.handle.HoldCallbacks)
	wg.Wait()
	for deadline := time.Now().Add(10 * time.Second); len(w.seen()) == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	w.expect(t, RuleHold)
	if n := b.dev.callbacks.helpers(); n != 0 {
		t.Errorf("got %d threads that are relied on, want 0", n)
	}
	b.free(t)
}

// Remove waits for a lock that the caller of UnregisterClient holds.
func TestCheckLockAcrossUnregisterClient(t *testing.T) {
	var lock sync.Mutex
	w, core := &witness{}, &Core{}
	core.Check(CheckConfig{Patience: 100 * time.Millisecond, Report: func(v Violation) {
		w.report(v)
		lock.Unlock()
	}})
	dev, _ := newDevice("fake0")
	must(t, core.Register(&dev.handle))
	cl := &Client{Name: "A", Add: func(*Device) (any, error) { return nil, nil }, Remove: func(*Device, any) {
		lock.Lock()
		defer lock.Unlock()
	}}
	must(t, core.RegisterClient(cl))
	lock.Lock()
	core.UnregisterClient(cl)
	w.expect(t, RuleLockAcrossRegister)
	must(t, core.Unregister(&dev.handle))
}

// The function for an event waits for a lock that the client's own Add holds while it waits. No driver is to blame.
func TestCheckLockOfClient(t *testing.T) {
	var lock sync.Mutex
	reported := make(chan Violation, 1)
	core := &Core{}
	core.Check(CheckConfig{Patience: 100 * time.Millisecond, Report: func(v Violation) { reported <- v }})
	dev, _ := newDevice("fake0")
	cl := &Client{Name: "A", Add: func(d *Device) (any, error) {
		stop := d.OnEvent(func(Event) {
			lock.Lock()
			defer lock.Unlock()
		})
		lock.Lock()
		dev.handle.DispatchEvent(EventPortActive, 1)
		v := <-reported
		lock.Unlock()
		stop()
		if v.Rule != RuleSleepInCallback || !strings.Contains(v.What, "Add of client A is in progress") {
			t.Errorf("reported: got %v: %s, want %v, in Add of client A", v.Rule, v.What, RuleSleepInCallback)
		}
		return nil, nil
	}, Remove: func(*Device, any) {}}
	must(t, core.RegisterClient(cl))
	must(t, core.Register(&dev.handle))
	must(t, core.Unregister(&dev.handle))
}

// An Add and a Remove that take long are reported.
func TestCheckClientReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, core := &witness{}, &Core{}
		core.Check(CheckConfig{Report: w.report, ClientPatience: time.Minute})
		dev, _ := newDevice("fake0")
		cl := &Client{
			Name:   "A",
			Add:    func(*Device) (any, error) { time.Sleep(59 * time.Second); return nil, nil },
			Remove: func(*Device, any) { time.Sleep(61 * time.Second) },
		}
		must(t, core.RegisterClient(cl))
		must(t, core.Register(&dev.handle))
		must(t, core.Unregister(&dev.handle))
		w.expect(t, RuleClientReturns)
	})
}

// A callback that computes for long is reported; one that makes progress is not.
func TestCheckCallbackRunsLong(t *testing.T) {
	var done atomic.Bool
	w, core := &witness{}, &Core{}
	core.Check(CheckConfig{Patience: 50 * time.Millisecond, Report: func(v Violation) {
		w.report(v)
		done.Store(true)
	}})
	began := time.Now()
	begun := make(chan int, 1)
	b := newBenchOn(t, core, func(cq *CQ) {
		begun <- 1
		for time.Since(began) < 200*time.Millisecond {
			second(cq.Poll(nil)) // progress
		}
		for !done.Load() && time.Since(began) < 20*time.Second {
		}
	}, nil, nil)
	second(b.cq.ReqNotify(NotifyNextComp))
	CQHandle{cq: b.cq}.Completed()
	<-begun
	b.free(t)
	w.expect(t, RuleSleepInCallback)
	if d := time.Since(began); d < 200*time.Millisecond {
		t.Errorf("reported after %v", d)
	}
}

// A callback that makes progress, and does not return, is reported when the patience with clients ends.
func TestCheckCallbackDoesNotReturn(t *testing.T) {
	var done atomic.Bool
	w, core := &witness{}, &Core{}
	core.Check(CheckConfig{ClientPatience: 100 * time.Millisecond, Report: func(v Violation) {
		w.report(v)
		done.Store(true)
	}})
	began := time.Now()
	begun := make(chan int, 1)
	b := newBenchOn(t, core, func(cq *CQ) {
		begun <- 1
		for !done.Load() && time.Since(began) < 20*time.Second {
			second(cq.Poll(nil))
		}
	}, nil, nil)
	second(b.cq.ReqNotify(NotifyNextComp))
	CQHandle{cq: b.cq}.Completed()
	<-begun
	b.free(t)
	w.expect(t, RuleCallbackReturns)
	if d := time.Since(began); d < 100*time.Millisecond {
		t.Errorf("reported after %v", d)
	}
}

// A thread that is inside a call when the object has been destroyed is reported.
func TestCheckInUseAtDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := checkedBench(t, nil, nil)
		enter, leave := make(chan int), make(chan int)
		b.drv.onQuery = nil
		b.drv.onPoll = func() { enter <- 1; <-leave }
		go b.cq.Poll(make([]WC, 1))
		<-enter
		must(t, b.qp.Destroy())
		must(t, b.cq.Destroy())
		close(leave)
		must(t, b.pd.Dealloc())
		must(t, b.core.Unregister(&b.dev.handle))
		w.expect(t, RuleInUse)
	})
}

// A thread that waits for an object's end with a context, or joins another that does, is not inside of it.
func TestCheckDestroyContext(t *testing.T) {
	b, w := checkedBench(t, nil, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { b.qp.DestroyContext(ctx) })
	}
	wg.Wait()
	must(t, b.cq.DestroyContext(ctx))
	must(t, b.pd.DeallocContext(ctx))
	must(t, b.core.UnregisterContext(ctx, &b.dev.handle))
	for _, v := range w.seen() {
		if v.Rule != RuleUseAfterDestroy { // by the second, if it came late
			t.Error(v)
		}
	}
}

// A consumer that arms a queue with completions in it, and does not poll then, may wait for ever.
func TestCheckArmWithoutPoll(t *testing.T) {
	for _, test := range []struct {
		name  string
		rules []Rule
		run   func(b *bench)
	}{
		{"arms after polling, and does not look again", []Rule{RuleArmWithoutPoll}, func(b *bench) {
			second(b.cq.Poll(make([]WC, 8)))
			b.qp.PostSend(SendWR{})
			second(b.cq.ReqNotify(NotifyNextComp))
		}},
		{"ignores that completions were missed", []Rule{RuleArmWithoutPoll}, func(b *bench) {
			b.qp.PostSend(SendWR{})
			second(b.cq.ReqNotify(NotifyNextComp | NotifyReportMissed))
		}},
		{"polls then", nil, func(b *bench) {
			b.qp.PostSend(SendWR{})
			second(b.cq.ReqNotify(NotifyNextComp))
			second(b.cq.Poll(make([]WC, 8)))
		}},
		{"arms an empty queue", nil, func(b *bench) { second(b.cq.ReqNotify(NotifyNextComp)) }},
		{"is notified after it has armed", nil, func(b *bench) {
			second(b.cq.ReqNotify(NotifyNextComp))
			b.qp.PostSend(SendWR{})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, w := checkedBench(t, func(*CQ) {}, nil)
				test.run(b)
				time.Sleep(time.Second)
				b.free(t)
				w.expect(t, test.rules...)
			})
		})
	}
}
