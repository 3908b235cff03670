package sched

import (
	"sync"
	"testing"
	"time"
)

// TestMutexExcludes tests mutual exclusion, and that a thread that has spun for a long time also gets the lock.
func TestMutexExcludes(t *testing.T) {
	var m Mutex
	var wg sync.WaitGroup
	n := 0
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				m.Lock()
				n++
				if i%100 == 0 {
					time.Sleep(time.Millisecond)
				}
				m.Unlock()
			}
		})
	}
	wg.Wait()
	if n != 1600 {
		t.Errorf("counter: got %d, want 1600", n)
	}
}
