package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSearchRunsInOrder checks the order of the runs of a search, and that none starts after a failure.
func TestSearchRunsInOrder(t *testing.T) {
	driver := &commandOptions{run: "TestContract", first: 7, timeout: "1m"}
	consumer := &commandOptions{first: 3, timeout: "1m", skip: "Slow", weak: "d", check: consumerTimeout}
	planConsumer := func(verbenavet string) func(int) commandRun {
		return func(i int) commandRun { return consumer.planConsumerRun(i, "consumer", verbenavet) }
	}
	for _, tt := range []struct {
		name string
		plan func(i int) commandRun
		late func(i int) (commandRun, bool)
		want []string
	}{
		{"driver", func(i int) commandRun { return driver.planDriverRun(i, "plain") },
			func(i int) (commandRun, bool) { return driver.planPausedRun(i, "raced"), true }, []string{
				"the suite: plain -test.timeout=1m -test.failfast -test.run=TestContract []",
				"pauses of seed 7: raced -test.timeout=1m -test.failfast -ibtest.load=1 " +
					"-test.run=TestContract" + concurrent + " [SCHEDULE_SEED=7]",
				"300 seeds of Model from 1001: plain -test.timeout=1m -test.failfast -ibtest.seed=1001 -ibtest.seeds=300 " +
					"-test.run=TestContract/^Model$ []",
				"pauses of seed 8: raced -test.timeout=1m -test.failfast -ibtest.load=1 " +
					"-test.run=TestContract" + concurrent + " [SCHEDULE_SEED=8]",
				"300 seeds of Model from 1301: plain -test.timeout=1m -test.failfast -ibtest.seed=1301 -ibtest.seeds=300 " +
					"-test.run=TestContract/^Model$ []",
			}},
		{"driver while the other tests are compiled", func(i int) commandRun { return driver.planDriverRun(i, "plain") },
			nil, []string{
				"the suite: plain -test.timeout=1m -test.failfast -test.run=TestContract []",
				"300 seeds of Model from 1001: plain -test.timeout=1m -test.failfast -ibtest.seed=1001 -ibtest.seeds=300 " +
					"-test.run=TestContract/^Model$ []",
			}},
		{"consumer", planConsumer("/bin/verbenavet"), nil, []string{
			"verbenavet: /bin/verbenavet -space -tests . []",
			"checked mode: consumer -test.timeout=1m -test.count=3 -test.skip=Slow [SCHEDULE_CHECK=500ms SCHEDULE_REUSE=note]",
			"weak devices with seed 3: consumer -test.timeout=1m -test.skip=Slow " +
				"[SCHEDULE_CHECK=500ms SCHEDULE_SEED=3 SCHEDULE_WEAK=d]",
			"weak devices with seed 4: consumer -test.timeout=1m -test.skip=Slow " +
				"[SCHEDULE_CHECK=500ms SCHEDULE_SEED=4 SCHEDULE_WEAK=d]",
		}},
		{"consumer without verbenavet", planConsumer(""), nil, []string{
			"checked mode: consumer -test.timeout=1m -test.count=3 -test.skip=Slow [SCHEDULE_CHECK=500ms SCHEDULE_REUSE=note]",
			"weak devices with seed 3: consumer -test.timeout=1m -test.skip=Slow " +
				"[SCHEDULE_CHECK=500ms SCHEDULE_SEED=3 SCHEDULE_WEAK=d]",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &timedSearch{plan: tt.plan, planLate: tt.late, o: &commandOptions{within: time.Minute}}
			for i, want := range tt.want {
				r, ok := s.nextRun()
				if got := fmt.Sprintf("%s: %s %v", r.what, strings.Join(r.argv, " "), r.env); !ok || got != want {
					t.Errorf("run %d: got %q, want %q", i, got, want)
				}
				s.recordRunEnd(r, runEnd{took: 6 * time.Second}, io.Discard)
			}
			total := 0
			for _, n := range s.passed {
				total += n
			}
			if s.passed[suiteRun] != 1 || total != len(tt.want) {
				t.Errorf("passed runs: got %v, want 1 of the tests and %d in total", s.passed, len(tt.want))
			}
			r, _ := s.nextRun()
			killed := runEnd{err: errors.New("killed"), killed: true, took: 25 * time.Second}
			s.recordRunEnd(r, killed, io.Discard)
			if len(s.failed) > 0 {
				t.Errorf("a killed run: got %v, want no failure", s.failed)
			}
			killed.took = 35 * time.Second // longer than 5 times the ordinary tests
			s.recordRunEnd(r, killed, io.Discard)
			if hung := len(s.failed) > 0; hung != (r.kind == weakRun) {
				t.Errorf("a killed run of 35 s: got failure %v, want %v", hung, !hung)
			}
			s.failed = nil
			s.recordRunEnd(r, runEnd{err: errors.New("exit status 1"), output: []byte("why")}, io.Discard)
			if _, ok := s.nextRun(); ok || len(s.failed) != 1 {
				t.Errorf("after a failure: got another run %v, %d failures, want false, 1", ok, len(s.failed))
			}
		})
	}
}

// TestFailuresAreRepeated checks that a failure of a consumer's test counts if it occurs twice.
func TestFailuresAreRepeated(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         bool
	}{
		{"one failure", `test -e "$0" && exit; touch "$0"; echo "--- FAIL: TestX"; exit 1`, false},
		{"two failures", `echo "--- FAIL: TestX"; exit 1`, true},
		{"a violation", `test -e "$0" && exit; touch "$0"; echo "loop0: rule x"; echo "--- FAIL: TestX"; exit 1`, true},
		{"a panic", `test -e "$0" && exit; touch "$0"; echo "panic: x"; echo "--- FAIL: TestX"; exit 1`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &timedSearch{o: &commandOptions{weak: "d"}}
			s.runCommand(t.Context(), io.Discard, commandRun{kind: weakRun, what: "a script",
				argv: []string{"sh", "-c", tt.script, filepath.Join(t.TempDir(), "file")}})
			if got := len(s.failed) > 0; got != tt.want {
				t.Errorf("failures: got %v, want %v", s.failed, tt.want)
			}
		})
	}
}

// TestStartedRunEnds checks that a run in the background ends by itself, and with the search.
func TestStartedRunEnds(t *testing.T) {
	s := &timedSearch{o: &commandOptions{}}
	start := func(script string) *startedRun {
		return s.startRun(commandRun{kind: sourceRun, argv: []string{"sh", "-c", script}})
	}
	if e := start("echo report; exit 1").wait(t.Context()); e.err == nil || e.killed || string(e.output) != "report\n" {
		t.Errorf("a report: got %+v, want an error with the output", e)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if e := start("exec sleep 60").wait(ended); e.err == nil || !e.killed {
		t.Errorf("at the end of the search: got %+v, want a killed run", e)
	}
}

// TestSearchNeedsVerbenavet checks that a search does not silently leave out verbenavet.
func TestSearchNeedsVerbenavet(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, without := range []bool{false, true} {
		o := commandOptions{noSource: without}
		path, err := o.findVerbenavet()
		if path != "" || (err == nil) != without {
			t.Errorf("findVerbenavet with -no-verbenavet=%v: got %q and error %v", without, path, err)
		}
	}
}

// TestUnfinishedSearchHasNoVerdict checks that a search fails if its time ends before the tests have passed, and that
// the search ends then.
func TestUnfinishedSearchHasNoVerdict(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	o := &commandOptions{weak: "d", within: 50 * time.Millisecond}
	s := &timedSearch{o: o, p: listedPackage{ImportPath: "mine"}, plan: func(int) commandRun {
		return commandRun{kind: suiteRun, what: "checked mode", argv: []string{"sleep", "60"}}
	}}
	var out strings.Builder
	start := time.Now()
	err := s.run(ctx, &out)
	if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "no verdict") || took > 30*time.Second {
		t.Errorf("run: got error %v after %v, want no verdict in less than 30 s", err, took)
	}
	if got := exitStatus(err); got != 3 {
		t.Errorf("exit status: got %d, want 3", got)
	}
	if got := out.String(); got != "schedule: mine: checked mode\n" {
		t.Errorf("output: got %q, want one line about the phase", got)
	}
}

// TestImpossibleSearchFails checks the searches that cannot succeed.
func TestImpossibleSearchFails(t *testing.T) {
	for _, c := range []struct {
		name string
		o    commandOptions
		want string
	}{
		{"without a pattern", commandOptions{first: 1, within: time.Second}, "-within needs -run"},
		{"of a consumer with pauses", commandOptions{first: 1, within: time.Second, pause: "verbena/ib",
			weak: "verbena/driver/loopback"}, "neither pauses"},
		{"of a consumer on other drivers", commandOptions{first: 1, within: time.Minute, weak: "verbena/driver/rxe",
			noSource: true, tests: []string{"verbena/ib/slot"}}, "use none of the drivers"},
		{"that matches nothing", commandOptions{first: 1, within: time.Minute, run: "^TestNone$", timeout: "1m",
			tests: []string{"verbena/examples/minimal"}}, "no test matches"},
		{"that is too short", commandOptions{first: 1, within: time.Millisecond, run: "^TestContract$", timeout: "1m",
			tests: []string{"verbena/examples/minimal"}}, "did not end within 1ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.o.tests) > 0 && testing.Short() {
				t.Skip("it compiles tests with the race detector")
			}
			err := c.o.runTests(io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			status := 1
			if c.o.within == time.Millisecond {
				status = 3
			}
			if got := exitStatus(err); got != status {
				t.Errorf("exit status: got %d, want %d", got, status)
			}
		})
	}
}
