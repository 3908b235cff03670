package service

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/testutil"
)

func countLines(b *testutil.Buffer, with string) (n int) {
	for l := range strings.Lines(b.String()) {
		if strings.Contains(l, with) {
			n++
		}
	}
	return n
}

// TestLogLimitIsPerUser tests that the lines of one user neither fill the log nor suppress those of other users, and
// that the number of suppressed lines is logged once.
func TestLogLimitIsPerUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b testutil.Buffer
		l, _ := limitLog(slog.New(slog.NewTextHandler(&b, nil)))
		for range 10000 {
			l.Warn("noise", "uid", 1001)
		}
		l.With("uid", 1002).Warn("other")
		l.Warn("of the service itself")
		if n := countLines(&b, "noise"); n != userLogLimit.burst {
			t.Errorf("lines of one user in a burst: got %d, want %d", n, userLogLimit.burst)
		}
		if countLines(&b, "other") != 1 || countLines(&b, "itself") != 1 {
			t.Error("lines of other users: got none, want all")
		}
		testutil.AdvanceTime(2 * suppressedReportDelay)
		if want := fmt.Sprintf("lines=%d", 10000-userLogLimit.burst); countLines(&b, want) != 1 ||
			countLines(&b, "suppressed") != 1 {
			t.Errorf("log: %q is missing or repeated:\n%s", want, b.String())
		}
		l.Warn("again", "uid", 1001)
		if countLines(&b, "again") != 1 {
			t.Error("new line of a user with suppressed lines: got none after the pause, want one")
		}
	})
}

// TestLogLimitOfAllUsers tests the limit of all users together, and that the log keeps state for a limited number of
// users.
func TestLogLimitOfAllUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b testutil.Buffer
		l, _ := limitLog(slog.New(slog.NewTextHandler(&b, nil)))
		for i := range 5 * maxLogUsers {
			l.Warn("noise", "uid", 100000+i)
		}
		if n := countLines(&b, "noise"); n != totalLogLimit.burst {
			t.Errorf("lines of all users in a burst: got %d, want %d", n, totalLogLimit.burst)
		}
		if n := len(l.Handler().(*limitedLog).state.users); n > maxLogUsers+1 {
			t.Errorf("kept users: got %d, want %d", n, maxLogUsers)
		}
		testutil.AdvanceTime(time.Minute)
	})
}

// TestDebugLimitSuppressesNoWarning tests the limits of debug records, which suppress no warnings. A goroutine writes
// the records in order, and close waits until all queued records are written.
func TestDebugLimitSuppressesNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b testutil.Buffer
		l, q := limitLog(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})))
		for i := range 10 * userDebugLimit.burst {
			l.Debug("noise", "uid", 1001, "i", i)
		}
		if b.String() != "" {
			t.Errorf("output of the logging thread: got %s, want none", b.String())
		}
		l.Warn("of the same user", "uid", 1001)
		if countLines(&b, "of the same user") != 1 {
			t.Error("warning beside debug records: got none, want one")
		}
		go q.writeRecords()
		q.close()
		if n := countLines(&b, "noise"); n != userDebugLimit.burst {
			t.Errorf("debug records: got %d, want %d", n, userDebugLimit.burst)
		}
		testutil.AdvanceTime(2 * suppressedReportDelay)
		if want := fmt.Sprintf("lines=%d", 9*userDebugLimit.burst); countLines(&b, want) != 1 {
			t.Errorf("log: %q is missing or repeated", want)
		}
	})
}

// TestStuckLogDoesNotBlockDebug tests that a log without a reader does not block a thread that logs debug records.
func TestStuckLogDoesNotBlockDebug(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	l, q := limitLog(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})))
	go q.writeRecords()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2 * maxDebugRecords {
			l.Debug("noise", "uid", i)
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("logging without a reader: got no return after 20 s, want one")
	}
	r.Close()
	q.close()
}
