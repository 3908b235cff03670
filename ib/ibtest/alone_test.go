package ibtest

import (
	"sync/atomic"
	"testing"
	"time"

	"verbena/ib"
)

// TestCheckRunsAlone tests that no check of another suite runs during a check that measures the process.
func TestCheckRunsAlone(t *testing.T) {
	cfg := newConfig(func(t testing.TB) *ib.DeviceHandle { return newWrongDriver(t).dev }, nil)
	began, others := make(chan struct{}), atomic.Int32{}
	t.Run("suites", func(t *testing.T) {
		t.Run("alone", func(t *testing.T) {
			t.Parallel()
			runChecks(t, cfg, []ruleTest{{name: "Group/Alone", alone: true, test: func(e *testEnv) {
				close(began)
				for end := systemTime() + 50*time.Millisecond; systemTime() < end; {
					if others.Load() > 0 {
						e.Fatalf("another check runs")
					}
				}
			}}})
		})
		t.Run("other", func(t *testing.T) {
			t.Parallel()
			<-began
			runChecks(t, cfg, []ruleTest{{name: "Group/Other", test: func(*testEnv) { others.Add(1) }}})
		})
	})
	if others.Load() != 1 {
		t.Errorf("the other check ran %d times, want 1", others.Load())
	}
}
