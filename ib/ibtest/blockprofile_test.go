package ibtest

import (
	"sync"
	"testing"
	"time"

	"verbena/ib"
)

// TestBlockProfileFindsShortWaits checks that the block profile shows waits that are too short for the inspections of
// checked mode, and that waits for locks are ignored.
func TestBlockProfileFindsShortWaits(t *testing.T) {
	for _, test := range []struct {
		name string
		post func(d *wrongDriver) // the driver's action in post send
		want bool
	}{
		{"channel", func(*wrongDriver) {
			c := make(chan int)
			go func() { c <- 1 }()
			<-c
		}, true},
		{"condition", func(*wrongDriver) {
			var wg sync.WaitGroup
			wg.Go(func() { sleepFor(time.Microsecond) })
			wg.Wait()
		}, true},
		{"lock", func(d *wrongDriver) {
			d.mu.Lock()
			go func() { sleepFor(time.Millisecond); d.mu.Unlock() }()
			d.mu.Lock()
			d.held.Store(true)
			d.mu.Unlock()
		}, false},
		{"nothing", func(*wrongDriver) {}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := newConfig(func(t testing.TB) *ib.DeviceHandle {
				d := newWrongDriver(t)
				d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
					test.post(d)
					return q.QP.PostSend(wrs)
				}
				return d.dev
			}, wrongDriverOptions())
			blocked := watchBlockProfile(t, cfg)
			recordRun(t, func(r *recordingTB) { findCheck(t, "Data/SendReceive").runOn(r, cfg, false) })
			r := recordRun(t, func(r *recordingTB) { blocked(r) })
			if r.failed != test.want {
				t.Errorf("caught: %v, want %v: %s", r.failed, test.want, r)
			}
		})
	}
}
