package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"verbena/ib/ibtest/strict"
)

// The search for faults of a driver runs these tests on all processors:
//
//	the suite, without pauses or race detector; and beside it more seeds of the group Model
//	in turn the concurrent groups with both, with seeds from -seed on, when their compilation has ended
//
// The search for faults of a consumer runs:
//
//	verbenavet; it starts before the compilation
//	the tests in checked mode
//	then the tests on weak devices in checked mode, with seeds from -seed on
//	in turn the tests with failures (see fault.go), when their compilation has ended
//
// The time includes the compilation. No run starts after a failure. A line announces the first run of each kind.

const (
	// killDelay limits the wait for the output of a killed command.
	killDelay  = 2 * time.Second
	blockSeeds = 300  // seeds of Model of a run
	firstBlock = 1001 // the first of these; the suite runs those before
	// concurrent matches the groups with several threads.
	concurrent = "/^(Reentrant|Callback|HotPlug|CQ|SRQ|NoSleep|DeviceError|Disassociate|Load|Scale|Model)$"
	// consumerTimeout is the Timeout of checked mode for consumers. Most of their tests take less than a second.
	consumerTimeout = 500 * time.Millisecond
)

// runKind is the kind of a run of a search.
type runKind int

const (
	suiteRun  runKind = iota // the suite of a driver, or the tests of a consumer in checked mode
	modelRun                 // more seeds of the group Model
	pausedRun                // pauses and the race detector
	sourceRun                // verbenavet
	weakRun                  // weak devices
	faultRun                 // failures of the device
	numRunKinds
)

// commandRun is one run of a test binary or of verbenavet.
type commandRun struct {
	kind runKind
	what string
	argv []string
	env  []string // in addition to the environment of this process
}

// timedSearch holds the state of a search.
type timedSearch struct {
	o      *commandOptions
	p      listedPackage
	plan   func(i int) commandRun // returns the run number i
	source *startedRun            // the sourceRun, or nil

	began time.Time

	mu sync.Mutex
	// planLate returns the late run number i, of tests that are compiled while others run, or false: not now. It is nil
	// until their compilation has ended. It may read the fields below, and may not change them.
	planLate  func(i int) (commandRun, bool)
	noLate    bool              // the tests cannot be compiled for late runs
	announced [numRunKinds]bool // the kinds that announce has written
	n         int               // started runs of plan
	late      int               // started runs of planLate
	reuses    bool              // the consumer uses the memory of outstanding requests again, without failures
	passed    [numRunKinds]int  // finished runs
	tests     time.Duration     // duration of the suiteRun
	failed    []error
}

// hangs reports whether a run counts as a hang. The end of the search has interrupted the run. Only runs on weak
// devices count: the consumer waits for an event that a legal device need not raise.
func (s *timedSearch) hangs(k runKind, took time.Duration) bool {
	return k == weakRun && s.passed[suiteRun] > 0 && took > max(s.o.within/3, 5*s.tests)
}

// searchDriver searches for faults of a driver until the time limit. overlay adds the pauses.
func (o *commandOptions) searchDriver(ctx context.Context, out io.Writer, p listedPackage, dir, overlay string) error {
	plain, raced := filepath.Join(dir, "plain.test"), filepath.Join(dir, "raced.test")
	fmt.Fprintf(out, "schedule: %s: compile the tests\n", p.ImportPath)
	switch found, err := compileTests(ctx, p, plain, o.overlay, false); {
	case err != nil:
		return o.orTooShort(ctx, p, err)
	case !found:
		return fmt.Errorf("%s: no tests", p.ImportPath)
	}
	if match, err := o.matchesTests(ctx, plain, p.Dir); err != nil {
		return o.orTooShort(ctx, p, err)
	} else if !match {
		return fmt.Errorf("%s: no test matches %q", p.ImportPath, o.run)
	}
	s := &timedSearch{o: o, p: p, plan: func(i int) commandRun { return o.planDriverRun(i, plain) }}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fmt.Fprintf(out, "schedule: %s: compile the tests with pauses and the race detector\n", p.ImportPath)
	stop := s.compileLate(ctx, func() error {
		_, err := compileTests(ctx, p, raced, overlay, true)
		if err != nil && ctx.Err() == nil {
			s.fail(err)
		}
		return err
	}, func(i int) (commandRun, bool) { return o.planPausedRun(i, raced), true })
	err := s.run(ctx, out)
	cancel()
	stop()
	switch {
	case err != nil:
		return err
	case s.planLate == nil:
		return o.errTooShort(p, "the compilation with the race detector")
	}
	fmt.Fprintf(out, "ok %s: the suite, %d more seeds of Model, and %d runs with pauses and the race detector in %v\n",
		p.ImportPath, s.passed[modelRun]*blockSeeds, s.passed[pausedRun], o.within)
	return nil
}

// compileLate compiles the tests of late runs in the background, and then sets their plan. stop waits for the end of
// the compilation.
func (s *timedSearch) compileLate(ctx context.Context, compile func() error,
	plan func(i int) (commandRun, bool)) (stop func()) {
	var compiled sync.WaitGroup
	compiled.Go(func() {
		err := compile()
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			s.noLate = true
		default:
			s.planLate = plan
		}
	})
	return compiled.Wait
}

// fail ends the search with an error.
func (s *timedSearch) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, err)
}

// matchesTests reports whether a test of the binary matches the pattern of -run, up to its first slash.
func (o *commandOptions) matchesTests(ctx context.Context, binary, dir string) (bool, error) {
	name, _, _ := strings.Cut(o.run, "/")
	c := exec.CommandContext(ctx, binary, "-test.list="+name)
	c.WaitDelay = killDelay
	c.Dir = dir
	text, err := c.CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("list the tests: %w\n%s", err, text)
	}
	return bytes.HasPrefix(text, []byte("Test")) || bytes.Contains(text, []byte("\nTest")), nil
}

// failFast ends a run after the first failed check. Otherwise, after a lost wake-up, one check after another would wait
// for its time limit, and the end of the search would interrupt the run before it reports anything.
const failFast = "-test.failfast"

// planDriverRun returns a run of a driver's suite without pauses. binary is the test binary.
func (o *commandOptions) planDriverRun(i int, binary string) commandRun {
	if i == 0 {
		return commandRun{suiteRun, "the suite", o.testArgv(binary, o.run, failFast), nil}
	}
	first := firstBlock + (i-1)*blockSeeds
	return commandRun{modelRun, fmt.Sprintf("%d seeds of Model from %d", blockSeeds, first), o.testArgv(binary,
		o.run+"/^Model$", failFast, fmt.Sprintf("-ibtest.seed=%d", first), fmt.Sprintf("-ibtest.seeds=%d", blockSeeds)), nil}
}

// planPausedRun returns a run of a driver's suite with pauses. binary is the test binary with the race detector.
func (o *commandOptions) planPausedRun(i int, binary string) commandRun {
	seed := o.first + uint64(i)
	return commandRun{pausedRun, fmt.Sprintf("pauses of seed %d", seed),
		o.testArgv(binary, o.run+concurrent, failFast, "-ibtest.load=1"), o.strictEnv(seed)}
}

// errTooShort returns the error of a search whose time was over before a part had ended.
func (o *commandOptions) errTooShort(p listedPackage, part string) error {
	return fmt.Errorf("%s: %w: %s did not end within %v: use a longer -within", p.ImportPath, errNoVerdict, part, o.within)
}

// findVerbenavet returns the path of verbenavet, or "" if the search leaves it out.
func (o *commandOptions) findVerbenavet() (string, error) {
	if o.noSource {
		return "", nil
	}
	path, err := exec.LookPath("verbenavet")
	if err != nil {
		return "", errors.New("verbenavet is not in PATH: build it in a copy of Verbena's source with " +
			"`go build -C tools -o DIR ./verbenavet`, with DIR in PATH, or leave it out with -no-verbenavet")
	}
	return path, nil
}

// searchConsumer searches for faults of a consumer until the time limit.
func (o *commandOptions) searchConsumer(ctx context.Context, out io.Writer, p listedPackage, dir,
	overlay string) error {
	verbenavet, err := o.findVerbenavet()
	if err != nil {
		return err
	}
	if err := o.checkUsesDrivers(ctx, p); err != nil {
		return o.orTooShort(ctx, p, err)
	}
	s := &timedSearch{o: o, p: p}
	if verbenavet != "" { // it loads the program while the tests are compiled
		t := o.planConsumerRun(0, "", verbenavet)
		s.announce(out, t)
		s.source = s.startRun(t)
		defer s.source.stop()
	}
	fmt.Fprintf(out, "schedule: %s: compile the tests\n", p.ImportPath)
	binary, faults := filepath.Join(dir, "consumer.test"), filepath.Join(dir, "faults.test")
	switch found, err := compileTests(ctx, p, binary, overlay, false); {
	case err != nil:
		return o.orTooShort(ctx, p, err)
	case !found:
		return fmt.Errorf("%s: no tests", p.ImportPath)
	}
	s.plan = func(i int) commandRun { return o.planConsumerRun(i, binary, verbenavet) }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fmt.Fprintf(out, "schedule: %s: compile the tests for runs with failures\n", p.ImportPath)
	stop := s.compileLate(ctx, func() error {
		err := o.compileFaultTests(ctx, p, dir, faults)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(out, "schedule: no runs with failures: %v\n", err)
		}
		return err
	}, func(i int) (commandRun, bool) {
		return o.planFaultRun(i, faults, !s.reuses), s.passed[suiteRun] > 0 || s.isSuiteLate()
	})
	err = s.run(ctx, out)
	cancel()
	stop()
	if err != nil {
		return err
	}
	source := ""
	switch {
	case s.passed[sourceRun] > 0:
		source = "its source, "
	case verbenavet != "":
		return o.errTooShort(p, "verbenavet")
	}
	if s.passed[faultRun] == 0 && !s.noLate {
		return o.errTooShort(p, "the first run with failures")
	}
	fmt.Fprintf(out, "ok %s: %sthe tests in checked mode, %d seeds of the weak devices, and %d runs with failures in %v\n",
		p.ImportPath, source, s.passed[weakRun], s.passed[faultRun], o.within)
	return nil
}

// orTooShort returns err, or errTooShort if the time of the search is over.
func (o *commandOptions) orTooShort(ctx context.Context, p listedPackage, err error) error {
	if ctx.Err() != nil {
		return o.errTooShort(p, "the compilation")
	}
	return err
}

// planConsumerRun returns a run of a consumer's tests. verbenavet is the path of the command, or empty.
func (o *commandOptions) planConsumerRun(i int, binary, verbenavet string) commandRun {
	if verbenavet == "" {
		i++
	}
	switch i {
	case 0:
		return commandRun{sourceRun, "verbenavet", []string{verbenavet, "-space", "-tests", "."}, nil}
	case 1:
		return commandRun{suiteRun, "checked mode", o.testArgv(binary, o.run, "-test.count=3"),
			append(o.strictEnv(0), strict.ReuseEnv+"="+strict.ReuseNote)}
	}
	seed := o.first + uint64(i-2)
	return commandRun{weakRun, fmt.Sprintf("weak devices with seed %d", seed), o.testArgv(binary, o.run),
		o.strictEnv(seed)}
}

// testArgv returns the command line of a test binary.
func (o *commandOptions) testArgv(binary, pattern string, args ...string) []string {
	args = append([]string{binary, "-test.timeout=" + o.timeout}, args...)
	if pattern != "" {
		args = append(args, "-test.run="+pattern)
	}
	if o.skip != "" {
		args = append(args, "-test.skip="+o.skip)
	}
	return append(args, strings.Fields(o.args)...)
}

// run executes the planned runs until the time limit or a failure.
func (s *timedSearch) run(ctx context.Context, out io.Writer) error {
	s.began = time.Now()
	var wg sync.WaitGroup
	for range runtime.NumCPU() + 1 { // runs with pauses or weak devices mostly wait
		wg.Go(func() {
			for ctx.Err() == nil {
				t, ok := s.nextRun()
				if !ok {
					return
				}
				s.announce(out, t)
				s.runCommand(ctx, out, t)
			}
		})
	}
	wg.Wait()
	switch {
	case len(s.failed) > 0:
		return errors.Join(s.failed...)
	case s.passed[suiteRun] == 0:
		return s.o.errTooShort(s.p, "the tests")
	}
	return nil
}

// announce writes a line for the first run of each kind.
func (s *timedSearch) announce(out io.Writer, t commandRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.announced[t.kind] {
		return
	}
	s.announced[t.kind] = true
	what := t.what
	if t.kind == faultRun {
		what = "runs with failures"
	}
	fmt.Fprintf(out, "schedule: %s: %s\n", s.p.ImportPath, what)
}

// lateShare is the ratio of the other runs and the late ones.
const lateShare = 1

// nextRun returns the next run, unless one has failed.
func (s *timedSearch) nextRun() (commandRun, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failed) > 0 {
		return commandRun{}, false
	}
	if s.planLate != nil && lateShare*s.late < s.n {
		if t, ok := s.planLate(s.late); ok {
			s.late++
			return t, true
		}
	}
	s.n++
	return s.plan(s.n - 1), true
}

// isSuiteLate reports whether the tests hang in checked mode. Runs with faults may then find the cause.
func (s *timedSearch) isSuiteLate() bool { return time.Since(s.began) > s.o.within/3 }

// runCommand executes a run until it ends or the search does.
func (s *timedSearch) runCommand(ctx context.Context, out io.Writer, t commandRun) {
	if t.kind == faultRun {
		text, err := s.runFaultCommand(ctx, t)
		s.recordRunEnd(t, runEnd{err: err, output: text}, out)
		return
	}
	if t.kind == sourceRun && s.source != nil {
		s.recordRunEnd(t, s.source.wait(ctx), out)
		return
	}
	e := s.executeRun(ctx, t)
	if s.o.weak != "" && !e.killed && isTestFailure(e) {
		e = s.executeRun(ctx, t)
	}
	s.recordRunEnd(t, e, out)
}

// startedRun is a run in the background.
type startedRun struct {
	cancel context.CancelFunc
	done   chan struct{} // closed at the end
	end    runEnd
}

func (s *timedSearch) startRun(t commandRun) *startedRun {
	ctx, cancel := context.WithCancel(context.Background())
	r := &startedRun{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.end = s.executeRun(ctx, t)
	}()
	return r
}

// wait returns the end of the run. It interrupts the run when ctx ends.
func (r *startedRun) wait(ctx context.Context) runEnd {
	select {
	case <-r.done:
	case <-ctx.Done():
		r.stop()
	}
	return r.end
}

func (r *startedRun) stop() {
	r.cancel()
	<-r.done
}

func (s *timedSearch) executeRun(ctx context.Context, t commandRun) runEnd {
	c := exec.CommandContext(ctx, t.argv[0], t.argv[1:]...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) } // prints the stacks
	c.WaitDelay = killDelay
	c.Dir = s.p.Dir
	c.Env = append(os.Environ(), t.env...)
	start := time.Now()
	text, err := c.CombinedOutput()
	if err == nil && isNoTestsWarning(text) {
		err = fmt.Errorf("no test matches %q", s.o.run)
	}
	return runEnd{err, ctx.Err() != nil, time.Since(start), text}
}

// isTestFailure reports whether a run has ended with a failure of a test, but neither with a violation of the contract
// nor with a panic. A limit of the test may have expired because the processor was busy, so only a failure in two runs
// counts.
func isTestFailure(e runEnd) bool {
	return e.err != nil && bytes.Contains(e.output, []byte("--- FAIL: ")) &&
		!bytes.Contains(e.output, []byte("panic: ")) && !bytes.Contains(e.output, []byte(": rule "))
}

// runEnd is the result of a run.
type runEnd struct {
	err    error
	killed bool // the end of the search interrupted the run
	took   time.Duration
	output []byte
}

// recordRunEnd records the end of a run.
func (s *timedSearch) recordRunEnd(t commandRun, e runEnd, out io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.err != nil && e.killed && s.hangs(t.kind, e.took):
		out.Write(e.output)
		s.failed = append(s.failed, fmt.Errorf("%s: %s: the tests have not ended after %v", s.p.ImportPath, t.what,
			e.took.Round(time.Second)))
	case e.err != nil && e.killed:
	case e.err != nil:
		out.Write(e.output)
		s.failed = append(s.failed, fmt.Errorf("%s: %s: %w", s.p.ImportPath, t.what, e.err))
	default:
		s.passed[t.kind]++
		if t.kind == suiteRun {
			s.tests = e.took
			s.reuses = bytes.Contains(e.output, []byte(strict.ReusedLine))
		}
	}
}
