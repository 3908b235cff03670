package sched

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestMutex: one at a time, and those who have looked in vain for long get it too.
func TestMutex(t *testing.T) {
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
		t.Errorf("counted to %d", n)
	}
}

// TestLockUnless: a thread that waits for a mutex whose holder never comes back gets away when it is told to.
func TestLockUnless(t *testing.T) {
	var m Mutex
	var stop atomic.Bool
	if !m.LockUnless(&stop) {
		t.Fatal("LockUnless of a free mutex: got false, want true")
	}
	got := make(chan bool)
	go func() { got <- m.LockUnless(&stop) }()
	select {
	case <-got:
		t.Fatal("LockUnless returned while the mutex was locked and nothing stopped it")
	case <-time.After(20 * time.Millisecond):
	}
	stop.Store(true)
	if <-got {
		t.Fatal("LockUnless of a locked mutex: got true, want false")
	}
	m.Unlock()
	if !m.LockUnless(&stop) {
		t.Error("LockUnless of a free mutex with stop set: got false, want true")
	}
	stop.Store(false)
	go func() { got <- m.LockUnless(&stop) }()
	time.Sleep(5 * time.Millisecond)
	m.Unlock()
	if !<-got {
		t.Error("LockUnless of a mutex that was unlocked: got false, want true")
	}
}
