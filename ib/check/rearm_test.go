package check_test

import (
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/internal/testutil"
)

// TestCheckReportsUnarmedCQ checks that a handler that empties its CQ must arm it again, unless other threads poll or
// no completions follow.
func TestCheckReportsUnarmedCQ(t *testing.T) {
	const timeout = 200 * time.Millisecond
	for _, c := range []struct {
		name   string
		rearm  func(n int32, cq *ib.CQ) bool // called in the n-th handler call
		then   func(x *testConsumer)         // called after the first handler call has returned
		caught bool
	}{
		{"completions that wait", func(n int32, _ *ib.CQ) bool { return false }, func(x *testConsumer) {
			x.postRecv(1)
			x.postSend(1, 0)
			testutil.AdvanceTime(5 * timeout)
		}, true},
		{"completions that come late", func(n int32, _ *ib.CQ) bool { return false }, func(x *testConsumer) {
			testutil.AdvanceTime(5 * timeout)
			x.postRecv(1)
			x.postSend(1, 0)
			testutil.AdvanceTime(5 * timeout)
		}, true},
		{"forgotten in the second call", func(n int32, _ *ib.CQ) bool { return n < 2 }, func(x *testConsumer) {
			for range 2 {
				x.postRecv(1)
				x.postSend(1, 0)
				testutil.AdvanceTime(5 * timeout)
			}
		}, true},
		{"armed again", func(n int32, _ *ib.CQ) bool { return true }, func(x *testConsumer) {
			x.postRecv(1)
			x.postSend(1, 0)
			testutil.AdvanceTime(5 * timeout)
		}, false},
		{"no further completions", func(n int32, _ *ib.CQ) bool { return false },
			func(*testConsumer) { testutil.AdvanceTime(5 * timeout) },
			false},
		{"another thread polls", func(n int32, _ *ib.CQ) bool { return false }, func(x *testConsumer) {
			x.postRecv(1)
			x.postSend(1, 0)
			for range 50 {
				testutil.AdvanceTime(timeout / 10)
				x.pollAll()
			}
		}, false},
		{"armed by another thread, late", func(n int32, _ *ib.CQ) bool { return false }, func(x *testConsumer) {
			testutil.AdvanceTime(5 * timeout)
			_, err := x.cq.ReqNotify(ib.NotifyNextComp)
			x.failOnError(err)
			calls := x.calls.Load()
			x.postRecv(1)
			x.postSend(1, 0)
			testutil.AdvanceTime(timeout)
			if n := x.calls.Load() - calls; n != 1 {
				x.t.Errorf("calls of the handler: got %d, want 1", n)
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var x *testConsumer
				x = newConsumer(t, consumerConfig{handler: func(cq *ib.CQ) {
					n := x.calls.Add(1)
					wc := make([]ib.WC, 2*queueDepth)
					ignoreError(cq.Poll(wc))
					if c.rearm(n, cq) {
						ignoreError(cq.ReqNotify(ib.NotifyNextComp))
					}
				}})
				ignoreError(x.cq.ReqNotify(ib.NotifyNextComp))
				x.postRecv(1)
				x.postSend(1, 0)
				synctest.Wait()
				c.then(x)
				if c.caught {
					x.destroyBothAndExpect(check.RuleNotRearmed)
				} else {
					x.destroyBothAndExpect()
				}
			})
		})
	}
}

// TestCheckReportsUnarmedCQAfterBatch checks that a handler that polls only one batch must arm its CQ, unless another
// thread polls.
func TestCheckReportsUnarmedCQAfterBatch(t *testing.T) {
	const timeout = 200 * time.Millisecond
	for _, c := range []struct {
		name   string
		arm    bool
		fail   bool // the queue pairs are in the error state when the handler runs
		then   func(x *testConsumer)
		caught bool
	}{
		{"left", false, false, func(*testConsumer) {}, true},
		{"armed with NotifyReportMissed", true, false, func(*testConsumer) {}, false},
		{"another thread polls", false, false, func(x *testConsumer) { testutil.AdvanceTime(timeout / 2); x.pollAll() },
			false},
		{"another thread arms", false, false, func(x *testConsumer) {
			testutil.AdvanceTime(timeout / 2)
			ignoreError(x.cq.ReqNotify(ib.NotifyNextComp))
			x.pollAll()
		}, false},
		{"all queue pairs are in error", false, true, func(*testConsumer) {}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newConsumer(t, consumerConfig{handler: func(cq *ib.CQ) {
					for missed := true; missed; {
						var wc [1]ib.WC
						ignoreError(cq.Poll(wc[:]))
						if !c.arm {
							return
						}
						var err error
						if missed, err = cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); err != nil {
							panic(err)
						}
					}
				}})
				x.postRecv(1)
				x.postRecv(2)
				ignoreError(x.cq.ReqNotify(ib.NotifyNextComp))
				if c.fail {
					x.moveToError(x.b)
					x.moveToError(x.a)
				} else {
					x.postSend(3, ib.SendSignaled)
				}
				c.then(x)
				testutil.AdvanceTime(5 * timeout)
				if c.caught {
					x.destroyBothAndExpect(check.RuleNotRearmed)
				} else {
					x.destroyBothAndExpect()
				}
			})
		})
	}
}

func ignoreError[T any](_ T, err error) {
	if err != nil {
		panic(err)
	}
}

// TestCheckArmingCausesNoHandlerCall checks that the handler is not called for completions if only checked mode has
// armed the queue.
func TestCheckArmingCausesNoHandlerCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x *testConsumer
		x = newConsumer(t, consumerConfig{handler: func(cq *ib.CQ) {
			x.calls.Add(1)
			ignoreError(cq.Poll(make([]ib.WC, 2*queueDepth)))
		}})
		ignoreError(x.cq.ReqNotify(ib.NotifyNextComp))
		x.postRecv(1)
		x.postSend(1, 0)
		testutil.AdvanceTime(time.Second) // checked mode arms the queue
		x.postRecv(1)
		x.postSend(1, 0)
		synctest.Wait()
		x.pollAll()
		if n := x.calls.Load(); n != 1 {
			t.Errorf("calls of the handler: got %d, want 1", n)
		}
		x.destroyBothAndExpect()
	})
}

// TestCheckReportsUnstoppedEventFunction checks that a client must end its event functions before its Remove returns.
func TestCheckReportsUnstoppedEventFunction(t *testing.T) {
	for _, ended := range []bool{false, true} {
		x := newConsumer(t, consumerConfig{})
		client := &ib.Client{Name: "A",
			Add: func(d *ib.Device) (any, error) { return d.OnEvent(func(ib.Event) {}), nil },
			Remove: func(_ *ib.Device, stop any) {
				if ended {
					stop.(func())()
				}
			},
		}
		x.failOnError(x.core.RegisterClient(client))
		x.core.UnregisterClient(client)
		if ended {
			x.destroyBothAndExpect()
		} else {
			x.destroyBothAndExpect(check.RuleLeftBehind)
		}
	}
}
