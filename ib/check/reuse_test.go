package check_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/testutil"
)

// TestCheckReportsReusedTarget checks that memory of an outstanding receive must not be posted again, also on another
// queue pair, until its completion has been polled or RESET has discarded it.
func TestCheckReportsReusedTarget(t *testing.T) {
	post := func(x *testConsumer, qp *ib.QP) {
		_, err := qp.PostRecv(ib.RecvWR{SGList: x.firstRegionSGL()})
		x.failOnError(err)
	}
	for _, c := range []struct {
		name string
		run  func(x *testConsumer)
		want []check.Rule
	}{
		{"outstanding", func(x *testConsumer) {
			post(x, x.a)
			post(x, x.b)
		}, []check.Rule{check.RuleTargetReused}},
		{"not flushed yet", func(x *testConsumer) {
			post(x, x.a)
			x.moveToError(x.a)
			post(x, x.b)
		}, []check.Rule{check.RuleTargetUnflushed}},
		{"flushed", func(x *testConsumer) {
			post(x, x.a)
			x.moveToError(x.a)
			x.pollAll()
			post(x, x.b)
		}, nil},
		{"discarded by RESET", func(x *testConsumer) {
			post(x, x.a)
			x.failOnError(x.a.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			post(x, x.b)
		}, nil},
		{"on a queue pair in ERR", func(x *testConsumer) {
			post(x, x.b)
			x.moveToError(x.a)
			post(x, x.a)
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newConsumer(t, consumerConfig{reuse: true})
			c.run(x)
			x.destroyBothAndExpect(c.want...)
		})
	}
	t.Run("rule off", func(t *testing.T) {
		x := newConsumer(t, consumerConfig{})
		post(x, x.a)
		post(x, x.b)
		x.destroyBothAndExpect()
	})
}

// TestCheckReportsPendingSource checks that a send must not use the memory of an outstanding READ or atomic operation,
// unless a fence on the same queue pair, or the completion, orders the send after the operation.
func TestCheckReportsPendingSource(t *testing.T) {
	var remote *ib.MR
	read := func(x *testConsumer) ib.SendWR {
		return ib.SendWR{Opcode: ib.WRRDMARead, SGList: x.firstRegionSGL(), RemoteAddr: remote.Addr(), RKey: remote.RKey()}
	}
	write := func(x *testConsumer, flags ib.SendFlags) ib.SendWR {
		return ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: x.firstRegionSGL(), RemoteAddr: remote.Addr(), RKey: remote.RKey(),
			Flags: ib.SendSignaled | flags}
	}
	post := func(x *testConsumer, qp *ib.QP, wrs ...ib.SendWR) {
		_, err := qp.PostSend(wrs...)
		x.failOnError(err)
	}
	for _, c := range []struct {
		name string
		run  func(x *testConsumer)
		want []check.Rule
	}{
		{"no fence", func(x *testConsumer) {
			post(x, x.a, read(x))
			post(x, x.a, write(x, 0))
		}, []check.Rule{check.RuleSourcePending}},
		{"no fence, in one list", func(x *testConsumer) { post(x, x.a, read(x), write(x, 0)) },
			[]check.Rule{check.RuleSourcePending}},
		{"inline", func(x *testConsumer) {
			post(x, x.a, read(x))
			post(x, x.a, write(x, ib.SendInline))
		}, []check.Rule{check.RuleSourcePending}},
		{"another queue pair with a fence", func(x *testConsumer) {
			post(x, x.a, read(x))
			post(x, x.b, write(x, ib.SendFence))
		}, []check.Rule{check.RuleSourcePending}},
		{"fence", func(x *testConsumer) { post(x, x.a, read(x), write(x, ib.SendFence)) }, nil},
		{"fence of a request in between", func(x *testConsumer) {
			empty := write(x, ib.SendFence)
			empty.SGList = nil
			post(x, x.a, read(x), empty)
			post(x, x.a, write(x, 0))
		}, nil},
		{"fence of a request before", func(x *testConsumer) {
			empty := write(x, ib.SendFence)
			empty.SGList = nil
			post(x, x.a, empty, read(x))
			post(x, x.a, write(x, 0))
		}, []check.Rule{check.RuleSourcePending}},
		{"other memory", func(x *testConsumer) {
			wr := write(x, 0)
			wr.SGList[0].Addr += uint64(wr.SGList[0].Length)
			post(x, x.a, read(x), wr)
		}, nil},
		{"completion of a later request", func(x *testConsumer) {
			after := write(x, 0)
			after.SGList = nil
			post(x, x.a, read(x), after)
			for x.pollAll() == 0 {
			}
			post(x, x.a, write(x, 0))
		}, nil},
		{"refused", func(x *testConsumer) {
			unknown := ib.SendWR{Opcode: 0xff}
			if n, err := x.a.PostSend(unknown, read(x)); n != 0 || err == nil {
				t.Errorf("a list that begins with an unknown opcode: got %d requests and error %v, want 0 and an error", n, err)
			}
			post(x, x.a, write(x, 0))
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newConsumer(t, consumerConfig{})
			var err error
			remote, err = x.pd.RegBytes(make([]byte, 8), ib.AccessLocalWrite|ib.AccessRemoteRead|ib.AccessRemoteWrite)
			x.failOnError(err)
			for _, qp := range []*ib.QP{x.a, x.b} {
				x.failOnError(qp.Modify(ib.QPAttr{AccessFlags: ib.AccessRemoteRead | ib.AccessRemoteWrite}, ib.QPAttrAccessFlags))
			}
			c.run(x)
			x.pollAll()
			x.failOnError(remote.Dereg())
			x.destroyBothAndExpect(c.want...)
		})
	}
}

// TestCheckReportsQPLeftInSQE checks that a consumer that continues to post after the failure of a datagram must move
// the queue pair from SQE to RTS.
func TestCheckReportsQPLeftInSQE(t *testing.T) {
	for _, recovers := range []bool{false, true} {
		x := newConsumer(t, consumerConfig{})
		here, err := x.dev.Local(1)
		x.failOnError(err)
		ud, err := x.pd.CreateQP(ib.QPInitAttr{Type: ib.QPTypeUD, SendCQ: x.cq, RecvCQ: x.cq,
			Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
		x.failOnError(err)
		x.failOnError(ud.ConnectDatagram(here, ib.Endpoint{QKey: 1}))
		to := here.AddressTo(here.GID)
		ah, err := x.pd.CreateAH(&to)
		x.failOnError(err)
		for i := range 20 {
			list := x.firstRegionSGL()
			if i == 0 {
				list[0].LKey ^= 0x5555 // fails
			}
			_, err := ud.PostSend(ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: list, AH: ah,
				RemoteQPN: ud.Num(), RemoteQKey: 1})
			x.failOnError(err)
			x.pollAll()
			if i == 0 && recovers {
				x.failOnError(ud.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
			}
		}
		x.failOnError(ud.Destroy())
		x.failOnError(ah.Destroy())
		if recovers {
			x.destroyBothAndExpect()
		} else {
			x.destroyBothAndExpect(check.RuleLeftInSQE)
		}
	}
}

// TestCheckReportsEndlessFlush checks that a handler must not post a receive again each time it is flushed.
func TestCheckReportsEndlessFlush(t *testing.T) {
	for _, again := range []bool{false, true} {
		var x *testConsumer
		var stop atomic.Bool
		x = newConsumer(t, consumerConfig{handler: func(cq *ib.CQ) {
			var wc [1]ib.WC
			for missed := true; missed && !stop.Load(); {
				if n, _ := cq.Poll(wc[:]); n == 1 && (again || wc[0].Status == ib.WCSuccess) {
					ignoreError(x.a.PostRecv(ib.RecvWR{}))
				}
				missed, _ = cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed)
			}
		}})
		_, err := x.cq.ReqNotify(ib.NotifyNextComp)
		x.failOnError(err)
		_, err = x.a.PostRecv(ib.RecvWR{})
		x.failOnError(err)
		x.moveToError(x.a)
		reported := testutil.PollUntil(func() bool { return !again || len(x.reportedRules()) > 0 })
		stop.Store(true)
		time.Sleep(10 * time.Millisecond) // the handler ends
		if !reported {
			t.Error("reported: got no rule, want endless-flush")
		}
		if again {
			x.destroyBothAndExpect(check.RuleEndlessFlush)
		} else {
			x.destroyBothAndExpect()
		}
	}
}

// TestWeakFaultsKeepContract checks that the device that fails violates no rule.
func TestWeakFaultsKeepContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newConsumer(t, consumerConfig{weak: weak.Of(weak.FailedRequest)})
		failed := 0
		for range 1 << 7 {
			if _, err := x.a.PostSend(ib.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RemoteAddr: x.mr.Addr(),
				RKey: x.mr.RKey()}); err != nil {
				t.Fatal(err)
			}
			var wc [1]ib.WC
			for n := 0; n == 0; testutil.AdvanceTime(time.Millisecond) {
				var err error
				if n, err = x.cq.Poll(wc[:]); err != nil {
					t.Fatal(err)
				}
			}
			if wc[0].Status != ib.WCSuccess && wc[0].Status != ib.WCWRFlushErr {
				failed++
			}
		}
		if got := x.a.State(); failed != 1 || got != ib.QPErr {
			t.Errorf("got %d failed requests and state %v, want 1 and %v", failed, got, ib.QPErr)
		}
		x.destroyBothAndExpect()
	})
}
