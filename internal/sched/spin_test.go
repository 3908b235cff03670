package sched

import (
	"testing"
	"time"
)

// TestSpin tests that polling continues while it succeeds, ends with a failure, and begins again after short sleeps,
// the later the more attempts have failed.
func TestSpin(t *testing.T) {
	const most = 50 * time.Microsecond
	short, long := most+wakeTime, most+wakeTime+1
	s := NewSpin(most)
	wait := func(d time.Duration) (polled bool) {
		polled = s.Next() > 0
		s.Waited(d, polled)
		return polled
	}
	sleepsUntilPoll := func() (n int) {
		for ; s.Next() == 0; n++ {
			wait(short)
		}
		return n
	}
	if got := sleepsUntilPoll(); got != 1 {
		t.Errorf("sleeps before the first poll: got %d, want 1", got)
	}
	for range 10 {
		if !wait(most) {
			t.Error("a successful poll ends polling")
		}
	}
	for _, want := range []int{1, 3, 7, 15, 31, 63, 127, 255, 255} {
		if !wait(most + 1) {
			t.Error("the thread sleeps where it should poll")
		}
		for range 5 {
			if wait(long) {
				t.Error("a long sleep begins polling")
			}
		}
		if got := sleepsUntilPoll(); got != want {
			t.Errorf("short sleeps before the next poll: got %d, want %d", got, want)
		}
	}
	wait(most)
	wait(most + 1)
	if got := sleepsUntilPoll(); got != 1 {
		t.Errorf("sleeps after a success and a failure: got %d, want 1", got)
	}
	for _, never := range []Spin{{}, NewSpin(0), NewSpin(-1)} {
		for range 10 {
			if never.Next() != 0 {
				t.Error("a Spin without time allows polling")
			}
			never.Waited(0, false)
		}
	}
}
