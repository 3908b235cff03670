package check_test

import (
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/internal/testutil"
)

// TestCheckReportsCompletionsLeftInCQ checks a handler that arms its CQ before polling. Such a handler must poll until
// the CQ is empty, use NotifyReportMissed, or leave the rest to another thread.
func TestCheckReportsCompletionsLeftInCQ(t *testing.T) {
	const timeout = 200 * time.Millisecond
	poll := func(cq *ib.CQ, n int) int {
		n, err := cq.Poll(make([]ib.WC, n))
		if err != nil {
			panic(err)
		}
		return n
	}
	for _, c := range []struct {
		name   string
		handle func(x *testConsumer, cq *ib.CQ)
		caught bool
	}{
		{"one batch", func(_ *testConsumer, cq *ib.CQ) {
			ignoreError(cq.ReqNotify(ib.NotifyNextComp))
			poll(cq, 2)
		}, true},
		{"one batch, after a poll", func(_ *testConsumer, cq *ib.CQ) {
			poll(cq, 1)
			ignoreError(cq.ReqNotify(ib.NotifyNextComp))
			poll(cq, 2)
		}, true},
		{"polls until the CQ is empty", func(_ *testConsumer, cq *ib.CQ) {
			ignoreError(cq.ReqNotify(ib.NotifyNextComp))
			for poll(cq, 2) == 2 {
			}
		}, false},
		{"one batch polls all completions", func(_ *testConsumer, cq *ib.CQ) {
			ignoreError(cq.ReqNotify(ib.NotifyNextComp))
			poll(cq, 2*queueDepth)
		}, false},
		{"uses NotifyReportMissed", func(_ *testConsumer, cq *ib.CQ) {
			for missed := true; missed; {
				poll(cq, 2)
				var err error
				missed, err = cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
				if err != nil {
					panic(err)
				}
			}
		}, false},
		{"leaves the rest to another thread", func(x *testConsumer, cq *ib.CQ) {
			ignoreError(cq.ReqNotify(ib.NotifyNextComp))
			poll(cq, 2)
			time.AfterFunc(timeout/10, func() { x.pollAll() })
		}, false},
		{"is called again for later completions", func(x *testConsumer, cq *ib.CQ) {
			ignoreError(cq.ReqNotify(ib.NotifyNextComp))
			if x.calls.Add(1) == 1 {
				x.postRecv(8)
				x.postSend(8, ib.SendSignaled)
				poll(cq, 2)
				return
			}
			for poll(cq, 2) == 2 {
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var x *testConsumer
				x = newConsumer(t, consumerConfig{handler: func(cq *ib.CQ) { c.handle(x, cq) }})
				for i := range uint64(queueDepth - 1) {
					x.postRecv(i)
					x.postSend(i, ib.SendSignaled)
				}
				ignoreError(x.cq.ReqNotify(ib.NotifyNextComp))
				x.postRecv(7)
				x.postSend(7, ib.SendSignaled)
				testutil.AdvanceTime(5 * timeout)
				if c.caught {
					x.destroyBothAndExpect(check.RuleLeftInCQ)
				} else {
					x.destroyBothAndExpect()
				}
			})
		})
	}
}
