package ib

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/notify"
)

// When the end of a registration has returned, its function does not run, and does not begin any more.
func TestEventEndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, nil, nil)
		enter, leave := make(chan int), make(chan int)
		first := b.dev.OnEvent(func(Event) { enter <- 1; <-leave })
		var later atomic.Int32
		second := b.dev.OnEvent(func(Event) { later.Add(1) })
		b.dev.handle.DispatchEvent(EventPortErr, 1)
		<-enter
		second() // has not begun, and does not wait for the first
		var ended atomic.Bool
		go func() { first(); ended.Store(true) }()
		synctest.Wait()
		if ended.Load() {
			t.Error("the end of a registration returned while its function ran")
		}
		close(leave)
		synctest.Wait()
		if !ended.Load() {
			t.Error("the end of a registration has not returned")
		}
		if n := later.Load(); n != 0 {
			t.Errorf("got %d calls that began after the end, want 0", n)
		}
		b.free(t)
	})
}

// A function that ends its own registration does not wait for itself; checked mode reports it.
func TestEventEndsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := checkedBench(t, nil, nil)
		var calls atomic.Int32
		var end func()
		end = b.dev.OnEvent(func(Event) { calls.Add(1); end() })
		b.dev.handle.DispatchEvent(EventPortErr, 1)
		b.dev.handle.DispatchEvent(EventPortErr, 1)
		synctest.Wait()
		b.free(t)
		if n := calls.Load(); n != 1 {
			t.Errorf("got %d calls, want 1", n)
		}
		w.expect(t, RuleWaitForSelf)
	})
}

// Events that were dispatched before are delivered before Unregister returns, those after it are dropped and reported.
func TestEventAfterUnregister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := checkedBench(t, nil, nil)
		calls := 0
		b.dev.OnEvent(func(Event) { calls++ })
		b.dev.handle.DispatchEvent(EventPortErr, 1)
		b.free(t)
		if calls != 1 {
			t.Errorf("got %d calls, want 1", calls)
		}
		b.dev.handle.DispatchEvent(EventPortActive, 1)
		synctest.Wait()
		if calls != 1 {
			t.Errorf("got %d calls after Unregister, want none", calls-1)
		}
		w.expect(t, RuleUseAfterUnregister)
	})
}

// Events and completions that come without end do not keep Unregister from returning.
func TestUnregisterUnderEvents(t *testing.T) {
	b := newBench(t, func(cq *CQ) { CQHandle{cq: cq}.Completed() }, nil, nil) // its handler runs without end; it is never destroyed
	b.dev.OnEvent(func(Event) { time.Sleep(10 * time.Microsecond) })
	var stop atomic.Bool
	flooded := make(chan int)
	go func() {
		defer close(flooded)
		for !stop.Load() {
			b.dev.handle.DispatchEvent(EventPortErr, 1)
			QPHandle{b.qp}.Raise(EventCommEst)
			runtime.Gosched()
		}
	}()
	CQHandle{cq: b.cq}.Completed()
	if err := b.core.Unregister(&b.dev.handle); err == nil {
		t.Error("Unregister has not named what was left behind")
	}
	stop.Store(true)
	<-flooded
	b.cq.notify.step(notify.Notice.Die)
	b.dev.callbacks.waitFor(b.cq.notify.quiet)
}

// A callback that ends its goroutine ends nothing else: other callbacks run, and destroying does not hang.
func TestCallbackEndsItsGoroutine(t *testing.T) {
	for _, hold := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, w := checkedBench(t, func(*CQ) { runtime.Goexit() }, func(*QP, EventType) { runtime.Goexit() })
			calls := 0
			end := b.dev.OnEvent(func(Event) { calls++; runtime.Goexit() })
			raise := []func(){CQHandle{cq: b.cq}.Completed, func() { QPHandle{b.qp}.Raise(EventCommEst) }, func() { b.dev.handle.DispatchEvent(EventPortErr, 1) }}
			for range 2 {
				for _, f := range raise {
					second(b.cq.ReqNotify(NotifyNextComp))
					go func() {
						if hold {
							b.dev.handle.HoldCallbacks()
							defer b.dev.handle.RunCallbacks()
						}
						f()
					}()
					synctest.Wait()
				}
			}
			if calls != 2 {
				t.Errorf("got %d calls, want 2", calls)
			}
			end()
			b.free(t)
			w.expect(t, RuleCallbackReturns, RuleCallbackReturns, RuleCallbackReturns)
		})
	}
}
