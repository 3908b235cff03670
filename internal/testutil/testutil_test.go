package testutil

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// failingTB is a testing.TB that records its failure.
type failingTB struct {
	testing.TB
	said string
}

func (f *failingTB) Helper() {}

func (f *failingTB) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestEventuallyWaitsOrFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		Eventually(t, "some time to pass", func() bool {
			AdvanceTime(time.Second)
			return time.Since(start) >= Timeout-time.Second
		})
		f := &failingTB{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Eventually(f, "it is so", func() bool {
				AdvanceTime(time.Second)
				return false
			})
		}()
		<-done
		if want := "after 1m0s still waiting for: it is so"; f.said != want {
			t.Errorf("Eventually: got %q, want %q", f.said, want)
		}
	})
}

func TestConsistentlyFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		Consistently(t, time.Second, "so", func() bool { return true })
		if d := time.Since(start); d != time.Second {
			t.Errorf("Stays: got a return after %v, want 1s", d)
		}
		f := &failingTB{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Consistently(f, time.Second, "the condition holds", func() bool { return time.Since(start) < 1500*time.Millisecond })
		}()
		<-done
		if want := "after 500ms no longer true: the condition holds"; f.said != want {
			t.Errorf("Stays: got %q, want %q", f.said, want)
		}
	})
}

// TestWaitBlockedWaitsForWork tests that WaitBlocked waits for a goroutine that works before it blocks, and does not
// wait for a goroutine that has returned.
func TestWaitBlockedWaitsForWork(t *testing.T) {
	p := NewUnixPair(t)
	var wait, worked atomic.Bool
	lock := make(chan int)
	WaitBlocked(t,
		func() {
			for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
			}
			worked.Store(true)
			<-lock
			wait.Store(true)
		},
		func() { p[0].Read(make([]byte, 1)) },
		func() {},
	)
	if !worked.Load() || wait.Load() {
		t.Errorf("Block: got worked %t and past the wait %t, want true and false", worked.Load(), wait.Load())
	}
	close(lock)
}

func TestAdvanceRunsDueWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, called := time.Now(), false
		time.AfterFunc(time.Hour, func() { called = true })
		AdvanceTime(time.Hour)
		if d := time.Since(start); d != time.Hour || !called {
			t.Errorf("Advance: got %v elapsed and called %t, want 1h and true", d, called)
		}
	})
	defer func() {
		if recover() == nil {
			t.Error("Advance outside a bubble: got no panic, want one")
		}
	}()
	AdvanceTime(time.Hour)
}

func TestRunAsUserUsesSeparateThread(t *testing.T) {
	SkipUnlessRoot(t, "to act as another user")
	threads := map[int]bool{os.Getpid(): true}
	for uid := 65530; uid < 65534; uid++ {
		RunAsUser(t, uid, func() {
			if got := unix.Geteuid(); got != uid {
				t.Errorf("Geteuid: got %d, want %d", got, uid)
			}
			if got := unix.Getuid(); got != uid {
				t.Errorf("Getuid: got %d, want %d", got, uid)
			}
			if threads[unix.Gettid()] {
				t.Errorf("thread %d: got the main thread or a reused one, want a new one", unix.Gettid())
			}
			threads[unix.Gettid()] = true
		})
	}
	if got := os.Geteuid(); got != 0 {
		t.Errorf("Geteuid afterwards: got %d, want 0", got)
	}
}

func TestBufferAllowsConcurrentUse(t *testing.T) {
	var b Buffer
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			fmt.Fprintln(&b, "line")
			_ = b.String()
		})
	}
	wg.Wait()
	if got, want := b.String(), strings.Repeat("line\n", 4); got != want {
		t.Errorf("String: got %q, want %q", got, want)
	}
}
