package timeq_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/testutil"
	"verbena/internal/timeq"
)

// TestRunnerProcessesDueValues tests that the Runner processes values when they are due, including values that become
// due before the awaited value.
func TestRunnerProcessesDueValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var q timeq.Queue[int]
		var got []time.Duration
		start := time.Now()
		r := timeq.NewRunner(func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			for {
				first := q.First()
				if first == nil {
					return 0
				}
				if d := time.Until(first.Due()); d > 0 {
					return d
				}
				q.Pop()
				got = append(got, time.Since(start))
			}
		})
		push := func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if i := q.Push(start.Add(d), 0); i == q.First() {
				r.Wake()
			}
		}
		push(5 * time.Second)
		synctest.Wait()
		push(2 * time.Second)
		push(7 * time.Second)
		testutil.AdvanceTime(10 * time.Second)
		push(11 * time.Second)
		testutil.AdvanceTime(time.Minute)
		push(2 * time.Minute)
		r.Stop()
		r.Stop()
		r.Wake() // has no effect
		testutil.AdvanceTime(time.Hour)
		want := []time.Duration{2 * time.Second, 5 * time.Second, 7 * time.Second, 11 * time.Second}
		if !slices.Equal(got, want) {
			t.Errorf("processed values: got %v, want %v", got, want)
		}
	})
}
