package check_test

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/internal/observe"
	"verbena/internal/gate"
	"verbena/internal/testutil"
)

// twoDevices is two devices of one core. The first device has a doorbell.
type twoDevices struct {
	*testing.T
	benches []*testBench
	seen    *violationRecorder
	queue   ib.UserQP
	handler func(i int) // called by the completion handlers; may be nil
}

func newTwoDevices(t *testing.T, ring func(w *twoDevices, h *ib.Hold)) *twoDevices {
	w := &twoDevices{T: t, seen: &violationRecorder{}}
	core := &ib.Core{}
	check.On(core, check.Config{Report: w.seen.recordViolation})
	for i := range 2 {
		w.benches = append(w.benches, newBenchNamed(t, core, "fake"+strconv.Itoa(i), func(*ib.CQ) {
			if w.handler != nil {
				w.handler(i)
			}
		}, nil))
		must(t, errorOf(w.benches[i].cq.ReqNotify(ib.NotifyNextComp)))
	}
	w.benches[0].drv.qp.OnDoorbell(func(h *ib.Hold) { ring(w, h) })
	w.queue, _ = ib.ForUser(gate.NewKey()).Queue(w.benches[0].qp)
	return w
}

// raiseCompletionOn makes the handler of device i due.
func (w *twoDevices) raiseCompletionOn(i int) { w.benches[i].drv.cq.Completed() }

// ringDoorbell calls Doorbell in the same way as uverbs: the callbacks of the first device are held from the start.
func (w *twoDevices) ringDoorbell(h *ib.Hold, run func()) {
	ib.ForUser(gate.NewKey()).HoldCallbacks(w.benches[0].dev, h)
	w.queue.Doorbell(h)
	run()
}

// destroyAllAndExpect destroys all objects, and checks that exactly these rules were violated.
func (w *twoDevices) destroyAllAndExpect(rules ...check.Rule) {
	w.Helper()
	for _, b := range w.benches {
		b.destroyAll(w)
	}
	w.seen.expectRules(w.T, rules...)
}

type workFunc func()

func (f workFunc) Run() { f() }

// TestCheckReportsBadHolds checks the reports for incorrect use of Holds.
func TestCheckReportsBadHolds(t *testing.T) {
	add := func(w *twoDevices, h *ib.Hold) { h.Add(w.benches[1].handle) }
	none := func(*twoDevices, *ib.Hold) {}
	for _, test := range []struct {
		name     string
		doorbell func(w *twoDevices, h *ib.Hold)
		run      func(w *twoDevices, h *ib.Hold)
		want     string // "": no report
	}{
		{"Add in a doorbell with this Hold", add, func(w *twoDevices, h *ib.Hold) { w.ringDoorbell(h, h.Run) }, ""},
		{"added by deferred work", func(w *twoDevices, h *ib.Hold) {
			h.Defer(workFunc(func() { add(w, h); w.raiseCompletionOn(1) }))
		}, func(w *twoDevices, h *ib.Hold) { w.ringDoorbell(h, h.Run) }, ""},
		{"run in the doorbell", func(w *twoDevices, h *ib.Hold) { add(w, h); h.Run() }, func(w *twoDevices, h *ib.Hold) {
			w.ringDoorbell(h, h.Run)
		}, "Hold.Run called in UserQP.Doorbell"},
		{"Add to another Hold in a doorbell", func(w *twoDevices, h *ib.Hold) {
			var other ib.Hold
			add(w, &other)
			other.Run()
		}, func(w *twoDevices, h *ib.Hold) { w.ringDoorbell(h, h.Run) }, "Hold.Add called in UserQP.Doorbell"},
		{"Add to another Hold in a doorbell without a Hold", func(w *twoDevices, h *ib.Hold) {
			var other ib.Hold
			add(w, &other)
			other.Run()
		}, func(w *twoDevices, h *ib.Hold) { w.queue.Doorbell(nil) }, "Hold.Add called in UserQP.Doorbell"},
		{"HoldCallbacks in a doorbell", func(w *twoDevices, h *ib.Hold) {
			w.benches[1].handle.HoldCallbacks()
			w.benches[1].handle.RunCallbacks()
		}, func(w *twoDevices, h *ib.Hold) { w.ringDoorbell(h, h.Run) }, "HoldCallbacks called in UserQP.Doorbell"},
		{"RunCallbacks in a doorbell", func(w *twoDevices, h *ib.Hold) { w.benches[1].handle.RunCallbacks() },
			func(w *twoDevices, h *ib.Hold) {
				w.benches[1].handle.HoldCallbacks()
				w.ringDoorbell(h, h.Run)
			}, "RunCallbacks called in UserQP.Doorbell"},
		{"added in post send", none, func(w *twoDevices, h *ib.Hold) {
			w.benches[0].drv.onPost = func() { add(w, h) }
			w.benches[0].qp.PostSend(ib.SendWR{})
			w.benches[0].drv.onPost = nil
			h.Run()
		}, "Hold.Add called in QP.PostSend"},
		{"run in post send", none, func(w *twoDevices, h *ib.Hold) {
			add(w, h)
			w.benches[0].drv.onPost = h.Run
			w.benches[0].qp.PostSend(ib.SendWR{})
			w.benches[0].drv.onPost = nil
		}, "Hold.Run called in QP.PostSend"},
		{"added in a callback", none, func(w *twoDevices, h *ib.Hold) {
			w.handler = func(int) { w.handler = nil; add(w, h); h.Run() }
			w.raiseCompletionOn(0)
			testutil.Eventually(t, "a report", func() bool { return len(w.seen.violations()) > 0 })
		}, "Hold.Add called in the completion handler"},
		{"run by another thread", none, func(w *twoDevices, h *ib.Hold) {
			add(w, h)
			var ran atomic.Bool
			go func() {
				h.Run()
				ran.Store(true)
			}()
			for !ran.Load() { // the method may not sleep
				runtime.Gosched()
			}
			observe.Of(w.benches[1].dev).RecordEvent(observe.HoldEnds, h) // ends the hold on this thread
		}, "Hold.Run called by a thread that has not called Hold.Add"},
		{"never run", none, func(w *twoDevices, h *ib.Hold) {
			var wg sync.WaitGroup
			wg.Go(func() { add(w, h) })
			wg.Wait()
			for len(w.seen.violations()) == 0 {
				runtime.Gosched()
			}
		}, "the thread that called Hold.Add ended without Hold.Run"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newTwoDevices(t, test.doorbell)
			var h ib.Hold
			test.run(w, &h)
			rules := make([]check.Rule, 0)
			for range w.seen.violations() {
				rules = append(rules, check.RuleHold) // one violation for each held device
			}
			w.destroyAllAndExpect(rules...)
			if reported := len(rules) > 0; reported != (test.want != "") {
				t.Errorf("reported: got %v, want %v", reported, !reported)
			}
			for _, v := range w.seen.violations() {
				if v.What != test.want {
					t.Errorf("got %q, want %q", v.What, test.want)
				}
			}
		})
	}
}

// TestCheckReportsHangingCallbackInHold checks that a callback that does not return is reported, and that callbacks of
// other devices run.
func TestCheckReportsHangingCallbackInHold(t *testing.T) {
	for name, end := range map[string]func(){"panics": func() { panic("test") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTwoDevices(t, func(w *twoDevices, h *ib.Hold) {
					h.Add(w.benches[1].handle)
					w.raiseCompletionOn(0)
					w.raiseCompletionOn(1)
				})
				var ran [2]int
				w.handler = func(i int) {
					if ran[i]++; i == 0 {
						end()
					}
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { _ = recover() }()
					var h ib.Hold
					w.ringDoorbell(&h, h.Run)
				})
				wg.Wait()
				synctest.Wait()
				if ran != [2]int{1, 1} {
					t.Errorf("handler calls: got %v, want one on each device", ran)
				}
				w.destroyAllAndExpect(check.RuleCallbackReturns)
			})
		})
	}
}

// TestHoldBeforeChecksIsIgnored begins a hold before Register, which is not observed. The test checks that the end of
// this hold is no violation, and that the end of another hold is one.
func TestHoldBeforeChecksIsIgnored(t *testing.T) {
	w, core := &violationRecorder{}, &ib.Core{}
	check.On(core, check.Config{Report: w.recordViolation})
	d, _ := newDevice("fake0")
	var h ib.Hold
	h.Add(d)
	must(t, core.Register(d))
	h.Run()
	w.expectRules(t)
	observe.Of(d.Device()).RecordEvent(observe.HoldEnds, &h)
	w.expectRules(t, check.RuleHold)
	must(t, core.Unregister(d))
}

// Packets arrive during Register, and threads hold the callbacks of the device while they process the packets.
func TestHoldsDuringRegisterAreAllowed(t *testing.T) {
	w := &violationRecorder{}
	for range 100 {
		core := &ib.Core{}
		check.On(core, check.Config{Report: w.recordViolation})
		h, _ := newDevice("fake0")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						h.HoldCallbacks()
						h.RunCallbacks()
					}
				}
			})
		}
		must(t, core.Register(h))
		close(stop)
		wg.Wait()
		must(t, core.Unregister(h))
	}
	w.expectRules(t)
}
