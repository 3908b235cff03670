package clock_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/clock"
	"verbena/internal/testutil"
)

var startTime = time.Unix(1_000_000, 0)

// TestClocksAgree tests that both clocks run calls at the same times, in the same order.
func TestClocksAgree(t *testing.T) {
	play := func(c clock.Clock, sleep func(time.Duration)) (log []string) {
		start := c.Now()
		var mu sync.Mutex // the system clock runs calls on separate threads
		note := func(s string) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, s+" "+c.Now().Sub(start).String())
			}
		}
		b := c.AfterFunc(20*time.Millisecond, note("b"))
		a := c.AfterFunc(10*time.Millisecond, note("a"))
		gone := c.AfterFunc(15*time.Millisecond, note("gone"))
		sleep(5 * time.Millisecond)
		if !gone.Stop() || gone.Stop() {
			t.Error("first and second Stop: got another result, want true and false")
		}
		if !b.Reset(time.Millisecond) {
			t.Error("Reset of b: got false, want true")
		}
		sleep(15 * time.Millisecond)
		if b.Reset(time.Millisecond) || a.Stop() {
			t.Error("Reset of b or Stop of a after their calls: got true, want false")
		}
		sleep(time.Hour)
		note("end")()
		return log
	}
	want := []string{"b 6ms", "a 10ms", "b 21ms", "end 1h0m0.02s"}
	v := clock.NewVirtual(startTime)
	if got := play(v, v.Sleep); !slices.Equal(got, want) {
		t.Errorf("calls of the virtual clock: got %q, want %q", got, want)
	}
	synctest.Test(t, func(t *testing.T) {
		if got := play(clock.System, testutil.AdvanceTime); !slices.Equal(got, want) {
			t.Errorf("calls of the system clock: got %q, want %q", got, want)
		}
	})
}

// TestCallsDueTogetherRunInOrder tests that calls due at the same time run in the order in which they were scheduled,
// including calls scheduled by a call.
func TestCallsDueTogetherRunInOrder(t *testing.T) {
	v := clock.NewVirtual(startTime)
	var got []int
	for i := range 10 {
		v.AfterFunc(time.Second, func() {
			got = append(got, i)
			if i < 3 {
				v.AfterFunc(-time.Second, func() { got = append(got, 10+i) })
			}
		})
	}
	for v.Step() {
	}
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; !slices.Equal(got, want) {
		t.Errorf("order of calls: got %v, want %v", got, want)
	}
	if d := v.Now().Sub(startTime); d != time.Second {
		t.Errorf("elapsed time: got %v, want 1s", d)
	}
	if _, ok := v.Next(); ok || v.Step() {
		t.Error("Next: got a pending call, want none")
	}
}
