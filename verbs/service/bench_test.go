package service_test

import (
	"context"
	"os"
	"testing"

	"verbena/internal/ctl"
	"verbena/internal/sched"
	server "verbena/service"
	"verbena/verbs"
	"verbena/verbs/service"
)

// newBenchService is a service in this process or, for figures without its garbage and its threads, that of $VERBENA_SOCKET.
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

// end is a queue pair on an open device of its own.
type end struct {
	tb testing.TB
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
	wc []verbs.WC
}

func newEnd(tb testing.TB, s *service.Service, memory int) *end {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	d, err := s.Open("")
	must(err)
	tb.Cleanup(func() { d.Close() })
	pd, err := d.AllocPD()
	must(err)
	e := &end{tb: tb, wc: make([]verbs.WC, 16)}
	e.mr, err = pd.Alloc(memory, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic)
	must(err)
	e.cq, err = d.CreateCQ(1024, nil)
	must(err)
	e.qp, err = pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SendWRs: 256, RecvWRs: 256, Inline: 64})
	must(err)
	return e
}

func (e *end) connect(to *end) {
	e.tb.Helper()
	if err := verbs.ConnectPair(e.qp, to.qp); err != nil {
		e.tb.Fatal(err)
	}
}

// done waits for n completions. Other threads run on this processor meanwhile.
func (e *end) done(n int) {
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

func (e *end) post(wr *verbs.SendWR) {
	if err := e.qp.PostSend(wr); err != nil {
		e.tb.Error(err)
	}
}

func (e *end) recv(n int) {
	for range n {
		if err := e.qp.PostRecv(&verbs.RecvWR{Local: e.mr.SGE(0, 64)}); err != nil {
			e.tb.Error(err)
		}
	}
}

// BenchmarkPingPong is a round trip of 64 bytes between two open devices.
func BenchmarkPingPong(b *testing.B) {
	s := newBenchService(b)
	x, y := newEnd(b, s, 4096), newEnd(b, s, 4096)
	x.connect(y)
	x.recv(8)
	y.recv(8)
	wr := verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, 64)}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for range b.N {
			y.done(1)
			y.recv(1)
			y.post(&wr)
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		x.post(&wr)
		x.done(1)
		x.recv(1)
	}
	b.StopTimer()
	<-answered
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
}

// BenchmarkWait is the same with CQ.Wait.
func BenchmarkWait(b *testing.B) {
	s := newBenchService(b)
	x, y := newEnd(b, s, 4096), newEnd(b, s, 4096)
	x.connect(y)
	x.recv(8)
	y.recv(8)
	wr := verbs.SendWR{Opcode: verbs.Send, Inline: make([]byte, 64)}
	answered := make(chan struct{})
	wait := func(e *end) {
		if n, err := e.cq.Wait(context.Background(), e.wc[:1]); n != 1 || err != nil {
			b.Error(n, err)
		}
	}
	go func() {
		defer close(answered)
		for range b.N {
			wait(y)
			y.recv(1)
			y.post(&wr)
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		x.post(&wr)
		wait(x)
		x.recv(1)
	}
	b.StopTimer()
	<-answered
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
}

// BenchmarkWrite is a stream of RDMA WRITEs, of which some are in flight.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name        string
		size, depth int
	}{{"64B", 64, 64}, {"4KB", 4096, 32}, {"64KB", 64 << 10, 8}, {"1MB", 1 << 20, 4}} {
		b.Run(c.name, func(b *testing.B) {
			s := newBenchService(b)
			const memory = 64 << 20
			x, y := newEnd(b, s, memory), newEnd(b, s, memory)
			x.connect(y)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			flight, at := 0, 0
			for range b.N {
				if flight == c.depth {
					x.done(1)
					flight--
				}
				x.post(&verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: x.mr.SGE(at, c.size), Remote: y.mr.Remote(at)})
				flight++
				if at += c.size; at+c.size > memory {
					at = 0
				}
			}
			x.done(flight)
		})
	}
	b.Run("memcpy 1MB", func(b *testing.B) {
		const memory = 64 << 20
		from, to := make([]byte, memory), make([]byte, memory)
		b.SetBytes(1 << 20)
		for i := range b.N {
			at := i % 64 << 20
			copy(to[at:at+1<<20], from[at:])
		}
	})
}
