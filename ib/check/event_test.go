package check_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"verbena/ib"
	"verbena/ib/check"
)

// TestEventFunctionMayStopItself checks that an event function that calls its own stop function does not wait for
// itself and is reported.
func TestEventFunctionMayStopItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := newCheckedBench(t, nil, nil)
		var calls atomic.Int32
		var end func()
		end = b.dev.OnEvent(func(ib.Event) { calls.Add(1); end() })
		b.handle.DispatchEvent(ib.EventPortErr, 1)
		b.handle.DispatchEvent(ib.EventPortErr, 1)
		synctest.Wait()
		b.destroyAll(t)
		if n := calls.Load(); n != 1 {
			t.Errorf("got %d calls, want 1", n)
		}
		w.expectRules(t, check.RuleWaitForSelf)
	})
}

// TestUnregisterDeliversEarlierEvents checks that earlier events are delivered before Unregister returns. The test also
// checks that later events are dropped and reported.
func TestUnregisterDeliversEarlierEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := newCheckedBench(t, nil, nil)
		calls := 0
		b.dev.OnEvent(func(ib.Event) { calls++ })
		b.handle.DispatchEvent(ib.EventPortErr, 1)
		b.destroyAll(t)
		if calls != 1 {
			t.Errorf("got %d calls, want 1", calls)
		}
		b.handle.DispatchEvent(ib.EventPortActive, 1)
		synctest.Wait()
		if calls != 1 {
			t.Errorf("event calls after Unregister: got %d, want none", calls-1)
		}
		w.expectRules(t, check.RuleUseAfterUnregister)
	})
}

// TestCallbacksSurviveGoexit checks that other callbacks run, and destruction does not block, after a callback has
// ended its goroutine.
func TestCallbacksSurviveGoexit(t *testing.T) {
	for _, hold := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, w := newCheckedBench(t, func(*ib.CQ) { runtime.Goexit() }, func(*ib.QP, ib.EventType) { runtime.Goexit() })
			calls := 0
			end := b.dev.OnEvent(func(ib.Event) { calls++; runtime.Goexit() })
			raise := []func(){b.drv.cq.Completed, func() { b.drv.qp.Raise(ib.EventCommEst) },
				func() { b.handle.DispatchEvent(ib.EventPortErr, 1) }}
			for range 2 {
				for _, f := range raise {
					errorOf(b.cq.ReqNotify(ib.NotifyNextComp))
					go func() {
						if hold {
							b.handle.HoldCallbacks()
							defer b.handle.RunCallbacks()
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
			b.destroyAll(t)
			w.expectRules(t, check.RuleCallbackReturns, check.RuleCallbackReturns, check.RuleCallbackReturns)
		})
	}
}
