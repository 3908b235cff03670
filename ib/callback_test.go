package ib

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"verbena/internal/testutil"
)

// isOnStack reports whether the callchain contains a function with a name that ends in suffix.
func isOnStack(suffix string) bool {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, suffix) {
			return true
		}
		if !more {
			return false
		}
	}
}

// TestCallbackIsNotInCallchain checks that a completion raised inside PostSend is not delivered in the callchain of
// PostSend. The test runs with and without a thread that holds callbacks.
func TestCallbackIsNotInCallchain(t *testing.T) {
	for _, hold := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { // in a synctest bubble holds do not become stale
			calls, nested := make(chan struct{}, 1), false
			b := newBench(t, func(*CQ) {
				nested = isOnStack(".PostSend")
				calls <- struct{}{}
			}, nil, nil)
			if hold {
				b.dev.handle.HoldCallbacks()
			}
			b.cq.ReqNotify(NotifyNextComp)
			b.qp.PostSend(SendWR{})
			if hold {
				if len(calls) != 0 {
					t.Errorf("handler calls before RunCallbacks: got %d, want none", len(calls))
				}
				b.dev.handle.RunCallbacks()
				if len(calls) != 1 {
					t.Errorf("handler calls after RunCallbacks: got %d, want 1", len(calls))
				}
			}
			<-calls
			if nested {
				t.Errorf("callchain with hold=%v: got a handler call inside PostSend, want none", hold)
			}
		})
	}
}

// TestNoLostNotification raises completions on many threads while the handler polls and re-arms. Half of the threads
// run callbacks themselves. At most one handler may run at a time, and no completion may be lost.
func TestNoLostNotification(t *testing.T) {
	const threads, each = 8, 3000
	var running, polled atomic.Int32
	all := make(chan struct{})
	b := newBench(t, func(cq *CQ) {
		if running.Add(1) != 1 {
			t.Error("handlers running: got 2, want 1 at a time")
		}
		wc := make([]WC, 7)
		for {
			n, _ := cq.Poll(wc)
			if polled.Add(int32(n)) == threads*each && n > 0 {
				close(all)
			}
			if n > 0 {
				continue
			}
			if missed, _ := cq.ReqNotify(NotifyNextComp | NotifyReportMissed); !missed {
				break
			}
		}
		running.Add(-1)
	}, nil, nil)
	b.cq.ReqNotify(NotifyNextComp)
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for range each {
				if i%2 == 0 {
					b.dev.handle.HoldCallbacks()
				}
				b.qp.PostSend(SendWR{})
				if i%2 == 0 {
					b.dev.handle.RunCallbacks()
				}
			}
		})
	}
	wg.Wait()
	<-all
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
}

// TestCallbackQueueMatchesModel compares random sequences of holds, completions and runs with a model of one queue.
func TestCallbackQueueMatchesModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var (
			// The counters are: raised completions, completions raised before the last handler call, and handler calls.
			completed, seen, calls atomic.Int64
			running                atomic.Int32
			holds                  int
			inside                 func(cq *CQ) // further actions of the handler
			insideMu               sync.Mutex
		)
		b := newBench(t, func(cq *CQ) {
			if running.Add(1) != 1 {
				rt.Error("handlers running: got 2, want 1 at a time")
			}
			seen.Store(completed.Load())
			calls.Add(1)
			insideMu.Lock()
			f := inside
			inside = nil
			insideMu.Unlock()
			if f != nil {
				f(cq)
			}
			running.Add(-1)
		}, nil, nil)
		raise := func(cq *CQ) {
			completed.Add(1)
			CQHandle{cq: cq}.Completed()
		}
		rt.Repeat(map[string]func(*rapid.T){
			"complete": func(*rapid.T) { raise(b.cq) },
			"complete in the handler": func(*rapid.T) {
				insideMu.Lock()
				inside = raise
				insideMu.Unlock()
				raise(b.cq)
			},
			"hold": func(*rapid.T) {
				b.dev.handle.HoldCallbacks()
				holds++
			},
			"run": func(rt *rapid.T) {
				if holds == 0 {
					rt.Skip("nothing held")
				}
				b.dev.handle.RunCallbacks()
				holds--
			},
			"": func(rt *rapid.T) {
				if holds > 0 {
					return
				}
				b.dev.callbacks.drainCallbacks()
				b.dev.callbacks.drainCallbacks() // the running handler may have become due again during the first drain
				if seen.Load() != completed.Load() {
					rt.Errorf("completions at the last handler call: got %d, want %d", seen.Load(), completed.Load())
				}
				if calls.Load() > completed.Load() {
					rt.Errorf("handler calls: got %d for %d completions, want at most one per completion",
						calls.Load(), completed.Load())
				}
			},
		})
		for ; holds > 0; holds-- {
			b.dev.handle.RunCallbacks()
		}
		must(t, b.qp.Destroy())
		must(t, b.cq.Destroy())
		n := calls.Load()
		CQHandle{cq: b.cq}.Completed()
		b.dev.callbacks.drainCallbacks()
		if calls.Load() != n {
			rt.Errorf("handler calls: got %d after Destroy returned, want %d", calls.Load(), n)
		}
	})
}

// TestCallbackQueueStaysSmall checks that the queue reuses the space of removed elements, even if the queue never
// becomes empty.
func TestCallbackQueueStaysSmall(t *testing.T) {
	var q fifo[int]
	for i := range 3 {
		q.push(i)
	}
	for i := range 10000 {
		q.push(i + 3)
		if got := q.pop(); got != i {
			t.Fatalf("pop %d: got %d", i, got)
		}
	}
	if q.len() != 3 || cap(q.buf) > 64 {
		t.Errorf("queue: got %d elements in a buffer of %d, want 3 in at most 64", q.len(), cap(q.buf))
	}
}

func TestDestroyWaitsForCallback(t *testing.T) {
	for _, test := range []struct {
		name    string
		raise   func(b *testBench)
		destroy func(b *testBench) error
	}{
		{"completion handler", func(b *testBench) { CQHandle{cq: b.cq}.Completed() },
			func(b *testBench) error { return b.cq.Destroy() }},
		{"completion handler, due again",
			func(b *testBench) { CQHandle{cq: b.cq}.Completed(); synctest.Wait(); CQHandle{cq: b.cq}.Completed() },
			func(b *testBench) error { return b.cq.Destroy() }},
		{"event of a queue", func(b *testBench) { CQHandle{cq: b.cq}.Raise(EventCQErr) },
			func(b *testBench) error { return b.cq.Destroy() }},
		{"event of a queue pair", func(b *testBench) { QPHandle{qp: b.qp}.Raise(EventQPFatal) },
			func(b *testBench) error { return b.qp.Destroy() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				calls := 0
				block := func() {
					calls++
					<-release
				}
				b := newBench(t, func(*CQ) { block() }, func(*CQ, EventType) { block() }, func(*QP, EventType) { block() })
				if !strings.Contains(test.name, "pair") {
					must(t, b.qp.Destroy())
				}
				test.raise(b)
				synctest.Wait()
				done := false
				go func() {
					if err := test.destroy(b); err != nil {
						t.Error(err)
					}
					done = true
				}()
				synctest.Wait()
				if done {
					t.Fatal("Destroy while the callback ran: returned, want it to wait")
				}
				close(release)
				synctest.Wait()
				if !done {
					t.Fatal("Destroy after the callback: still blocked, want it to return")
				}
				test.raise(b)
				synctest.Wait()
				if calls != 1 {
					t.Errorf("%d calls, want 1", calls)
				}
			})
		})
	}
}

func TestDeviceEventsReachHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, nil, nil)
		var got []Event
		stop := b.dev.OnEvent(func(e Event) { got = append(got, e) })
		var second int
		defer b.dev.OnEvent(func(Event) { second++ })()
		b.dev.handle.DispatchEvent(EventPortActive, 1)
		b.dev.handle.DispatchEvent(EventDeviceFatal, 0)
		synctest.Wait()
		want := []Event{{b.dev, EventPortActive, 1}, {b.dev, EventDeviceFatal, 0}}
		if !slices.Equal(got, want) || second != 2 {
			t.Errorf("events: got %v and %d calls of the second function, want %v and 2", got, second, want)
		}
		stop()
		b.dev.handle.DispatchEvent(EventPortErr, 1)
		synctest.Wait()
		if len(got) != 2 || second != 3 {
			t.Errorf("events after stop: got %v and %d calls of the second function, want 2 events and 3 calls",
				got, second)
		}
	})
}

// TestCallbackDoesNotAllocate checks that completions and their handlers do not allocate after the first call.
func TestCallbackDoesNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in a synctest bubble holds do not become stale
		calls := 0
		b := newBench(t, func(*CQ) { calls++ }, nil, nil)
		if n := testing.AllocsPerRun(100, func() {
			b.dev.handle.HoldCallbacks()
			CQHandle{cq: b.cq}.Completed()
			b.dev.handle.RunCallbacks()
		}); n != 0 {
			t.Errorf("got %v allocations, want 0", n)
		}
		if calls != 101 {
			t.Errorf("got %d handler calls", calls)
		}
	})
}

// TestCallbacksOfDifferentQueuesRunInParallel checks that handlers of different queues run at the same time: the first
// handler spins until the second one runs.
func TestCallbacksOfDifferentQueuesRunInParallel(t *testing.T) {
	for _, hold := range []bool{false, true} {
		var second atomic.Bool
		done := make(chan int, 2)
		b := newBench(t, func(*CQ) {
			for !second.Load() {
				runtime.Gosched()
			}
			done <- 1
		}, nil, nil)
		other, err := b.dev.CreateCQ(CQInit{Entries: 1, Handler: func(*CQ) { second.Store(true); done <- 2 }})
		must(t, err)
		if hold {
			b.dev.handle.HoldCallbacks()
			CQHandle{cq: b.cq}.Completed()
			go b.dev.handle.RunCallbacks()
		} else {
			CQHandle{cq: b.cq}.Completed()
		}
		CQHandle{cq: other}.Completed()
		<-done
		<-done
		must(t, other.Destroy())
		b.destroyAll(t)
	}
}

// TestEventsComeInOrder checks that events of a device and its objects are delivered one at a time, in the order in
// which they were raised.
func TestEventsComeInOrder(t *testing.T) {
	const n = 2000
	var running atomic.Int32
	var got []EventType
	note := func(e EventType) {
		if running.Add(1) != 1 {
			t.Error("events being delivered: got 2, want 1 at a time")
		}
		got = append(got, e)
		running.Add(-1)
	}
	b := newBench(t, func(*CQ) {}, nil, func(_ *QP, e EventType) { note(e) })
	defer b.dev.OnEvent(func(e Event) { note(e.Type) })()
	var want []EventType
	for i := range n {
		if i%3 == 0 {
			CQHandle{cq: b.cq}.Completed() // a completion handler is due as well
		}
		e := []EventType{EventPortErr, EventQPFatal}[i%2]
		if want = append(want, e); i%2 == 0 {
			b.dev.handle.DispatchEvent(e, 1)
		} else {
			QPHandle{qp: b.qp}.Raise(e)
		}
	}
	b.dev.callbacks.drainCallbacks()
	if !slices.Equal(got, want) {
		t.Errorf("events: got %d, want %d in order", len(got), n)
	}
	b.destroyAll(t)
}

// TestNotificationSurvivesRefusedDestroy checks that a completion raised during a failing Destroy is delivered.
func TestNotificationSurvivesRefusedDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		b := newBench(t, func(*CQ) { calls++ }, nil, nil)
		must(t, b.qp.Destroy())
		b.drv.fail = func(string) error {
			CQHandle{cq: b.cq}.Completed()
			return syscall.EIO
		}
		if err := b.cq.Destroy(); !errors.Is(err, syscall.EIO) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
		b.drv.fail = nil
		must(t, b.cq.Destroy())
	})
}

// TestRunCallbacksIsBounded checks that RunCallbacks returns after maxCallbacksPerRun callbacks and that a worker runs
// the rest.
func TestRunCallbacksIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 3 * maxCallbacksPerRun
		calls := 0
		b := newBench(t, nil, nil, nil)
		defer b.dev.OnEvent(func(Event) { calls++ })()
		b.dev.handle.HoldCallbacks()
		for range events {
			b.dev.handle.DispatchEvent(EventPortErr, 1)
		}
		b.dev.handle.RunCallbacks()
		synctest.Wait()
		if calls != events {
			t.Errorf("got %d calls, want %d", calls, events)
		}
		b.destroyAll(t)
	})
}

// TestCallbacksDoNotWaitForAStoppedHolder checks that a blocked thread which holds callbacks delays them only once, for
// lateDelay. Later callbacks do not wait for the blocked thread.
func TestCallbacksDoNotWaitForAStoppedHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		b := newBench(t, func(*CQ) { calls++ }, nil, nil)
		b.dev.handle.HoldCallbacks() // RunCallbacks is not called
		began := time.Now()
		CQHandle{cq: b.cq}.Completed()
		testutil.AdvanceTime(2 * lateDelay)
		if calls != 1 {
			t.Fatalf("handler calls: got %d after %v, want 1", calls, time.Since(began))
		}
		CQHandle{cq: b.cq}.Completed()
		synctest.Wait()
		if calls != 2 {
			t.Fatalf("handler calls: got %d, want 2 without waiting for the blocked holder", calls)
		}
		b.dev.handle.HoldCallbacks() // another thread that holds callbacks and runs them
		CQHandle{cq: b.cq}.Completed()
		synctest.Wait()
		if calls != 2 {
			t.Errorf("handler calls: got %d, want 2 after the wait for the working holder", calls)
		}
		b.dev.handle.RunCallbacks()
		if calls != 3 {
			t.Errorf("got %d calls, want 3", calls)
		}
		b.dev.handle.RunCallbacks() // the first thread runs callbacks at last
		b.destroyAll(t)
	})
}
