package strict

import (
	"fmt"
	"os"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibtest/strict/expire"
	"verbena/ib/weak"
)

const (
	// FaultEnv names the kind of fault: a choice of weak.Faults, or a constant of package expire.
	FaultEnv = expire.Env
	// ReuseEnv turns on check.RuleTargetReused. Its value is ReuseNote or ReuseReport.
	ReuseEnv    = "SCHEDULE_REUSE"
	ReuseNote   = "note"   // a violation is printed, and the program continues
	ReuseReport = "report" // a violation ends the program

	// ReusedLine is the line for a violation of RuleTargetReused with ReuseNote.
	ReusedLine = "schedule: memory of outstanding requests is used again"
	// FaultLine precedes a violation in a run with a fault.
	FaultLine = "schedule: in a run with failures"

	// AddFailedLine is printed when an Add has failed in a run with a fault.
	AddFailedLine = "schedule: an Add has failed"

	failedCall = "failed-call"

	// faultClientTimeout is the longest time of Remove after a failure.
	faultClientTimeout = 3 * time.Second
)

// faultChoice returns the choice with a name.
func faultChoice(name string) (weak.Set, error) {
	switch name {
	case expire.EarlyTimers, expire.LateThreads, expire.LostWakeups, expire.LongLimits, expire.NoFailure, "":
		return 0, nil
	}
	for _, r := range weak.Choices {
		if s := weak.Of(r.Choice); r.Name == name && s&weak.Faults != 0 {
			return s, nil
		}
	}
	return 0, fmt.Errorf("%s: got %q, want a fault", FaultEnv, name)
}

// faultFilter decides which violations count after a failure of the device. A test that fails often makes mistakes
// itself: it leaves objects behind, or closes the consumer while threads use it. Such violations do not count.
type faultFilter struct {
	kind      string
	addFailed atomic.Bool

	mu     sync.Mutex
	failed [][]uintptr // stacks of the calls that the device has failed
}

// ignoredRules lists the rules that consumers may break after a failure. A handler need not poll a failed queue.
var ignoredRules = []check.Rule{check.RuleNotRearmed, check.RuleLeftInCQ, check.RuleArmWithoutPoll,
	check.RuleCallbackReturns}

// lateRules lists the rules that a function of a timer breaks when it runs too late.
var lateRules = []check.Rule{check.RuleUseAfterRemove, check.RuleUseAfterUnregister, check.RuleUseAfterDestroy}

// recordFailedAdd records that an Add has failed.
func (f *faultFilter) recordFailedAdd() {
	if !f.addFailed.Swap(true) {
		//verbena:allow nosleep the caller of a test reads the standard error
		fmt.Fprintln(os.Stderr, AddFailedLine)
	}
}

// recordCall records a call that fails.
func (f *faultFilter) recordCall() {
	var pcs [64]uintptr
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, pcs[:runtime.Callers(2, pcs[:])])
}

// counts reports whether a violation is a fault of the consumer.
func (f *faultFilter) counts(v check.Violation) bool {
	switch {
	case v.Rule == check.RuleTargetReused || v.Rule == check.RuleTargetUnflushed || v.Rule == check.RuleEndlessFlush:
		return !expire.HasEnded() && !expire.HasFailedHere() && isConsumerViolation(v.Stacks)
	case f.addFailed.Load() && v.Rule != check.RuleLeftBehind && isCalledByTest(v.Stacks):
		return false // the test does not know that the Add has failed
	case slices.Contains(lateRules, v.Rule) && f.kind == expire.EarlyTimers:
		return len(v.Stacks) > 0 && calledByMidlayer(v.Stacks[0].Trace)
	case f.kind == expire.EarlyTimers || slices.Contains(ignoredRules, v.Rule):
		return false
	case (f.kind == expire.LateThreads || f.kind == expire.LostWakeups) && isLate(v):
		return false // the threads are slow
	case v.Rule == check.RuleClientReturns:
		return strings.HasPrefix(v.What, "Remove") && len(v.Stacks) > 0 && calledByMidlayer(v.Stacks[0].Trace) &&
			!isUsedByTest()
	case v.Rule == check.RuleLeftBehind:
		return f.isLeak(v.Stacks, expire.HasFailed()) || f.isWrongOrder(v.Stacks)
	case expire.HasFailed() && !isIndependentOfTests(v.Stacks):
		return false
	case v.Rule == check.RuleSRQUndrained && f.kind == failedCall:
		return false // a queue pair that was never connected has taken no receives
	}
	return isConsumerViolation(v.Stacks)
}

// isLate reports whether a violation consists in a long duration. Checked mode cannot tell a held thread from one that
// waits for an event.
func isLate(v check.Violation) bool {
	return v.Rule == check.RuleClientReturns || strings.Contains(v.What, "has waited for long") ||
		strings.Contains(v.What, "has run for")
}

// isIndependentOfTests reports whether the midlayer has called the consumer, and no function of a test is in a stack.
func isIndependentOfTests(stacks []check.Stack) bool {
	for _, s := range stacks {
		if _, byTest := consumerFrames(s.Trace); byTest && !strings.HasSuffix(s.Title, madeAt) {
			return false
		}
	}
	return len(stacks) > 0 && calledByMidlayer(stacks[0].Trace)
}

// madeAt is the end of the title of a stack with the creation of an object.
const madeAt = "made at"

// isCalledByTest reports whether a test has called the function of the consumer in the first stack.
func isCalledByTest(stacks []check.Stack) bool {
	if len(stacks) == 0 {
		return false
	}
	_, byTest := consumerFrames(stacks[0].Trace)
	return byTest
}

// isLeak reports whether a consumer has left objects behind: in its Add or Remove, or in the function in which a call
// has failed. stacks are those of a violation of RuleLeftBehind. After a failure of the test, only objects that the
// midlayer has caused the consumer to create count.
func (f *faultFilter) isLeak(stacks []check.Stack, testFailed bool) bool {
	if len(stacks) < 2 {
		return false
	}
	for _, s := range stacks[1:] { // the places of creation
		if strings.HasSuffix(s.Title, check.RefusedAt) {
			continue
		}
		if !isConsumerStack(s.Trace) || !calledByMidlayer(s.Trace) && (testFailed || !f.hasFailedIn(s.Trace)) {
			return false
		}
	}
	return true
}

// isWrongOrder reports whether one call of the test has created objects and destroyed them in a wrong order after the
// device had failed a call. Only objects with a failed destruction are left. Such a leak counts after a failure of
// the test: the test need not destroy objects that the consumer destroys itself.
func (f *faultFilter) isWrongOrder(stacks []check.Stack) bool {
	left := map[stackFrame]bool{} // calls of the test; the value is true if no destruction of an object has failed
	for i := 1; i < len(stacks); i++ {
		made := stacks[i].Trace
		call, ok := testCall(made)
		if i+1 == len(stacks) || !strings.HasSuffix(stacks[i+1].Title, check.RefusedAt) {
			left[call] = true
			continue
		}
		i++
		refused := stacks[i].Trace
		again, same := testCall(refused)
		inside := ok && same && again == call && isConsumerStack(made) && isConsumerStack(refused) && f.hasFailedIn(made)
		left[call] = left[call] || !inside || strings.Contains(refused, "Context(")
	}
	for _, other := range left {
		if !other {
			return true
		}
	}
	return false
}

// testCall returns the innermost frame of a test in a stack: the call of the consumer.
func testCall(trace string) (call stackFrame, ok bool) {
	frames := parseFrames(trace)
	at := slices.IndexFunc(frames, isTestFrame)
	if at < 0 {
		return stackFrame{}, false
	}
	return frames[at], true
}

// hasFailedIn reports whether the device has failed a call that the same call of the test has made.
func (f *faultFilter) hasFailedIn(trace string) bool {
	call, ok := testCall(trace)
	if !ok {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.failed {
		if failed, ok := testCall(f.trace(i)); ok && failed == call {
			return true
		}
	}
	return false
}

// trace returns the stack of failed call i in the format of runtime.Stack.
//
//verbena:held mu
func (f *faultFilter) trace(i int) string {
	var b strings.Builder
	for all, more := runtime.CallersFrames(f.failed[i]), true; more; {
		var x runtime.Frame
		x, more = all.Next()
		fmt.Fprintf(&b, "%s(...)\n\t%s:%d\n", x.Function, x.File, x.Line)
	}
	return b.String()
}

// stackFrame is a function with its position.
type stackFrame struct{ function, file string }

// parseFrames parses a stack in the format of runtime.Stack.
func parseFrames(trace string) (frames []stackFrame) {
	lines := strings.Split(strings.TrimSpace(trace), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		file, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
		frames = append(frames, stackFrame{strings.TrimPrefix(strings.TrimSpace(lines[i]), "created by "), file})
	}
	return frames
}

func isTestFrame(f stackFrame) bool {
	file, _, _ := strings.Cut(path.Base(f.file), ":")
	return strings.HasSuffix(file, "_test.go")
}

// midlayerPaths lists the packages between a consumer and the checker.
var midlayerPaths = []string{"verbena/ib.", "verbena/ib/check.", "verbena/ib/weak.", "verbena/ib/completion.",
	"verbena/ib/ibtest/strict.", "verbena/driver/", "verbena/engine.", "verbena/engine/", "verbena/umem."}

func isMidlayerFrame(f stackFrame) bool {
	hasPrefix := func(p string) bool { return strings.HasPrefix(f.function, p) }
	return !isTestFrame(f) && slices.ContainsFunc(midlayerPaths, hasPrefix)
}

// isSystemFrame reports whether a function belongs to the standard library.
func isSystemFrame(f stackFrame) bool {
	return strings.HasPrefix(f.file, systemFolder)
}

// SystemFolder returns the folder of the sources of the standard library.
func SystemFolder() string { return systemFolder }

// systemFolder is the folder of the sources of the standard library.
var systemFolder = func() string {
	pc := reflect.ValueOf(path.Base).Pointer()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	return path.Dir(path.Dir(file)) + "/"
}()

// consumerFrames returns the consumer's frames of a stack: those above the functions of the midlayer and the standard
// library, up to the next function of the midlayer. The result is not nil if a test function is the innermost frame.
// byTest reports whether a function of a test is among the frames.
func consumerFrames(trace string) (frames []stackFrame, byTest bool) {
	all := parseFrames(trace)
	for len(all) > 0 && (isMidlayerFrame(all[0]) || isSystemFrame(all[0])) {
		all = all[1:]
	}
	for _, f := range all {
		if isMidlayerFrame(f) {
			break
		}
		frames = append(frames, f)
		byTest = byTest || isTestFrame(f)
	}
	return frames, byTest
}

// isConsumerStack reports whether a function of a consumer, but not of a test, is the innermost frame of a stack.
func isConsumerStack(trace string) bool {
	frames, _ := consumerFrames(trace)
	return len(frames) > 0 && !isTestFrame(frames[0])
}

// isConsumerViolation reports whether a function of a consumer, but not of a test, is the innermost frame of the first
// stack with functions of either.
func isConsumerViolation(stacks []check.Stack) bool {
	for _, s := range stacks {
		if frames, _ := consumerFrames(s.Trace); len(frames) > 0 {
			return !isTestFrame(frames[0])
		}
	}
	return false
}

// isUsedByTest reports whether a function of a test is active, other than below the Remove of a client. It may use the
// consumer, and Remove may wait for it.
func isUsedByTest() bool {
	buf := make([]byte, 1<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		_, trace, _ := strings.Cut(g, "\n")
		if slices.ContainsFunc(parseFrames(trace), isTestFrame) && !strings.Contains(trace, removeCaller) {
			return true
		}
	}
	return false
}

// removeCaller is the function of package ib that calls Remove.
const removeCaller = "verbena/ib.(*Core).callClientRemove("

// calledByMidlayer reports whether the midlayer, and no function of a test, has called the consumer.
func calledByMidlayer(trace string) bool {
	frames, byTest := consumerFrames(trace)
	return len(frames) > 0 && !byTest
}

// failDevice moves a device to the error state, as a driver does after a fatal error.
func failDevice(h *ib.DeviceHandle) {
	h.DispatchEvent(ib.EventDeviceFatal, 0)
	h.SetError()
}

// reportViolation prints a violation and ends the process, or notes it.
func (f *faultFilter) reportViolation(v check.Violation, reuse string, report func(string)) {
	switch {
	case v.Rule == check.RuleTargetReused && reuse == ReuseNote:
		fmt.Fprintln(os.Stderr, ReusedLine)
	case v.Rule == check.RuleTargetUnflushed && reuse == ReuseNote:
	case f.kind == "":
		report(v.String())
	case f.counts(v):
		report(FaultLine + ": " + v.String())
	}
}
