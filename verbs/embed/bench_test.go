//go:build !race

package embed_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"verbena/verbs"
	"verbena/verbs/embed"
)

const messageSize = 64

// newConnectedEnds returns two connected ends on one device, without a network between them.
func newConnectedEnds(tb testing.TB) (a, b *testEnd) {
	tb.Helper()
	dev := openDevice(tb, newSoftwareStack(tb, embed.Software{}), "")
	a, b = newTestEnd(tb, dev, verbs.QPInit{Inline: messageSize}), newTestEnd(tb, dev, verbs.QPInit{})
	if err := verbs.ConnectPair(a.qp, b.qp); err != nil {
		tb.Fatal(err)
	}
	return a, b
}

// pollOne waits for one completion without sleeping.
func (e *testEnd) pollOne(tb testing.TB, wc []verbs.WC) {
	for {
		n, err := e.cq.Poll(wc[:1])
		if err != nil {
			tb.Fatal(err)
		}
		if n == 1 {
			break
		}
		runtime.Gosched()
	}
	if wc[0].Status != verbs.Success {
		tb.Fatal(verbs.CompletionError(&wc[0]))
	}
}

// messageFunctions returns functions. Each function executes one message, from the post to its completions.
func messageFunctions(tb testing.TB) map[string]func() {
	a, b := newConnectedEnds(tb)
	wc := make([]verbs.WC, 1)
	send := func(wr *verbs.SendWR) {
		if err := a.qp.PostSend(wr); err != nil {
			tb.Fatal(err)
		}
	}
	write := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: a.mr.SGE(0, messageSize),
		Remote: b.remoteMemory()}
	inline := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Inline: make([]byte, messageSize),
		Remote: b.remoteMemory()}
	read := verbs.SendWR{Opcode: verbs.Read, Flags: verbs.Signaled, Local: a.mr.SGE(0, messageSize),
		Remote: b.remoteMemory()}
	message := verbs.SendWR{Opcode: verbs.Send, Flags: verbs.Signaled, Local: a.mr.SGE(0, messageSize)}
	recv := verbs.RecvWR{Local: b.mr.SGE(0, messageSize)}
	batch := make([]verbs.SendWR, 32)
	for i := range batch {
		batch[i] = write
		batch[i].Flags = 0
	}
	batch[len(batch)-1].Flags = verbs.Signaled
	one := func(wr *verbs.SendWR) func() {
		return func() {
			send(wr)
			a.pollOne(tb, wc)
		}
	}
	return map[string]func(){
		"WRITE": one(&write), "WRITE inline": one(&inline), "READ": one(&read),
		"SEND": func() {
			if err := b.qp.PostRecv(&recv); err != nil {
				tb.Fatal(err)
			}
			send(&message)
			b.pollOne(tb, wc)
			a.pollOne(tb, wc)
		},
		"32 WRITEs": func() {
			if _, err := a.qp.PostSends(batch); err != nil {
				tb.Fatal(err)
			}
			a.pollOne(tb, wc)
		},
	}
}

// BenchmarkOperation measures messages of 64 bytes on one device from the post to the poll of their completions.
func BenchmarkOperation(b *testing.B) {
	for _, name := range []string{"WRITE", "WRITE inline", "SEND", "READ", "32 WRITEs"} {
		b.Run(name, func(b *testing.B) {
			f := messageFunctions(b)[name]
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}

// TestDataPathDoesNotAllocate checks that PostSend, PostSends, PostRecv and Poll do not allocate, either in package
// verbs or in the device.
func TestDataPathDoesNotAllocate(t *testing.T) {
	for name, f := range messageFunctions(t) {
		for range 100 {
			f() // the first call is not counted, because it may allocate
		}
		if n := testing.AllocsPerRun(2000, f); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

// TestWaitDoesNotAllocate checks the same for a Wait that sleeps.
func TestWaitDoesNotAllocate(t *testing.T) {
	a, b := newConnectedEnds(t)
	wc := make([]verbs.WC, 1)
	write := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: a.mr.SGE(0, messageSize),
		Remote: b.remoteMemory()}
	post, posted := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(posted)
		for range post {
			time.Sleep(300 * time.Microsecond) // gives the other goroutine time to fall asleep
			if err := a.qp.PostSend(&write); err != nil {
				t.Error(err)
			}
		}
	}()
	wait := func(ctx context.Context) {
		post <- struct{}{}
		if _, err := a.cq.Wait(ctx, wc); err != nil {
			t.Error(err)
		}
	}
	for name, ctx := range map[string]context.Context{"Background": context.Background(), "cancelable": t.Context()} {
		for range 20 {
			wait(ctx)
		}
		if n := testing.AllocsPerRun(200, func() { wait(ctx) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
	close(post)
	<-posted
}

// BenchmarkWrite measures a stream of RDMA WRITEs between two buffers that exceed the caches. The stream alternates
// with copies of the same size. Each copy has the size of a WRITE, at most 256 KB, because Go's memmove bypasses the
// cache from 1 MB on.
func BenchmarkWrite(b *testing.B) {
	const memory, turn = 64 << 20, 16 << 20
	for _, c := range []struct {
		name        string
		size, depth int
	}{{"4KB", 4 << 10, 32}, {"64KB", 64 << 10, 8}, {"1MB", 1 << 20, 4}} {
		b.Run(c.name, func(b *testing.B) {
			x, y := newConnectedEnds(b)
			from, to := x.allocMemory(b, memory), y.allocMemory(b, memory)
			wc := make([]verbs.WC, 1)
			write := func(at int) {
				flight := 0
				for off := at; off < at+turn; off += c.size {
					if flight == c.depth {
						x.pollOne(b, wc)
						flight--
					}
					wr := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: from.SGE(off, c.size),
						Remote: to.Remote(off)}
					if err := x.qp.PostSend(&wr); err != nil {
						b.Fatal(err)
					}
					flight++
				}
				for ; flight > 0; flight-- {
					x.pollOne(b, wc)
				}
			}
			src, dst := from.Bytes(), to.Bytes()
			move := func(at, size int) {
				for off := at; off < at+turn; off += size {
					copy(dst[off:off+size], src[off:])
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
				at := func(n int) int { return (i*turn + n*memory/4) % memory }
				took(&writes, func() { write(at(0)) })
				took(&copies, func() { move(at(1), c.size) })
				took(&pieces, func() { move(at(2), min(c.size, 256<<10)) })
			}
			typical := medianSeconds(writes)
			b.ReportMetric(turn/1e6/typical, "MB/s")
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

// allocMemory returns memory of the end, with all pages present. The memory is freed at the end of the benchmark.
func (e *testEnd) allocMemory(b *testing.B, size int) *verbs.MR {
	mr, err := e.pd.Alloc(size, verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = mr.Close() })
	for i, mem := 0, mr.Bytes(); i < size; i++ {
		mem[i] = byte(i)
	}
	return mr
}
