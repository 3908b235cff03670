package service

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logText is what was logged.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func countLines(b *logText, with string) (n int) {
	for l := range strings.Lines(b.String()) {
		if strings.Contains(l, with) {
			n++
		}
	}
	return n
}

// One user's lines do not fill the log, nor keep another's out; how many were suppressed is said once.
func TestLogLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b logText
		l := limitLog(slog.New(slog.NewTextHandler(&b, nil)))
		for range 10000 {
			l.Warn("noise", "uid", 1001)
		}
		l.With("uid", 1002).Warn("other")
		l.Warn("of the service itself")
		if n := countLines(&b, "noise"); n != userLogLimit.burst {
			t.Errorf("%d lines of one user at once, want %d", n, userLogLimit.burst)
		}
		if countLines(&b, "other") != 1 || countLines(&b, "itself") != 1 {
			t.Error("the lines of others are missing")
		}
		time.Sleep(2 * reportSuppressed)
		synctest.Wait()
		if want := fmt.Sprintf("lines=%d", 10000-userLogLimit.burst); countLines(&b, want) != 1 ||
			countLines(&b, "suppressed") != 1 {
			t.Errorf("%q is not there once:\n%s", want, b.String())
		}
		l.Warn("again", "uid", 1001)
		if countLines(&b, "again") != 1 {
			t.Error("a user who was noisy is not heard later")
		}
	})
}

// Many users together have a limit too, and what is kept of them is bounded.
func TestLogLimitTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b logText
		l := limitLog(slog.New(slog.NewTextHandler(&b, nil)))
		for i := range 5 * maxLogUsers {
			l.Warn("noise", "uid", 100000+i)
		}
		if n := countLines(&b, "noise"); n != totalLogLimit.burst {
			t.Errorf("%d lines at once, want %d", n, totalLogLimit.burst)
		}
		if n := len(l.Handler().(*limitedLog).state.users); n > maxLogUsers+1 {
			t.Errorf("%d users are kept, want %d", n, maxLogUsers)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}
