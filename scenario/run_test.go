package scenario

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/internal/qpinfo"
	"verbena/internal/testutil"
)

// simService is a simulated service with its programs, on virtual time.
type simService struct {
	mu       sync.Mutex
	began    time.Time
	did      []string // actions with their times
	counters map[string]uint64
	armed    bool // a link is waiting for a counted moment
	left     []ctl.ContextInfo
	// The device files close at this time; the zero time means never.
	leftUntil time.Time
	fails     string // operation that fails
	listens   bool
	scripts   map[string]func(*simProgram) Exit
	killed    []string
}

// wait unlocks the service for the time of an operation.
func (w *simService) wait(d time.Duration) {
	w.mu.Unlock()
	defer w.mu.Lock()
	time.Sleep(d)
}

func (w *simService) Do(r *ctl.Request) (*ctl.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note := func(s string, a ...any) {
		w.did = append(w.did, fmt.Sprintf("%v ", time.Since(w.began))+fmt.Sprintf(s, a...))
	}
	if w.fails == string(r.Op) {
		return nil, errors.New("the service refuses")
	}
	a := &ctl.Response{}
	switch r.Op {
	case ctl.OpLinkShow:
		armed := ""
		if w.armed {
			armed = "wr 10"
		}
		a.Links = []ctl.LinkInfo{{Name: "rxe0", State: "ACTIVE", Link: ctl.LinkUp, Armed: armed}}
	case ctl.OpDevShow:
		a.Devs = []ctl.DevInfo{{Name: "rxe0"}}
	case ctl.OpStatShow:
		c := map[string]uint64{}
		for k, v := range w.counters {
			c[k] = v
		}
		a.Stats = []ctl.StatInfo{{Dev: "rxe0", Counters: c}}
	case ctl.OpResShow:
		a.Contexts = w.left
		if !w.leftUntil.IsZero() && time.Now().After(w.leftUntil) {
			a.Contexts = nil
		}
	case ctl.OpFaultAdd:
		if v := r.Fault.Verb; v != nil {
			note("%s %d %d", v.Verb, v.Nth, v.Times)
		} else {
			note("fault %v", r.Fault.Drop)
		}
		a.ID = 7
	case ctl.OpFaultShow:
		a.Faults = []ctl.FaultRuleState{{ID: 7, RuleCounts: fault.RuleCounts{Seen: 100, Hit: 3, HitAt: []uint64{5, 70, 90}}}}
	case ctl.OpLinkSet:
		note("link %s wr %d", r.Set.State, r.Set.AtWR)
		if r.Set.Down > 0 {
			w.wait(r.Set.Down)
		}
		w.armed = r.Set.AtWR > 0
	case ctl.OpExplain:
		a.Causes = []qpinfo.Cause{{Row: "no-answer", What: "QP 17: transport retry counter exceeded",
			Why: "no answer from 10.0.0.2", Count: 1, Device: "rxe0", QP: 17, Fault: "unknown"}}
	case ctl.OpDevReset:
		note("reset")
		w.wait(100 * time.Millisecond)
	default:
		note("%s", r.Op)
	}
	return a, nil
}

// simProgram is a simulated program.
type simProgram struct {
	w      *simService
	name   string
	line   func(string)
	signal chan syscall.Signal
	ended  chan struct{}
	exit   Exit
}

func (s *simProgram) printLine(text string) { s.line(text) }

// sleepOrSignal sleeps for d and returns the signal received in that time, or 0.
func (s *simProgram) sleepOrSignal(d time.Duration) syscall.Signal {
	select {
	case sig := <-s.signal:
		return sig
	case <-time.After(d):
		return 0
	}
}

func (s *simProgram) Wait() Exit { <-s.ended; return s.exit }

func (s *simProgram) Signal(sig syscall.Signal) error { s.signal <- sig; return nil }

func (s *simProgram) Kill() {
	s.w.mu.Lock()
	s.w.killed = append(s.w.killed, s.name)
	s.w.mu.Unlock()
	select {
	case s.signal <- syscall.SIGKILL:
	default:
	}
}

func (w *simService) Start(p *Program, line func(string)) (Process, error) {
	f := w.scripts[p.Run[0]]
	if f == nil {
		return nil, errors.New("no such program")
	}
	s := &simProgram{w: w, name: p.Name, line: line, signal: make(chan syscall.Signal, 1), ended: make(chan struct{})}
	go func() {
		s.exit = f(s)
		close(s.ended)
	}()
	return s, nil
}

// runScenario runs a scenario on virtual time.
func (w *simService) runScenario(t *testing.T, text string) *Result {
	t.Helper()
	f := mustParse(t, text, nil)
	w.began = time.Now()
	r := Runner{Lab: w, Starter: w, Listens: func(int) bool { w.mu.Lock(); defer w.mu.Unlock(); return w.listens }}
	res, err := r.Run(t.Context(), f)
	if err != nil && res.Error == "" {
		t.Error("error of the result: got none, want the error of Run")
	}
	return res
}

func listFailures(r *Result) string {
	var list []string
	for _, c := range r.Checks {
		if !c.Passed {
			list = append(list, c.Subject+": "+c.What)
		}
	}
	return strings.Join(list, "; ")
}

func newSimService() *simService {
	return &simService{counters: map[string]uint64{}, scripts: map[string]func(*simProgram) Exit{
		"server": func(s *simProgram) Exit {
			s.printLine("ready")
			s.sleepOrSignal(300 * time.Millisecond)
			s.w.mu.Lock()
			s.w.listens = true
			s.w.mu.Unlock()
			if sig := s.sleepOrSignal(5 * time.Second); sig != 0 {
				return Exit{Signal: sig}
			}
			s.printLine("done")
			return Exit{}
		},
		"client": func(s *simProgram) Exit {
			s.printLine("hello")
			if sig := s.sleepOrSignal(2 * time.Second); sig != 0 {
				return Exit{Signal: sig}
			}
			s.w.mu.Lock()
			s.w.counters["sent_pkts"] = 50
			s.w.counters["event_port_err"] += 2
			s.w.armed = false
			s.w.mu.Unlock()
			s.sleepOrSignal(time.Second)
			s.printLine("bye")
			return Exit{Code: 3}
		},
		"forever": func(s *simProgram) Exit { return Exit{Signal: s.sleepOrSignal(time.Hour)} },
	}}
}

const devicesYAML = "devices: [{name: rxe0}]\n"

// TestRunStartsOnTime checks that programs and actions start at their moments, and that their results are checked.
func TestRunStartsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimService()
		w.counters["event_gid_change"] = 1 // before the start
		r := w.runScenario(t, `
name: all moments
`+devicesYAML+`
programs:
  - {name: server, run: [server], expect: {output: [ready, done], never: [panic]}}
  - {name: client, run: [client], start: {listens: 1}, expect: {exit: 3, output: [hello, bye], within: 3.5s}}
actions:
  - {name: first, fault: {dev: rxe0, drop: 50%}}
  - {name: armed, when: {wr: 10}, link: {dev: rxe0, state: down}}
  - {name: up, when: {done: armed, wait: 100ms}, link: {dev: rxe0, state: up}}
  - {name: hello, when: {output: hel+o, of: client}, reset: {dev: rxe0}}
  - {name: timed, when: {at: 1s}, unplug: rxe0}
  - {name: counted, when: {counter: sent_pkts, dev: rxe0, reaches: 50}, plug: rxe0}
  - {name: event, when: {counter: event_port_err, dev: rxe0, reaches: 2, wait: 50ms}, event: {dev: rxe0, event: port_active}}
  - {name: ended, when: {exit: client, wait: 50ms}, hang: rxe0}
  - {name: gone, when: {done: hello}, clear: first}
expect: [{dev: rxe0, counter: sent_pkts, is: 50}, {action: first, counter: hit, is: 3}]
`)
		if !r.Passed {
			t.Errorf("failures: got %s, want none", listFailures(r))
		}
		want := []string{"0s fault 0.5", "0s link down wr 10", "300ms reset", "400ms fault clear", "1s dev unplug",
			"2.3s dev plug", "2.35s dev event",
			"2.4s link up wr 0", "3.35s dev hang"}
		if len(w.did) != len(want) {
			t.Fatalf("actions: got %q, want %q", w.did, want)
		}
		slices.SortStableFunc(w.did, func(a, b string) int { return parseActionMillis(a) - parseActionMillis(b) })
		for i := range want {
			d := parseActionMillis(w.did[i]) - parseActionMillis(want[i])
			_, got, _ := strings.Cut(w.did[i], " ")
			if _, what, _ := strings.Cut(want[i], " "); got != what || d < 0 || d > 25 {
				t.Errorf("action %d: got %s, want %s", i, w.did[i], want[i])
			}
		}
		if got := r.Actions[0].Rule; got == nil || got.Seen != 100 || got.Hit != 3 ||
			!slices.Equal(got.HitAt, []uint64{5, 70, 90}) {
			t.Errorf("rule: got %v, want 3 hits of 100", got)
		}
		if e := r.Events; len(e) != 1 || e[0].Dev != "rxe0" || e[0].String() != "port_err, 2 times" ||
			e[0].At.Round(100*time.Millisecond) != 2300*time.Millisecond {
			t.Errorf("events: got %+v, want port_err twice at 2.3 s", e)
		}
	})
}

// parseActionMillis returns the time of an action in milliseconds.
func parseActionMillis(s string) int {
	text, _, _ := strings.Cut(s, " ")
	d, _ := time.ParseDuration(text)
	return int(d.Milliseconds())
}

// TestResultExplainsFailures checks that a result contains the causes of failures, and that the text of a failed run
// shows them.
func TestResultExplainsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for exit, shown := range map[int]bool{3: false, 4: true} {
			r := newSimService().runScenario(t, fmt.Sprintf("name: explained\n"+devicesYAML+
				"programs: [{name: client, run: [client], expect: {exit: %d}}]\n", exit))
			if len(r.Causes) != 1 || r.Causes[0].Row != "no-answer" {
				t.Errorf("causes: got %+v, want one", r.Causes)
			}
			var text bytes.Buffer
			r.WriteText(&text)
			const want = "why   rxe0 QP 17: transport retry counter exceeded; no answer from 10.0.0.2 [no-answer;"
			if strings.Contains(text.String(), want) != shown {
				t.Errorf("text after exit code 3 instead of %d: got %s, want the cause: %t", exit, &text, shown)
			}
		}
	})
}

// TestRunReportsUnexpectedResults checks that each unexpected result is reported, and that no other result is.
func TestRunReportsUnexpectedResults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"exit code", "programs: [{name: a, run: [client]}]", "a: exit code 0"},
		{"exit code of a killed program",
			"programs: [{name: a, run: [forever]}]\nactions: [{when: {at: 1s}, signal: {program: a, signal: SIGTERM}}]",
			"a: exit code 0"},
		{"signal", "programs: [{name: a, run: [client], expect: {killed: SIGKILL}}]", "a: killed by SIGKILL"},
		{"another signal", "programs: [{name: a, run: [forever], expect: {killed: SIGKILL}}]\n" +
			"actions: [{when: {at: 1s}, signal: {program: a, signal: SIGTERM}}]", "a: killed by SIGKILL"},
		{"output", "programs: [{name: a, run: [server], expect: {output: [nope]}}]", "a: prints /nope/"},
		{"output in another order", "programs: [{name: a, run: [server], expect: {output: [done, ready]}}]",
			"a: prints /ready/"},
		{"one line for two expectations", "programs: [{name: a, run: [server], expect: {output: [done, done]}}]",
			"a: prints /done/"},
		{"a forbidden line", "programs: [{name: a, run: [server], expect: {never: [do.e]}}]", "a: never prints /do.e/"},
		{"too slow", "programs: [{name: a, run: [server], expect: {within: 1s}}]", "a: within 1s"},
		{"does not end", "timeout: 10s\nprograms: [{name: a, run: [forever], expect: {killed: SIGKILL}}]",
			"a: killed by SIGKILL"},
		{"does not start", "programs: [{name: a, run: [nope]}]", "a: starts"},
		{"never starts", "programs: [{name: a, run: [server]}, {name: b, run: [server], start: {output: nope, of: a}}]",
			"b: starts"},
		{"an action that is never due",
			"programs: [{name: a, run: [server]}]\nactions: [{name: x, when: {output: nope, of: a}, unplug: rxe0}]",
			"x: is done"},
		{"a counted action", "programs: [{name: a, run: [server]}]\nactions: [{name: x, when: {wr: 5}, link: {dev: rxe0, state: down}}]", "x: is done"},
		{"an action cancelled by another",
			"programs: [{name: a, run: [server]}]\nactions: [{name: x, when: {wr: 5}, link: {dev: rxe0, state: down}}, " +
				"{when: {at: 1s}, link: {dev: rxe0, state: up}}]", "x: is done"},
		{"a counter too small", "programs: [{name: a, run: [server]}]\nexpect: [{dev: rxe0, counter: c, min: 6}]",
			"rxe0: c is at least 6"},
		{"a counter too large", "programs: [{name: a, run: [server]}]\nexpect: [{dev: rxe0, counter: c, max: 4}]",
			"rxe0: c is at most 4"},
		{"another value", "programs: [{name: a, run: [server]}]\nexpect: [{dev: rxe0, counter: c, is: 4}]", "rxe0: c is 4"},
		{"no such counter", "programs: [{name: a, run: [server]}]\nexpect: [{dev: rxe0, counter: d, is: 4}]", "rxe0: d"},
		{"a signal to an ended program", "programs: [{name: a, run: [server]}]\n" +
			"actions: [{name: x, when: {exit: a}, signal: {program: a, signal: SIGKILL}}]", "x: is done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSimService()
				w.counters["c"] = 5
				r := w.runScenario(t, "name: x\n"+devicesYAML+c.text)
				if got := listFailures(r); got != c.want || r.Passed {
					t.Errorf("failures: got %q (passed: %t), want %q", got, r.Passed, c.want)
				}
			})
		})
	}
}

// TestRemovedActionIsNoFailure checks that an omitted action and its followers are not done, and that this is not a
// failure. The other expectations are still checked.
func TestRemovedActionIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "name: x\n" + devicesYAML + `
programs: [{name: a, run: [server], expect: {output: [ready, never]}}]
actions:
  - {name: rule, fault: {dev: rxe0, drop: 1%}}
  - {name: gone, when: {output: done, of: a}, clear: rule}
  - {name: armed, when: {wr: 10}, link: {dev: rxe0, state: down}}
  - {name: up, when: {done: armed, wait: 1s}, link: {dev: rxe0, state: up}}
  - {name: later, when: {done: up}, hang: rxe0}
  - {name: other, when: {at: 1s}, unplug: rxe0}
expect: [{action: rule, counter: hit, min: 1}]
`
		f := mustParse(t, text, nil)
		for _, a := range []string{"armed", "rule"} {
			if err := f.RemoveAction(a); err != nil {
				t.Fatal(err)
			}
		}
		w := newSimService()
		w.began = time.Now()
		r, err := (&Runner{Lab: w, Starter: w, Listens: func(int) bool { return false }}).Run(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := listFailures(r), "a: prints /never/; rule: hit is at least 1"; got != want {
			t.Errorf("failures: got %q, want %q", got, want)
		}
		if len(w.did) != 1 || !strings.HasSuffix(w.did[0], " dev unplug") {
			t.Errorf("actions: got %q, want only the unplug", w.did)
		}
		for _, a := range r.Actions {
			if out := a.Name != "other"; a.Out != out || a.Began == out || a.Done == out {
				t.Errorf("action: got %+v, want it omitted unless it is other", a)
			}
		}
		if err := f.RemoveAction("nope"); err == nil || !strings.Contains(err.Error(), "the actions are: rule, gone, armed") {
			t.Errorf("Without an unknown action: got %v, want an error with the names", err)
		}
		all := w.runScenario(t, text)
		if same, _ := r.Compare(all); len(same) != 5 {
			t.Errorf("Compare with all actions: got %q, want 5 differences", same)
		}
	})
}

// TestNthWithoutTimesMeansOne checks that nth without times means one call, as for `verbena fault add`.
func TestNthWithoutTimesMeansOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimService()
		w.runScenario(t, "name: x\n"+devicesYAML+`
programs: [{name: a, run: [server]}]
actions:
  - {verb: {verb: create_cq, errno: EIO, nth: 2}}
  - {verb: {verb: reg_mr, errno: EIO, nth: 2, times: 3}}
  - {verb: {verb: alloc_pd, errno: EIO}}
`)
		for i, want := range []string{"create_cq 2 1", "reg_mr 2 3", "alloc_pd 0 0"} {
			if len(w.did) != 3 || !strings.HasSuffix(w.did[i], want) {
				t.Errorf("action %d: got %q, want %s", i, w.did, want)
			}
		}
	})
}

// TestCompareHits checks that the rules of two runs must have hit the same packets, as far as both have seen them.
func TestCompareHits(t *testing.T) {
	result := func(r *ruleResult) *Result { return &Result{Actions: []actionResult{{Name: "a", Rule: r}}} }
	many := make([]uint64, 64)
	for i := range many {
		many[i] = uint64(i + 1)
	}
	for _, c := range []struct {
		name string
		a, b ruleResult
		want string
	}{
		{"the same", ruleResult{10, 2, []uint64{3, 7}}, ruleResult{10, 2, []uint64{3, 7}}, ""},
		{"one rule has seen more", ruleResult{10, 2, []uint64{3, 7}}, ruleResult{20, 3, []uint64{3, 7, 15}}, ""},
		{"one rule has seen nothing", ruleResult{}, ruleResult{20, 2, []uint64{3, 7}}, ""},
		{"another", ruleResult{10, 2, []uint64{3, 7}}, ruleResult{10, 2, []uint64{3, 8}}, "hit number 7, and number 8"},
		{"one more hit", ruleResult{10, 2, []uint64{3, 7}}, ruleResult{20, 3, []uint64{3, 7, 9}},
			"hit no more, and number 9"},
		{"another number", ruleResult{10, 1, []uint64{3}}, ruleResult{10, 2, []uint64{3, 9}},
			"of 10 seen, 1 were hit, and 2"},
		{"more hits than are kept", ruleResult{100, 100, many}, ruleResult{90, 90, many}, ""},
		{"more hits than are kept, and exactly as many", ruleResult{100, 100, many}, ruleResult{100, 64, many},
			"100 were hit, and 64"},
		{"calls of a verb", ruleResult{10, 2, nil}, ruleResult{12, 2, nil}, ""},
	} {
		same, _ := result(&c.a).Compare(result(&c.b))
		if got := strings.Join(same, "; "); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if back, _ := result(&c.b).Compare(result(&c.a)); len(back) != len(same) {
			t.Errorf("%s: in reverse: got %q, want as many differences", c.name, back)
		}
	}
}

// TestRunErrorKillsPrograms checks that a scenario with an error has failed, and that its programs are killed.
func TestRunErrorKillsPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimService()
		w.fails = "fault add"
		if r := w.runScenario(t,
			"name: x\n"+devicesYAML+"programs: [{name: a, run: [server]}]\nactions: [{fault: {dev: rxe0, drop: 1%}}]"); r.Passed ||
			!strings.Contains(r.Error, "the service refuses") {
			t.Errorf("result: got passed %t and error %q, want a failure with the error", r.Passed, r.Error)
		}
		if r := w.runScenario(t,
			"name: x\n"+devicesYAML+"programs: [{name: a, run: [server]}]\nactions: [{name: l, when: {at: 1s}, fault: {dev: rxe0, drop: 1%}}]"); r.Passed ||
			listFailures(r) != "l: is done" {
			t.Errorf("result: got passed %t and failures %q", r.Passed, listFailures(r))
		}
		w = newSimService()
		w.left = []ctl.ContextInfo{{Device: "rxe0", PID: 5, Process: "x"}}
		r := w.runScenario(t, "name: x\n"+devicesYAML+"programs: [{name: a, run: [server]}]")
		if listFailures(r) != "service: nothing is left" {
			t.Errorf("failures: got %q, want nothing is left", listFailures(r))
		}
		w = newSimService() // the service detects the end of the program with a delay
		w.left, w.leftUntil = []ctl.ContextInfo{{Device: "rxe0", PID: 5, Process: "x"}}, time.Now().Add(6*time.Second)
		if r := w.runScenario(t, "name: x\n"+devicesYAML+"programs: [{name: a, run: [server]}]"); !r.Passed ||
			len(r.Left) != 0 {
			t.Errorf("result: got failures %q and left %q, want none", listFailures(r), r.Left)
		}
		w = newSimService()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
		defer cancel()
		r, err := (&Runner{Lab: w, Starter: w}).Run(ctx, mustParse(t,
			"name: x\n"+devicesYAML+"programs: [{name: a, run: [forever]}]",
			nil))
		if err == nil || err.Error() != "enough" || r.Passed || !slices.Equal(w.killed, []string{"a"}) {
			t.Errorf("cancelled run: got error %v, passed %t and killed %v", err, r.Passed, w.killed)
		}
	})
}

// TestNotRunIsReportedAsError checks that a scenario that could not be started is an error in the reports.
func TestNotRunIsReportedAsError(t *testing.T) {
	r := NewFailedResult(mustParse(t, baseText, nil), errors.New("no such address"))
	var junit, text, svg bytes.Buffer
	if err := WriteJUnit(&junit, []*Result{r}); err != nil {
		t.Fatal(err)
	}
	var suites junitSuites
	if err := xml.Unmarshal(junit.Bytes(), &suites); err != nil || suites.Errors != 1 || suites.Tests != 1 ||
		suites.Suites[0].Cases[0].Error.Message != "no such address" {
		t.Errorf("JUnit: got error %v or other counts, want one error: %s", err, &junit)
	}
	if r.WriteText(&text); r.Passed || !strings.Contains(text.String(), "no such address") ||
		!strings.Contains(text.String(), "FAIL  small") {
		t.Errorf("text: got %s, want the error", &text)
	}
	if err := errors.Join(r.WriteTimeline(&svg), checkWellFormed(&svg)); err != nil {
		t.Error(err)
	}
}

// TestEndlessOutputUsesLimitedMemory checks that a program with endless output uses limited memory, and that its end is
// detected.
func TestEndlessOutputUsesLimitedMemory(t *testing.T) {
	w := newSimService()
	w.scripts["flood"] = func(s *simProgram) Exit {
		for range 3 * maxLines {
			s.printLine(strings.Repeat("x\xff", 2*maxLine))
		}
		return Exit{}
	}
	r := w.runScenario(t, "name: x\n"+devicesYAML+"programs: [{name: a, run: [flood]}]")
	if p := r.Programs[0]; len(p.Lines) != maxLines || p.More != 2*maxLines || len(p.Lines[0].Text) > 3*maxLine {
		t.Errorf("output: got %d lines, the first of %d bytes, and %d dropped; want %d, at most %d, and %d", len(p.Lines),
			len(p.Lines[0].Text), p.More, maxLines, 3*maxLine, 2*maxLines)
	}
	if !r.Passed {
		t.Error(listFailures(r))
	}
}

// TestReportsMatchResult checks that reports match the result and are well-formed for any output of programs.
func TestReportsMatchResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimService()
		w.scripts["odd"] = func(s *simProgram) Exit {
			s.printLine("<odd> & \x1b[31m\x00 \"quoted\"")
			s.sleepOrSignal(time.Second)
			return Exit{Code: 1}
		}
		r := w.runScenario(t, "name: <a> & b\n"+devicesYAML+"programs: [{name: <p>, run: [odd]}, {name: q, run: [server], start: {output: nope, of: <p>}}]\n"+
			"actions: [{when: {at: 1ms}, unplug: rxe0}, {when: {at: 2ms}, plug: rxe0}]")
		var junit bytes.Buffer
		if err := WriteJUnit(&junit, []*Result{r}); err != nil {
			t.Fatal(err)
		}
		var suites junitSuites
		if err := xml.Unmarshal(junit.Bytes(), &suites); err != nil {
			t.Fatalf("parse JUnit: got %v, want success: %s", err, junit.String())
		}
		if suites.Failures != 2 || suites.Tests != len(r.Checks) || len(suites.Suites[0].Cases) != len(r.Checks) ||
			!strings.Contains(suites.Suites[0].Out, "<odd>") {
			t.Errorf("JUnit: got %+v, want the counts of the result", suites)
		}
		var svg bytes.Buffer
		if err := r.WriteTimeline(&svg); err != nil {
			t.Fatal(err)
		}
		if err := checkWellFormed(&svg); err != nil {
			t.Errorf("parse SVG: got %v, want success: %s", err, svg.String())
		}
		var text bytes.Buffer
		r.WriteText(&text)
		if s := text.String(); strings.Count(s, "FAIL") != 3 || !strings.Contains(s, "exit code 1; its last line") {
			t.Errorf("text: got %s, want 3 failures and the last line", s)
		}
		w.scripts["long"] = func(s *simProgram) Exit {
			for n := range maxLines + 10 {
				s.printLine(fmt.Sprintf("line %d", n))
			}
			s.printLine("")
			return Exit{Code: 1}
		}
		text.Reset()
		w.runScenario(t, "name: long\n"+devicesYAML+"programs: [{name: p, run: [long]}]").WriteText(&text)
		if want := fmt.Sprintf("its last line: line %d", maxLines+9); !strings.Contains(text.String(), want) {
			t.Errorf("text of a program with %d lines: got %s, want %q", maxLines+11, text.String(), want)
		}
		same, free := r.Compare(r)
		if len(same)+len(free) != 0 {
			t.Errorf("Compare with itself: got %v and %v, want none", same, free)
		}
		o := w.runScenario(t, "name: <a> & b\n"+devicesYAML+"programs: [{name: <p>, run: [odd]}, {name: q, run: [server], start: {output: nope, of: <p>}}]\n"+
			"actions: [{when: {at: 1ms}, unplug: rxe0}, {when: {at: 500ms}, plug: rxe0}]")
		if same, free := r.Compare(o); len(same) != 1 || len(free) != 1 {
			t.Errorf("Compare with another moment: got %q and %q, want one each", same, free)
		}
	})
}

// TestCompare checks that Compare separates differences that the seed excludes from permitted differences.
func TestCompare(t *testing.T) {
	result := func(edit func(*Result)) *Result {
		r := &Result{Name: "x", Seed: 1, Actions: []actionResult{{Name: "a", What: "fault rxe0", Moment: "at once",
			Done: true, Rule: &ruleResult{Seen: 10, Hit: 2}}},
			Programs: []programResult{{Name: "p", Exit: &Exit{}, Lines: []outputLine{{Text: "one"}}}},
			Counters: map[string]map[string]uint64{"rxe0": {"sent_pkts": 5}}}
		edit(r)
		return r
	}
	for _, c := range []struct {
		name       string
		edit       func(*Result)
		same, free int
	}{
		{"the same", func(*Result) {}, 0, 0},
		{"another seed", func(r *Result) { r.Seed = 2 }, 1, 0},
		{"another scenario", func(r *Result) { r.Name = "y" }, 1, 0},
		{"another moment", func(r *Result) { r.Actions[0].Moment = "later" }, 1, 0},
		{"not done", func(r *Result) { r.Actions[0].Done = false }, 1, 0},
		{"another action", func(r *Result) { r.Actions[0].Name = "b" }, 1, 0},
		{"other hits in the same number", func(r *Result) { r.Actions[0].Rule.Hit = 3 }, 1, 1},
		{"more packets", func(r *Result) { r.Actions[0].Rule.Seen, r.Actions[0].Rule.Hit = 20, 4 }, 0, 1},
		{"later", func(r *Result) { r.Actions[0].At = time.Second }, 0, 1},
		{"another exit code", func(r *Result) { r.Programs[0].Exit.Code = 1 }, 0, 1},
		{"another line", func(r *Result) { r.Programs[0].Lines[0].Text = "two" }, 0, 1},
		{"a line more", func(r *Result) { r.Programs[0].Lines = append(r.Programs[0].Lines, outputLine{Text: "two"}) }, 0, 1},
		{"another counter", func(r *Result) { r.Counters["rxe0"]["sent_pkts"] = 6 }, 0, 1},
	} {
		same, free := result(func(*Result) {}).Compare(result(c.edit))
		if len(same) != c.same || len(free) != c.free {
			t.Errorf("Compare %s: got %q and %q, want %d and %d", c.name, same, free, c.same, c.free)
		}
	}
}

func checkWellFormed(r io.Reader) error {
	d := xml.NewDecoder(r)
	for {
		if _, err := d.Token(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// TestSamplesAreLimited checks that a long run has a limited number of samples, which cover the whole run.
func TestSamplesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimService()
		r := w.runScenario(t, "name: x\ntimeout: 20m\n"+devicesYAML+"programs: [{name: a, run: [forever], expect: {killed: SIGTERM}}]\n"+
			"actions: [{when: {at: 15m}, signal: {program: a, signal: SIGTERM}}]")
		if !r.Passed {
			t.Error(listFailures(r))
		}
		n := len(r.Samples)
		if n < maxSamples/4 || n > maxSamples || r.Samples[0].At > time.Second || r.Samples[n-1].At < 15*time.Minute {
			t.Errorf("samples: got %d from %v to %v, want a limited number over the whole run", n, r.Samples[0].At,
				r.Samples[n-1].At)
		}
	})
}

// TestActionsBeforeStartCanBeInterrupted checks that actions before the programs' start are subject to the time limit,
// and can be interrupted.
func TestActionsBeforeStartCanBeInterrupted(t *testing.T) {
	const text = "name: flap\ntimeout: 5s\n" + devicesYAML + `
programs: [{name: server, run: [server]}]
actions: [{name: flap, link: {dev: rxe0, state: flap, for: 1h}}]
`
	synctest.Test(t, func(t *testing.T) {
		r := newSimService().runScenario(t, text)
		if r.Passed || !r.TimedOut || r.Took > 6*time.Second || !strings.Contains(listFailures(r), "flap: is done") {
			t.Errorf("time limit: got passed %t, timed out %t in %v, failures %s", r.Passed, r.TimedOut, r.Took, listFailures(r))
		}
		testutil.AdvanceTime(time.Hour) // the flap ends
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("interrupted"))
		defer cancel()
		w := newSimService()
		res, err := (&Runner{Lab: w, Starter: w, Listens: func(int) bool { return false }}).Run(ctx, mustParse(t, text, nil))
		if err == nil || err.Error() != "interrupted" || res.Took > 2*time.Second {
			t.Errorf("Run: got %v after %v, want the cause after 1s", err, res.Took)
		}
		testutil.AdvanceTime(time.Hour)
	})
}

// TestExpectationsApplyToAllLines checks that expectations apply to all lines, including lines that are not kept.
func TestExpectationsApplyToAllLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimService()
		w.scripts["client"] = func(s *simProgram) Exit {
			s.printLine("first")
			for range maxLines {
				s.printLine("more")
			}
			for _, text := range []string{"second", "gave up", "gave up", "third", "more"} {
				s.printLine(text)
			}
			return Exit{}
		}
		r := w.runScenario(t, "name: lines\n"+devicesYAML+"programs: [{name: client, run: [client], expect: {output: [first, second, third], never: [gave up, died]}}]\n")
		if got, want := listFailures(r), "client: never prints /gave up/"; got != want {
			t.Errorf("failures: got %q, want %q", got, want)
		}
		if p := r.Programs[0]; len(p.Lines) != maxLines+3 || p.More != 3 {
			t.Errorf("lines: got %d kept and %d not kept, want %d and 3", len(p.Lines), p.More, maxLines+3)
		}
	})
}

// TestObserveSeesRunningScenario tests that Observe is called about four times a second, and without checks.
func TestObserveSeesRunningScenario(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimService()
		w.began = time.Now()
		calls := 0
		var took time.Duration
		r := Runner{Lab: w, Starter: w, Observe: func(r *Result) {
			if calls++; r.Took < took || r.Checks != nil {
				t.Errorf("call %d: got %v after %v and checks %v, want a later time and no checks", calls, r.Took, took,
					r.Checks)
			}
			took = r.Took
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		res, err := r.Run(ctx, mustParse(t, "name: x\n"+devicesYAML+"programs: [{name: a, run: [forever]}]", nil))
		if err == nil || len(res.Checks) == 0 {
			t.Errorf("Run: got error %v and checks %v, want the end of the context", err, res.Checks)
		}
		if calls < 18 || calls > 21 || took < 4500*time.Millisecond {
			t.Errorf("calls of Observe: got %d up to %v, want 20 in 5 s", calls, took)
		}
	})
}
