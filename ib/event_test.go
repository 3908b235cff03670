package ib

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/notify"
)

// When the end of a registration has returned, its function does not run, and does not begin any more.
func TestEventEndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, nil, nil)
		enter, leave := make(chan int), make(chan int)
		first := b.dev.OnEvent(func(Event) { enter <- 1; <-leave })
		var later atomic.Int32
		second := b.dev.OnEvent(func(Event) { later.Add(1) })
		b.dev.handle.DispatchEvent(EventPortErr, 1)
		<-enter
		second() // has not begun, and does not wait for the first
		var ended atomic.Bool
		go func() { first(); ended.Store(true) }()
		synctest.Wait()
		if ended.Load() {
			t.Error("the end of a registration returned while its function ran")
		}
		close(leave)
		synctest.Wait()
		if !ended.Load() {
			t.Error("the end of a registration has not returned")
		}
		if n := later.Load(); n != 0 {
			t.Errorf("got %d calls that began after the end, want 0", n)
		}
		b.free(t)
	})
}

// Events and completions that come without end do not keep Unregister from returning.
func TestUnregisterUnderEvents(t *testing.T) {
	b := newBench(t, func(cq *CQ) { CQHandle{cq: cq}.Completed() }, nil, nil) // its handler runs without end; it is never destroyed
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
		t.Error("Unregister has not named what was left behind")
	}
	stop.Store(true)
	<-flooded
	b.cq.notify.step(notify.Notice.Die)
	b.dev.callbacks.waitFor(b.cq.notify.quiet)
}
