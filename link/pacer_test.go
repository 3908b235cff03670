package link

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestPacer: the function is called at its time, and soon after Wake.
func TestPacer(t *testing.T) {
	var due atomic.Int64
	start := time.Now()
	came, looked := make(chan time.Duration, 1000), make(chan struct{}, 1)
	p := newPacer(func() time.Duration {
		select {
		case looked <- struct{}{}:
		default:
		}
		d := time.Duration(due.Load()) - time.Since(start)
		if due.Load() == 0 {
			return 0
		}
		if d > 0 {
			return d
		}
		due.Store(0)
		came <- time.Since(start)
		return 0
	})
	defer p.Stop()
	for _, d := range []time.Duration{1, time.Microsecond, 100 * time.Microsecond, time.Millisecond, runnerOnly + 3*time.Millisecond} {
		at := time.Since(start) + d
		due.Store(int64(at))
		p.Wake()
		if got := <-came; got < at {
			t.Errorf("called %v before its time", at-got)
		}
	}
	// Wake ends both kinds of sleep.
	for _, d := range []time.Duration{runnerOnly, time.Hour} {
		for range 100 {
			due.Store(int64(time.Since(start) + d))
			p.Wake()
			<-looked
			due.Store(1)
			p.Wake()
			select {
			case <-came:
			case <-time.After(10 * time.Second):
				t.Fatalf("Wake has not ended a sleep of %v", d)
			}
			for len(looked) > 0 {
				<-looked
			}
		}
	}
}

// TestPacerStops: Stop ends a sleep, and a second call has no effect.
func TestPacerStops(t *testing.T) {
	for _, d := range []time.Duration{0, runnerOnly, time.Hour} {
		called := make(chan struct{}, 1)
		p := newPacer(func() time.Duration {
			select {
			case called <- struct{}{}:
			default:
			}
			return d
		})
		p.Wake()
		<-called
		p.Stop()
		p.Stop()
		p.Wake() // has no effect
	}
}
