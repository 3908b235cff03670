package main

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"verbena/ib/ibtest/strict/expire"
)

// TestInsertExpiry checks that time limits are wrapped, in test files only those of contexts, and that line numbers do
// not change.
func TestInsertExpiry(t *testing.T) {
	const src = `package p

import (
	"context"
	clock "time"
)

func f(t *testing.T) {
	<-clock.After(limit)
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	if clock.Since(clock.Now()) > limit {
		t.Fatalf("late %v", err.Error())
	}
	log.Fatal(fmt.Errorf("no"))
}
`
	for _, tt := range []struct{ file, want string }{
		{"p.go", `package p; import scheduleExpire "verbena/ib/ibtest/strict/expire"

import (
	"context"
	clock "time"
)

func f(t *testing.T) {
	<-clock.After(scheduleExpire.Duration(limit))
	ctx, cancel := context.WithTimeout(ctx, scheduleExpire.Duration(2*limit))
	if scheduleExpire.Since(clock.Since(scheduleExpire.Now(clock.Now()))) > limit {
		t.Fatalf("late %v", err.Error())
	}
	log.Fatal(fmt.Errorf("no"))
}
`},
		{"p_test.go", `package p; import scheduleExpire "verbena/ib/ibtest/strict/expire"

import (
	"context"
	clock "time"
)

func f(t *testing.T) {
	<-clock.After(limit)
	ctx, cancel := context.WithTimeout(ctx, scheduleExpire.Duration(2*limit))
	if clock.Since(clock.Now()) > limit {
		scheduleExpire.Fatal(t.Fatalf)("late %v", err.Error())
	}
	scheduleExpire.Fatal(log.Fatal)(scheduleExpire.Error(fmt.Errorf)("no"))
}
`},
	} {
		got, changed, err := insertExpiry(tt.file, []byte(src))
		if err != nil || !changed || got != tt.want {
			t.Errorf("%s: got changed %v, error %v and\n%s\nwant\n%s", tt.file, changed, err, got, tt.want)
		}
	}
}

// TestConsumerPanics checks which panics after a failure of the device are faults of the consumer.
func TestConsumerPanics(t *testing.T) {
	const (
		isNil   = "panic: runtime error: invalid memory address or nil pointer dereference\n"
		closed  = "panic: close of closed channel\n"
		message = "panic: the device does not answer\n"
		shut    = "example.org/c.(*Conn).Close(0x0)\n\t/src/c/conn.go:10 +0x19\n"
		dial    = "example.org/c.Dial(...)\n\t/src/c/conn.go:20\n"
		test    = "example.org/c.TestDial(0xc000)\n\t/src/c/conn_test.go:30 +0x2e\n"
		remove  = "verbena/ib.(*Core).callClientRemove(0xc000)\n\t/src/verbena/ib/device.go:40 +0x2e\n"
	)
	p := listedPackage{ImportPath: "example.org/c", Dir: "/src/c"}
	for _, c := range []struct {
		name, head, stack string
		failed, want      bool
	}{
		{"nil, in a function that the consumer calls", isNil, shut + dial + test, false, true},
		{"nil, in a function that the test calls", isNil, dial + test, false, false},
		{"nil, in a function that the midlayer calls", isNil, shut + remove + test, false, true},
		{"a closed channel, in a function that the test calls", closed, shut + test, false, true},
		{"after a failure of the test", closed, shut + dial + test, true, false},
		{"in the test", isNil, test, false, false},
		{"with a message of the consumer", message, dial + test, false, false},
	} {
		if got := isConsumerPanic(c.head+"\ngoroutine 7 [running]:\n"+c.stack, c.failed, p); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
}

// TestIdlePrograms checks whether stacks show that a consumer waits for an event only.
func TestIdlePrograms(t *testing.T) {
	const (
		waits = "goroutine 7 [select, 2 minutes]:\nc.(*Meter).Write()\n\t/src/c/meter.go:10 +0x19\n\n"
		runs  = "goroutine 8 [runnable]:\nc.(*Meter).give()\n\t/src/c/meter.go:20\n\n"
		posts = "goroutine 9 [sleep]:\nverbena/ib/weak.(*qp).run()\n\t/src/verbena/ib/weak/qp.go:20\n\n"
		other = "goroutine 3 [syscall]:\nos/signal.loop()\n\t/usr/lib/go/src/os/signal/signal_unix.go:20\n\n"
		quit  = "SIGQUIT: quit\n\n"
	)
	p := listedPackage{ImportPath: "c", Dir: "/src/c"}
	for _, c := range []struct {
		name, stacks string
		want         bool
	}{
		{"a goroutine waits", quit + waits + other, true},
		{"another one can run", quit + waits + runs, false},
		{"the device sleeps", quit + waits + posts, false},
		{"the consumer is not active", quit + other, false},
	} {
		if got := isIdle(c.stacks, p); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
}

// TestFaultsFindWrongConsumers checks that runs with failures find the mistakes of testdata/faulty, which its test does
// not find, and report nothing without a mistake.
func TestFaultsFindWrongConsumers(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles tests with the race detector")
	}
	t.Setenv("GOFLAGS", "-trimpath") // which the command must ignore
	o := &commandOptions{first: 1, timeout: "1m", weak: "verbena/driver/loopback", check: consumerTimeout,
		tests: []string{"./testdata/faulty"}}
	dir := t.TempDir()
	tested, err := listPackages(t.Context(), o.tests)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "faults.test")
	if err := o.compileFaultTests(t.Context(), tested[0], dir, binary); err != nil {
		t.Fatal(err)
	}
	s := &timedSearch{o: o, p: tested[0], tests: time.Second}
	run := func(mistake, kind string, seeds int) (text []byte, err error) {
		for i := range seeds * len(faultKinds) {
			if r := o.planFaultRun(i, binary, true); strings.HasPrefix(r.what, kind) && err == nil {
				r.env = append(r.env, "SCHEDULE_TEST_MISTAKE="+mistake)
				text, err = s.runFaultCommand(context.Background(), r)
			}
		}
		return text, err
	}
	for _, tt := range []struct{ mistake, kind, want string }{ // want is a regular expression
		{"leak", "failed-call", "rule left-behind"},
		{"order", "failed-call", "rule left-behind"},
		{"partial", "failed-post", regexp.QuoteMeta(deviceAccess)},
		{"timeout", expire.EarlyTimers, "rule target-reused"},
		{"race", expire.NoFailure, "DATA RACE"},
		{"kept", expire.NoFailure, regexp.QuoteMeta(endOfLoan[0])},
		{"element", expire.NoFailure, regexp.QuoteMeta(endOfLoan[1])},
		{"late-call", expire.LateThreads, "rule (use-after-destroy|in-use)"},
		{"wakeup", expire.LostWakeups, `meter\.go`},
		{"late-timer", expire.EarlyTimers, "rule (use-after-|in-use)"},
		{"clear", expire.EarlyTimers, regexp.QuoteMeta(deviceAccess)},
		{"sqe", "failed-request", "rule left-in-sqe"},
		{"double-close", "failed-request", "close of closed channel"},
		{"endless", "failed-request", "rule endless-flush"},
		{"hang", "failed-request", "Remove"},
		{"post", "failed-post", "negative WaitGroup counter"},
	} {
		t.Run(tt.mistake, func(t *testing.T) {
			t.Parallel()
			text, err := run(tt.mistake, tt.kind, 40) // ends with the first report
			if err == nil || !regexp.MustCompile(tt.want).Match(text) {
				t.Errorf("got %v, want a report with %q; output:\n%s", err, tt.want, text)
			}
		})
	}
	for _, kind := range faultKinds {
		t.Run("correct/"+kind, func(t *testing.T) {
			t.Parallel()
			if text, err := run("", kind, 6); err != nil {
				t.Errorf("correct consumer: got %v\n%s", err, text)
			}
		})
	}
}
