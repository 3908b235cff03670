package ib

import "testing"

// nullQP and nullCQ do nothing, so that a benchmark measures the midlayer alone.
type nullQP struct{ fakeQP }

func (*nullQP) PostSend(wrs []SendWR) (int, error) { return len(wrs), nil }

type nullCQ struct{ fakeCQ }

func (*nullCQ) Poll([]WC) (int, error)              { return 0, nil }
func (*nullCQ) ReqNotify(NotifyFlags) (bool, error) { return false, nil }

// installNullObjects installs nullQP and nullCQ in the bench.
func (b *testBench) installNullObjects() {
	b.qp.drv, b.cq.drv = &nullQP{fakeQP{d: b.drv}}, &nullCQ{fakeCQ{d: b.drv}}
	b.qp.queue, b.cq.queue = b.qp.drv, b.cq.drv
}

// benchDirectAndMidlayer measures a direct call of the driver's method and the same call through the midlayer. Package
// check has the benchmarks of checked mode.
func benchDirectAndMidlayer(b *testing.B, direct func(b *testBench), through func(b *testBench)) {
	run := func(name string, f func(*testBench)) {
		b.Run(name, func(b *testing.B) {
			w := newBench(b, func(*CQ) {}, nil, nil)
			w.installNullObjects()
			b.ReportAllocs()
			for b.Loop() {
				f(w)
			}
			w.destroyAll(b)
		})
	}
	if direct != nil {
		run("driver", direct)
	}
	run("ib", through)
}

func BenchmarkPostSend(b *testing.B) {
	wrs := make([]SendWR, 1)
	benchDirectAndMidlayer(b, func(b *testBench) { b.qp.drv.PostSend(wrs) }, func(b *testBench) { b.qp.PostSend(wrs...) })
}

func BenchmarkPollCQ(b *testing.B) {
	wc := make([]WC, 1)
	benchDirectAndMidlayer(b, func(b *testBench) { b.cq.drv.Poll(wc) }, func(b *testBench) { b.cq.Poll(wc) })
}

func BenchmarkReqNotifyCQ(b *testing.B) {
	benchDirectAndMidlayer(b, func(b *testBench) { b.cq.drv.ReqNotify(NotifyNextComp) },
		func(b *testBench) { b.cq.ReqNotify(NotifyNextComp) })
}

// BenchmarkCallbackSameThread measures a completion and its handler, both on the same thread.
func BenchmarkCallbackSameThread(b *testing.B) {
	benchDirectAndMidlayer(b, nil, func(b *testBench) {
		b.cq.ReqNotify(NotifyNextComp)
		b.dev.handle.HoldCallbacks()
		CQHandle{cq: b.cq}.Completed()
		b.dev.handle.RunCallbacks()
	})
}

// BenchmarkCallbackOnWorker measures a completion and its handler on a worker goroutine.
func BenchmarkCallbackOnWorker(b *testing.B) {
	benchDirectAndMidlayer(b, nil, func(b *testBench) {
		b.cq.ReqNotify(NotifyNextComp)
		CQHandle{cq: b.cq}.Completed()
		b.dev.callbacks.drainCallbacks()
	})
}

// TestDataPathDoesNotAllocate checks that the midlayer does not allocate in post, poll and notification requests.
func TestDataPathDoesNotAllocate(t *testing.T) {
	w := newBench(t, func(*CQ) {}, nil, nil)
	w.installNullObjects()
	wrs, recvs, wc := make([]SendWR, 4), make([]RecvWR, 4), make([]WC, 4)
	for name, f := range map[string]func(){
		"PostSend":  func() { w.qp.PostSend(wrs...) },
		"PostRecv":  func() { w.qp.PostRecv(recvs...) },
		"Poll":      func() { w.cq.Poll(wc) },
		"ReqNotify": func() { w.cq.ReqNotify(NotifyNextComp) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, n)
		}
	}
	w.destroyAll(t)
}
