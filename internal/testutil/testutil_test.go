package testutil

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// failing is a test whose failure is kept.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		Eventually(t, "a while has passed", func() bool { return time.Since(start) >= Patience-time.Second })
		f := &failing{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Eventually(f, "it is so", func() bool { return false })
		}()
		<-done
		if want := "after 20s still waiting for: it is so"; f.said != want {
			t.Errorf("Eventually: got %q, want %q", f.said, want)
		}
	})
}

func TestAsUser(t *testing.T) {
	NeedRoot(t, "to be another user")
	threads := map[int]bool{os.Getpid(): true}
	for uid := 65530; uid < 65534; uid++ {
		AsUser(t, uid, func() {
			if got := unix.Geteuid(); got != uid {
				t.Errorf("Geteuid: got %d, want %d", got, uid)
			}
			if got := unix.Getuid(); got != uid {
				t.Errorf("Getuid: got %d, want %d", got, uid)
			}
			if threads[unix.Gettid()] {
				t.Errorf("thread %d runs twice, or is the main thread", unix.Gettid())
			}
			threads[unix.Gettid()] = true
		})
	}
	if got := os.Geteuid(); got != 0 {
		t.Errorf("Geteuid afterwards: got %d, want 0", got)
	}
}

func TestBuffer(t *testing.T) {
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
