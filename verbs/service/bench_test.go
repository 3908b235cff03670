package service_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/sched"
	server "verbena/service"
	"verbena/verbs"
	"verbena/verbs/service"
)

// newBenchService returns a service in this process. If VERBENA_SOCKET is set, it returns that service instead, to
// exclude the service's garbage and threads from the figures.
func newBenchService(tb testing.TB) *service.Service {
	tb.Helper()
	if s := os.Getenv("VERBENA_SOCKET"); s != "" {
		x, err := service.At(s)
		if err != nil {
			tb.Fatal(err)
		}
		return x
	}
	return newService(tb, server.Options{Links: []ctl.LinkSpec{{Name: "rxe0", Addrs: []string{"127.91.12.2"}}}})
}

// testEnd is a queue pair on its own open device.
type testEnd struct {
	tb testing.TB
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
	wc []verbs.WC
}

func newTestEnd(tb testing.TB, s *service.Service, memory int) *testEnd {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	d, err := s.Open("rxe0")
	must(err)
	tb.Cleanup(func() { d.Close() })
	pd, err := d.AllocPD()
	must(err)
	e := &testEnd{tb: tb, wc: make([]verbs.WC, 16)}
	e.mr, err = pd.Alloc(memory, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic)
	must(err)
	e.cq, err = d.CreateCQ(1024, nil)
	must(err)
	e.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SendWRs: 256, RecvWRs: 256, Inline: 64})
	must(err)
	return e
}

func (e *testEnd) connectTo(to *testEnd) {
	e.tb.Helper()
	if err := verbs.ConnectPair(e.qp, to.qp); err != nil {
		e.tb.Fatal(err)
	}
}

// awaitCompletions waits for n completions. Other threads run on this processor during the wait.
func (e *testEnd) awaitCompletions(n int) {
	for n > 0 {
		got, err := e.cq.Poll(e.wc[:min(n, len(e.wc))])
		if err != nil {
			e.tb.Error(err)
			return
		}
		for i := range got {
			if err := verbs.CompletionError(&e.wc[i]); err != nil {
				e.tb.Error(err)
				return
			}
		}
		if n -= got; got == 0 {
			sched.Yield()
		}
	}
}

func (e *testEnd) postSend(wr *verbs.SendWR) {
	if err := e.qp.PostSend(wr); err != nil {
		e.tb.Error(err)
	}
}

func (e *testEnd) postRecvs(n int) {
	for range n {
		if err := e.qp.PostRecv(&verbs.RecvWR{Local: e.mr.SGE(0, 64)}); err != nil {
			e.tb.Error(err)
		}
	}
}

// BenchmarkPingPong measures a round trip of 64 bytes between two open devices.
func BenchmarkPingPong(b *testing.B) {
	s := newBenchService(b)
	x, y := newTestEnd(b, s, 4096), newTestEnd(b, s, 4096)
	x.connectTo(y)
	x.postRecvs(8)
	y.postRecvs(8)
	wr := verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, 64)}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for range b.N {
			y.awaitCompletions(1)
			y.postRecvs(1)
			y.postSend(&wr)
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		x.postSend(&wr)
		x.awaitCompletions(1)
		x.postRecvs(1)
	}
	b.StopTimer()
	<-answered
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
}

// BenchmarkPingPongWait measures the same with CQ.Wait.
func BenchmarkPingPongWait(b *testing.B) {
	s := newBenchService(b)
	x, y := newTestEnd(b, s, 4096), newTestEnd(b, s, 4096)
	x.connectTo(y)
	x.postRecvs(8)
	y.postRecvs(8)
	wr := verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, 64)}
	answered := make(chan struct{})
	wait := func(e *testEnd) {
		if n, err := e.cq.Wait(context.Background(), e.wc[:1]); n != 1 || err != nil {
			b.Error(n, err)
		}
	}
	go func() {
		defer close(answered)
		for range b.N {
			wait(y)
			y.postRecvs(1)
			y.postSend(&wr)
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		x.postSend(&wr)
		wait(x)
		x.postRecvs(1)
	}
	b.StopTimer()
	<-answered
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
}

// BenchmarkWrite measures a stream of RDMA WRITEs, several in flight, between two buffers that exceed the caches. The
// stream alternates with copies of the same size. Each copy has the size of a WRITE, at most 256 KB, because Go's
// memmove bypasses the cache from 1 MB on. The service falls asleep during the copies. After all threads of the service
// have slept, the monitor of its Go runtime wakes fifty times within one or two milliseconds. If the monitor wakes on
// the processor of the copying thread, the copy is delayed by more than the monitor's own time. The effect is visible
// in a short iteration of some milliseconds, but not in a long one.
func BenchmarkWrite(b *testing.B) {
	const memory, burst, stream = 64 << 20, 16 << 20, 256 << 20
	for _, c := range []struct {
		name              string
		size, depth, turn int
	}{
		{"64B", 64, 64, burst}, {"4KB", 4096, 32, stream}, {"64KB", 64 << 10, 8, stream}, {"1MB", 1 << 20, 4, stream},
		{"1MB-burst", 1 << 20, 4, burst},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newBenchService(b)
			x, y := newTestEnd(b, s, memory), newTestEnd(b, s, memory)
			x.connectTo(y)
			from, to := x.mr.Bytes(), y.mr.Bytes()
			for i := range from { // makes every page present
				from[i], to[i] = byte(i), 1
			}
			write := func(at int) {
				flight := 0
				for i := at; i < at+c.turn; i += c.size {
					off := i % memory
					if flight == c.depth {
						x.awaitCompletions(1)
						flight--
					}
					x.postSend(&verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: x.mr.SGE(off, c.size),
						Remote: y.mr.Remote(off)})
					flight++
				}
				x.awaitCompletions(flight)
			}
			move := func(at, size int) {
				for i := at; i < at+c.turn; i += size {
					off := i % memory
					copy(to[off:off+size], from[off:])
				}
			}
			var writes, copies, pieces []time.Duration // times of each iteration
			took := func(list *[]time.Duration, f func()) {
				start := time.Now()
				f()
				*list = append(*list, time.Since(start))
			}
			b.ResetTimer()
			for i := range b.N {
				at := func(n int) int { return (i*c.turn + n*memory/4) % memory }
				took(&writes, func() { write(at(0)) })
				took(&copies, func() { move(at(1), c.size) })
				took(&pieces, func() { move(at(2), min(c.size, 256<<10)) })
			}
			typical := medianSeconds(writes)
			b.ReportMetric(float64(c.turn)/1e6/typical, "MB/s")
			b.ReportMetric(medianSeconds(copies)/typical, "×memcpy")
			b.ReportMetric(medianSeconds(pieces)/typical, "×memcpy-256KB")
		})
	}
}

// medianSeconds returns the median of times in seconds.
func medianSeconds(list []time.Duration) float64 {
	slices.Sort(list)
	return list[len(list)/2].Seconds()
}
