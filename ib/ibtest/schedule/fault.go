package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"verbena/ib/ibtest/strict"
	"verbena/ib/ibtest/strict/expire"
)

// A run with a fault executes the tests of a consumer while the device fails, or time limits expire early. The tests
// may fail, so a failure proves nothing. Such a run counts only if it shows one of these:
//
//	a violation of the contract by the consumer, which package ib/ibtest/strict selects
//	an access to memory of an outstanding request or to a completion that is no longer valid, or another data race of the
//	consumer
//	a panic of the consumer, such as a nil dereference, before the test has reported a failure, or in a function that no
//	test has called
//	a lost wakeup, in a run of the kind lost-wakeups: the tests hang twice, while no goroutine of the consumer can run,
//	but not if threads do not pause
//
// The race detector observes the consumer. The tests are compiled through an overlay that makes limits expire early,
// and with pauses.

// faultKinds lists the kinds of faults, in the order of the runs.
var faultKinds = []string{expire.NoFailure, expire.LateThreads, expire.EarlyTimers, "failed-request", "failed-call",
	"failed-post", expire.LostWakeups, "failed-device"}

const (
	// faultExit is the exit code of a run in which the race detector has found a race.
	faultExit = 66
	// A run with a fault that takes longer than the tests is ended.
	faultFactor = 3
	faultGrace  = 5 * time.Second
)

// unraced lists packages without the race detector. A device may change memory at any time.
var unraced = []string{"verbena/umem", "verbena/driver/...", "verbena/engine/...", "verbena/ib/weak"}

const expirePath = "verbena/ib/ibtest/strict/expire"

// limitFuncs lists the functions with time limits: the position of the limit, or -1, and the functions of package
// expire for the limit and for the result.
var limitFuncs = map[string]struct {
	arg           int
	limit, result string
	inTest        bool // also in test files
}{
	"time.NewTimer":            {0, "Duration", "Timer", false},
	"time.AfterFunc":           {0, "Duration", "Timer", false},
	"time.After":               {0, "Duration", "", false},
	"time.Sleep":               {0, "Period", "", false},
	"time.NewTicker":           {0, "Period", "", false},
	"time.Tick":                {0, "Period", "", false},
	"time.Now":                 {-1, "", "Now", false},
	"time.Since":               {-1, "", "Since", false},
	"time.Until":               {-1, "", "Until", false},
	"context.WithTimeout":      {1, "Duration", "", true},
	"context.WithTimeoutCause": {1, "Duration", "", true},
	"context.WithDeadline":     {1, "Deadline", "", true},
}

// failFuncs lists the methods that record the failure of a test, with the function of package expire.
var failFuncs = map[string]string{"Error": "Error", "Errorf": "Error", "Fail": "Error", "Fatal": "Fatal",
	"Fatalf": "Fatal", "FailNow": "Fatal"}

// insertExpiry returns a source with calls of package expire. Line numbers do not change. changed is false if the
// source has no limits.
func insertExpiry(file string, src []byte) (text string, changed bool, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return "", false, err
	}
	isTest := strings.HasSuffix(file, "_test.go")
	names := map[string]string{}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil || p == expirePath {
			return "", false, err
		}
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = p
	}
	const alias = "scheduleExpire"
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	var in []textReplacement
	wrap := func(n ast.Node, name string) {
		in = append(in, textReplacement{offset(n.Pos()), offset(n.Pos()), alias + "." + name + "(", false},
			textReplacement{offset(n.End()), offset(n.End()), ")", true})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := s.X.(*ast.Ident)
		if !ok {
			return true
		}
		if fail := failFuncs[s.Sel.Name]; isTest && fail != "" && names[x.Name] == "" &&
			(len(call.Args) > 0 || strings.HasPrefix(s.Sel.Name, "Fail")) {
			wrap(s, fail)
			return true
		}
		l, ok := limitFuncs[names[x.Name]+"."+s.Sel.Name]
		if !ok || isTest && !l.inTest {
			return true
		}
		if l.result != "" {
			wrap(call, l.result)
		}
		if l.arg >= 0 && l.arg < len(call.Args) {
			wrap(call.Args[l.arg], l.limit)
		}
		return true
	})
	if len(in) == 0 {
		return "", false, nil
	}
	end := offset(f.Name.End())
	in = append(in, textReplacement{end, end, fmt.Sprintf("; import %s %q", alias, expirePath), true})
	return replaceTexts(src, in), true, nil
}

// lingerFile is a test file that keeps the process alive after the other tests.
const lingerFile = `_test

import (
	"testing"

	"verbena/ib/ibtest/strict/expire"
)

func TestScheduleLinger(t *testing.T) { expire.Pending() }
`

// compileFaultTests compiles the tests of a consumer for runs with faults.
func (o *commandOptions) compileFaultTests(ctx context.Context, p listedPackage, dir, binary string) error {
	r := &rewriter{dir: filepath.Join(dir, "faults"), replace: map[string]string{}}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
		file := filepath.Join(p.Dir, name)
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text, changed, err := insertExpiry(file, src)
		if err != nil {
			return err
		}
		if changed {
			if err := r.addFile(file, text); err != nil {
				return err
			}
		}
	}
	if err := r.addFile(filepath.Join(p.Dir, "schedule_zlinger_test.go"), "package "+strings.TrimSuffix(p.Name,
		"_test")+lingerFile); err != nil {
		return err
	}
	if err := r.addStrictFile(p.Name, p.Dir, nil); err != nil {
		return err
	}
	plain := maps.Clone(r.replace)
	r.wide = true
	if err := r.rewritePackage(p.Name, p.Dir, p.GoFiles); err == nil && compileRaced(ctx, p, r, binary) == nil ||
		ctx.Err() != nil {
		return ctx.Err()
	}
	r.replace = plain // without pauses
	return compileRaced(ctx, p, r, binary)
}

// compileRaced compiles the tests of a consumer with an overlay and the race detector.
func compileRaced(ctx context.Context, p listedPackage, r *rewriter, binary string) error {
	overlay, err := r.writeOverlayList()
	if err != nil {
		return err
	}
	args := []string{"test", withPaths, "-c", "-race", "-o", binary, "-overlay=" + overlay}
	for _, u := range unraced {
		args = append(args, "-gcflags="+u+"=-race=false")
	}
	c := exec.CommandContext(ctx, "go", append(args, p.ImportPath)...)
	c.WaitDelay = killDelay
	c.Env = append(os.Environ(), "CGO_ENABLED=1")
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the tests of %s with the race detector: %w\n%s", p.ImportPath, err, text)
	}
	return nil
}

// planFaultRun returns the run number i with a fault. reuse reports whether the rule target-reused applies.
func (o *commandOptions) planFaultRun(i int, binary string, reuse bool) commandRun {
	kind, seed := faultKinds[i%len(faultKinds)], o.first+uint64(i/len(faultKinds))
	env := append(o.strictEnv(seed), strict.FaultEnv+"="+kind, fmt.Sprintf("GORACE=exitcode=%d", faultExit))
	if reuse {
		env = append(env, strict.ReuseEnv+"="+strict.ReuseReport)
	}
	return commandRun{faultRun, fmt.Sprintf("%s with seed %d", kind, seed), o.testArgv(binary, o.run, "-test.v"), env}
}

// runFaultCommand executes a run with a fault. It returns the output, and the evidence for a fault of the consumer, or
// nil.
func (s *timedSearch) runFaultCommand(ctx context.Context, t commandRun) ([]byte, error) {
	s.mu.Lock()
	limit := faultFactor*s.tests + faultGrace
	if s.tests == 0 { // they have not ended yet
		limit = s.o.within
	}
	s.mu.Unlock()
	text, hung, err := s.runLimited(ctx, t, limit)
	if hung && slices.Contains(t.env, lostWakeups) {
		return s.confirmHang(ctx, t, limit)
	}
	if err == nil {
		return nil, nil
	}
	return findEvidence(string(text), s.p)
}

// runLimited executes a run until a limit. hung reports whether the limit has expired when the consumer could not run.
func (s *timedSearch) runLimited(ctx context.Context, t commandRun, limit time.Duration) (text []byte, hung bool,
	err error) {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := exec.CommandContext(within, t.argv[0], t.argv[1:]...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) } // prints the stacks
	c.WaitDelay = killDelay
	c.Dir = s.p.Dir
	c.Env = append(os.Environ(), t.env...)
	text, err = c.CombinedOutput()
	return text, within.Err() != nil && ctx.Err() == nil && !strings.Contains(string(text), "--- FAIL: ") &&
		isIdle(string(text), s.p), err
}

const (
	lostWakeups = strict.FaultEnv + "=" + expire.LostWakeups
	// hangAttempts is the number of further runs of which one must hang.
	hangAttempts = 2
)

// confirmHang reports whether a run that has hung does so again, but not without pauses.
func (s *timedSearch) confirmHang(ctx context.Context, t commandRun, limit time.Duration) ([]byte, error) {
	for range hangAttempts {
		text, hung, _ := s.runLimited(ctx, t, limit)
		if !hung {
			continue
		}
		control := t
		control.env = append(slices.Clone(t.env), strict.FaultEnv+"="+expire.LongLimits) // the last value counts
		if _, _, err := s.runLimited(ctx, control, limit); err != nil {
			return nil, nil
		}
		return text, errors.New("the tests hang if threads are late: the consumer has lost a wakeup")
	}
	return nil, nil
}

// goroutineState matches the first line of the stack of a goroutine.
var goroutineState = regexp.MustCompile(`^goroutine \d+ .*\[([^\],]+)`)

// isIdle reports whether a program with certain stacks waits for events only: a goroutine of the consumer waits, and
// all goroutines do.
func isIdle(stacks string, p listedPackage) bool {
	waits := false
	for _, g := range strings.Split(stacks, "\n\n") {
		m := goroutineState.FindStringSubmatch(strings.TrimLeft(g, "\n"))
		if m == nil || !strings.Contains(g, "\n\t/") {
			continue
		}
		consumer := false
		for _, at := range stackLine.FindAllStringSubmatch(g, -1) {
			consumer = consumer || filepath.Dir(at[1]) == p.Dir
		}
		switch m[1] {
		case "running", "runnable", "sleep", "syscall":
			if consumer || strings.Contains(g, "verbena/ib") {
				return false
			}
		default:
			waits = waits || consumer
		}
	}
	return waits
}

var (
	// testOutput matches a message of a test.
	testOutput = regexp.MustCompile(`(?m)^\s+\S+_test\.go:\d+: `)
	raceHead   = "WARNING: DATA RACE\n"
	raceFoot   = "==================\n"
)

// deviceAccess is the beginning of the function of package check that represents an access of the device.
const deviceAccess = "verbena/ib/check.(*trackedRequest).beginOwnership."

// endOfLoan lists the functions that write to completions that a consumer may no longer use.
var endOfLoan = []string{"verbena/ib/completion.invalidate(", "verbena/ib/check.overwriteCompletions("}

// findEvidence returns the part of the output of a run with a fault that proves a fault of the consumer, or nil.
func findEvidence(text string, p listedPackage) ([]byte, error) {
	if _, v, ok := strings.Cut(text, strict.FaultLine); ok {
		return []byte(strict.FaultLine + v), fmt.Errorf("the consumer breaks the contract")
	}
	ended := len(text)
	if i := strings.Index(text, expire.EndLine); i >= 0 {
		ended = i
	}
	for at := 0; ; {
		i := strings.Index(text[at:], raceHead)
		if i < 0 {
			break
		}
		report, _, _ := strings.Cut(text[at+i:], raceFoot)
		if what := consumerRace(report, at+i < ended && !testOutput.MatchString(text[:at+i]), p); what != "" {
			return []byte(report), fmt.Errorf("%s", what)
		}
		at += i + len(raceHead)
	}
	if i := strings.Index(text, "\npanic: "); i >= 0 && i < ended {
		failed := testOutput.MatchString(text[:i]) || strings.Contains(text[:i], strict.AddFailedLine)
		if isConsumerPanic(text[i+1:], failed, p) {
			return []byte(text[i+1:]), fmt.Errorf("the consumer panics")
		}
	}
	return nil, nil
}

// consumerRace returns the fault that a report of the race detector proves, or "". passing reports whether no test
// had reported a failure.
func consumerRace(report string, passing bool, p listedPackage) string {
	accesses := strings.Split(report, "\n\n")
	if len(accesses) < 2 {
		return ""
	}
	device, invalid, consumer := 0, 0, 0
	for _, a := range accesses[:2] {
		switch {
		case strings.Contains(a, deviceAccess):
			device++
		case slices.ContainsFunc(endOfLoan, func(f string) bool { return strings.Contains(a, f) }):
			invalid++
		case isConsumerAccess(a, p):
			consumer++
		}
	}
	switch {
	case device == 1 && consumer == 1:
		return "the consumer uses memory of an outstanding work request"
	case invalid == 1 && consumer == 1:
		return "the consumer uses a completion after the function that received it, or while another poll overwrites it"
	case consumer == 2 && passing:
		return "the consumer has a data race"
	}
	return ""
}

// stackLine matches the position of a function in a stack.
var stackLine = regexp.MustCompile(`(?m)^\s+(/\S+\.go):\d+`)

// isConsumerAccess reports whether the innermost function of an access, outside of the standard library, belongs to the
// consumer, but not to its test.
func isConsumerAccess(access string, p listedPackage) bool {
	for _, m := range stackLine.FindAllStringSubmatch(access, -1) {
		if strings.HasPrefix(m[1], systemFolder()) {
			continue
		}
		return isConsumerFile(m[1], p)
	}
	return false
}

// isConsumerFile reports whether a file belongs to the consumer, but not to its test.
func isConsumerFile(file string, p listedPackage) bool {
	return filepath.Dir(file) == p.Dir && !strings.HasSuffix(file, "_test.go")
}

// systemFolder returns the folder of the standard library's sources, in this command's own build.
func systemFolder() string { return strict.SystemFolder() }

// mistakePanics lists messages of panics that are always a mistake.
var mistakePanics = []string{"runtime error", "close of closed channel", "close of nil channel",
	"send on closed channel", "sync: ", "interface conversion"}

// nilDereference is the message of a panic that a nil argument may cause.
const nilDereference = "nil pointer dereference"

// isConsumerPanic reports whether a panic is a fault of the consumer. A test that has failed, or that does not know of
// a failed Add, may call the consumer in a wrong way, so the stack then must not contain a function of the test. A nil
// dereference in a function that the test calls directly does not count: the failure may have prevented the creation of
// an object, and the test passes nil.
func isConsumerPanic(text string, failed bool, p listedPackage) bool {
	head, stack, ok := strings.Cut(text, "[running]:\n")
	if !ok || !slices.ContainsFunc(mistakePanics, func(m string) bool { return strings.Contains(head, m) }) {
		return false // a consumer may panic with a message if it does not tolerate a failure
	}
	stack, _, _ = strings.Cut(stack, "\n\n")
	frames := 0 // number of the consumer's frames
	for _, m := range stackLine.FindAllStringSubmatch(stack, -1) {
		switch file := m[1]; {
		case strings.HasPrefix(file, systemFolder()):
		case isConsumerFile(file, p):
			frames++
		case frames == 0:
			return false // the test or the midlayer panics
		case strings.HasSuffix(file, "_test.go"):
			return !failed && (frames > 1 || !strings.Contains(head, nilDereference))
		default:
			return true // called by the midlayer
		}
	}
	return frames > 0
}
