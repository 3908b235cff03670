package check_test

import (
	"testing"
	"time"

	"verbena/ib"
	"verbena/ib/check"
)

// benchInCheckedMode runs f in checked mode on a driver with empty methods. Package ib has the same benchmarks without
// checked mode.
func benchInCheckedMode(b *testing.B, f func(b *testBench)) {
	benchInCheckedModeWithHandler(b, func(*ib.CQ) {}, f)
}

func benchInCheckedModeWithHandler(b *testing.B, handler func(*ib.CQ), f func(b *testBench)) {
	core := &ib.Core{}
	check.On(core, check.Config{Report: func(v check.Violation) { b.Error(v) }, Timeout: time.Minute})
	w := newBenchOn(b, core, handler, nil)
	w.drv.post = func() (int, error) { return 1, nil }
	w.drv.poll = func() (int, error) { return 0, nil }
	w.drv.arm = func() (bool, error) { return false, nil }
	b.ReportAllocs()
	for b.Loop() {
		f(w)
	}
	w.destroyAll(b)
}

func BenchmarkPostSend(b *testing.B) {
	wrs := make([]ib.SendWR, 1)
	benchInCheckedMode(b, func(b *testBench) { b.qp.PostSend(wrs...) })
}

func BenchmarkPollCQ(b *testing.B) {
	wc := make([]ib.WC, 1)
	benchInCheckedMode(b, func(b *testBench) { b.cq.Poll(wc) })
}

func BenchmarkReqNotifyCQ(b *testing.B) {
	benchInCheckedMode(b, func(b *testBench) { b.cq.ReqNotify(ib.NotifyNextComp) })
}

// BenchmarkCallbackSameThread measures a completion and its handler, both on the same thread.
func BenchmarkCallbackSameThread(b *testing.B) {
	benchInCheckedMode(b, func(b *testBench) {
		b.cq.ReqNotify(ib.NotifyNextComp)
		b.handle.HoldCallbacks()
		b.drv.cq.Completed()
		b.handle.RunCallbacks()
	})
}

// BenchmarkCallbackOnWorker measures a completion and its handler on a worker goroutine.
func BenchmarkCallbackOnWorker(b *testing.B) {
	called := make(chan int, 1)
	benchInCheckedModeWithHandler(b, func(*ib.CQ) { called <- 1 }, func(b *testBench) {
		b.cq.ReqNotify(ib.NotifyNextComp)
		b.drv.cq.Completed()
		<-called
	})
}
