package ib

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/notify"
)

// TestStopWaitsForEventFunction checks that after stop has returned, its function is not running and does not start
// again.
func TestStopWaitsForEventFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, nil, nil)
		enter, leave := make(chan int), make(chan int)
		first := b.dev.OnEvent(func(Event) { enter <- 1; <-leave })
		var later atomic.Int32
		second := b.dev.OnEvent(func(Event) { later.Add(1) })
		b.dev.handle.DispatchEvent(EventPortErr, 1)
		<-enter
		second() // the second function has not begun, and its stop does not wait for the first function
		var ended atomic.Bool
		go func() { first(); ended.Store(true) }()
		synctest.Wait()
		if ended.Load() {
			t.Error("stop: returned while its function was running, want it to wait")
		}
		close(leave)
		synctest.Wait()
		if !ended.Load() {
			t.Error("stop: still blocked after the end of its function, want it to return")
		}
		if n := later.Load(); n != 0 {
			t.Errorf("calls begun after stop: got %d, want 0", n)
		}
		b.destroyAll(t)
	})
}

// TestEventStreamDoesNotBlockUnregister checks that an endless stream of events and completions does not block
// Unregister.
func TestEventStreamDoesNotBlockUnregister(t *testing.T) {
	// The handler always raises the next completion. The CQ is never destroyed.
	b := newBench(t, func(cq *CQ) { CQHandle{cq: cq}.Completed() }, nil, nil)
	b.dev.OnEvent(func(Event) { time.Sleep(10 * time.Microsecond) })
	var stop atomic.Bool
	flooded := make(chan int)
	go func() {
		defer close(flooded)
		for !stop.Load() {
			b.dev.handle.DispatchEvent(EventPortErr, 1)
			QPHandle{qp: b.qp}.Raise(EventCommEst)
			runtime.Gosched()
		}
	}()
	CQHandle{cq: b.cq}.Completed()
	if err := b.core.Unregister(&b.dev.handle); err == nil {
		t.Error("Unregister with remaining objects: got nil, want an error that names them")
	}
	stop.Store(true)
	<-flooded
	b.cq.notify.applyTransition(notify.Notice.Die)
	b.dev.callbacks.waitUntil(b.cq.notify.isQuiet)
}
