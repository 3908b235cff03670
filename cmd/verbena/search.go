package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib/weak"
	"verbena/service/web"
)

// The search runs the program under other processes of this command. Each has its own process group, which the search
// ends after the run.

const (
	// defaultSearchLog is the file of the smallest failing set of decisions.
	defaultSearchLog = "verbena.decisions"
	// The time limit of a run is at least minSearchTimeout, and slowSearchFactor times the time without weak mode.
	minSearchTimeout = 10 * time.Second
	slowSearchFactor = 10
	// finalRuns is the number of the runs that measure how often the smallest set fails.
	finalRuns = 5
	// carefulRuns is the number of runs that confirm a set if the smallest set does not fail in all final runs.
	carefulRuns = 5
	// endSearchGrace limits the time in which a run ends after its program was killed.
	endSearchGrace = 10 * time.Second
	// shownOutput is the number of bytes at the end of the output of a run that the search prints.
	shownOutput = 4 << 10
	// maxShown limits the number of decisions that the report describes.
	maxShown = 20
)

// The exit codes of a search. If it finds a failure, it returns the exit code of the failed run.
const (
	exitTimeLimit   = 124 // as of timeout(1)
	exitInterrupted = 130
)

// failure identifies a kind of failed run. The zero failure is success.
type failure struct {
	code     int
	timedOut bool
}

func (f failure) String() string {
	switch {
	case f.timedOut:
		return "takes longer than the time limit"
	case f.code > 128:
		return fmt.Sprintf("ends by signal %d (exit code %d)", f.code-128, f.code)
	case f.code == sanitizeExitCode:
		return fmt.Sprintf("exit code %d, as after a report of a sanitizer", f.code)
	}
	return fmt.Sprintf("exit code %d", f.code)
}

// exitCode returns the exit code for a search that has found the failure.
func (f failure) exitCode() exitCodeError {
	if f.timedOut {
		return exitTimeLimit
	}
	return exitCodeError(f.code)
}

// searchRun is the result of a run.
type searchRun struct {
	failure failure
	took    time.Duration
	output  string // the end of the output
	log     *weak.Log
}

// weakSearch searches a failing seed of a program, and the smallest set of decisions that makes it fail.
type weakSearch struct {
	ctx     context.Context
	out     io.Writer
	seeds   int
	confirm int // number of runs in which a set must fail
	// run runs the program without weak mode if both arguments are nil, with a seed, or with decisions.
	run func(seed *uint64, decisions []weak.Decision) (*searchRun, error)
	to  io.Writer // destination of the smallest set

	want failure // the failure to preserve
}

var errNotReplayed = errors.New("the failure is not repeatable")

// searchWeak executes --weak=search:N.
func (r *runCmd) searchWeak(argv []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, r.WeakTotal)
	defer cancel()
	if _, err := weak.ParseForPrograms(r.WeakChoices); err != nil {
		return fmt.Errorf("run: --weak-choices: %w", err)
	}
	if r.WeakConfirm < 1 {
		return fmt.Errorf("run: --weak-confirm=%d: want at least 1", r.WeakConfirm)
	}
	name := r.WeakLog
	if name == "" {
		name = defaultSearchLog
	}
	to, err := openResultFile(name)
	if err != nil {
		return fmt.Errorf("run --weak-log: %w", err)
	}
	dir, err := os.MkdirTemp("", "verbena-search-")
	if err != nil {
		to.abandon()
		return fmt.Errorf("search: %w", err)
	}
	defer os.RemoveAll(dir)
	c := &searchCommand{ctx: ctx, dir: dir, timeout: r.WeakTimeout, argv: argv, choices: r.WeakChoices,
		flags: withoutSearchFlags(os.Args[1 : len(os.Args)-len(r.Program)])}
	if c.self, err = os.Executable(); err != nil {
		to.abandon()
		return fmt.Errorf("search: %w", err)
	}
	text := &bytes.Buffer{}
	s := &weakSearch{ctx: ctx, out: os.Stderr, seeds: r.Weak.search, confirm: r.WeakConfirm, run: c.run, to: text}
	kind, err := s.runKind()
	if err == nil {
		if c.timeout == 0 {
			c.timeout = max(minSearchTimeout, slowSearchFactor*kind.took)
		}
		err = s.search()
	}
	if text.Len() == 0 {
		to.abandon()
	} else if werr := errors.Join(to.clear(), writeAll(to, text.Bytes()), to.Close()); werr != nil {
		return fmt.Errorf("search: %w", werr)
	} else {
		fmt.Fprintf(s.out, "\nverbena: search: to repeat:\n  verbena %s--replay=%s -- %s\n", joinArgs(c.flags), web.QuoteWord(name),
			strings.TrimSpace(joinArgs(argv)))
	}
	var code exitCodeError
	switch {
	case ctx.Err() == context.Canceled:
		fmt.Fprintln(s.out, "verbena: search: interrupted")
		return exitCodeError(exitInterrupted)
	case ctx.Err() != nil:
		fmt.Fprintf(s.out, "verbena: search: ended after %v (--weak-total)\n", r.WeakTotal)
		return s.want.exitCode()
	case errors.As(err, &code):
		return code
	}
	return err
}

func writeAll(to io.Writer, b []byte) error {
	_, err := to.Write(b)
	return err
}

// runKind runs the program without weak mode. It must succeed.
func (s *weakSearch) runKind() (*searchRun, error) {
	r, err := s.run(nil, nil)
	if err != nil {
		return nil, err
	}
	if r.failure != (failure{}) {
		s.printOutput(r)
		return nil, fmt.Errorf("search: the program fails without weak mode: %v", r.failure)
	}
	fmt.Fprintf(s.out, "verbena: search: without weak mode the program succeeds, in %v\n", r.took.Round(time.Millisecond))
	return r, nil
}

// search tries the seeds, and reduces the first failure that can be repeated. It returns the exit code.
func (s *weakSearch) search() error {
	var first failure
	var firstSeed uint64
	for i := range s.seeds {
		seed := uint64(i) + 1
		r, err := s.run(&seed, nil)
		if err != nil {
			return err
		}
		if r.failure == (failure{}) {
			s.printProgress(i + 1)
			continue
		}
		fmt.Fprintf(s.out, "verbena: search: seed %d: the program fails: %v\n", seed, r.failure)
		s.printOutput(r)
		if s.want = r.failure; first == (failure{}) {
			first, firstSeed = r.failure, seed
		}
		err = s.reduceRun(r)
		if !errors.Is(err, errNotReplayed) {
			return err
		}
		fmt.Fprintf(s.out, "verbena: search: seed %d: %v; searching on\n", seed, err)
	}
	if first == (failure{}) {
		fmt.Fprintf(s.out, "verbena: search: the program succeeds with %d seeds\n", s.seeds)
		return exitCodeError(0)
	}
	fmt.Fprintf(s.out, "verbena: search: seed %d has failed, but its decisions do not fail again %d times in a row; "+
		"the failure may also depend on the speed of the threads. Try --weak=%d, or --weak-confirm=1\n", firstSeed, s.confirm,
		firstSeed)
	return first.exitCode()
}

// printProgress reports some of the seeds.
func (s *weakSearch) printProgress(n int) {
	const every = 10
	if n%every == 0 && n < s.seeds {
		fmt.Fprintf(s.out, "verbena: search: %d of %d seeds: no failure\n", n, s.seeds)
	}
}

// reduceRun reduces the decisions of a failed run, writes them, and reports them. It returns errNotReplayed if their
// replay does not fail.
func (s *weakSearch) reduceRun(r *searchRun) error {
	if r.log == nil || len(r.log.Decisions) == 0 {
		return fmt.Errorf("%w: no decision was recorded", errNotReplayed)
	}
	if r.log.Missing > 0 {
		fmt.Fprintf(s.out, "verbena: search: %d later decisions were not recorded\n", r.log.Missing)
	}
	all, ok, err := r.log.Decisions, false, error(nil)
	for _, factor := range lengthening {
		if all, ok = lengthen(r.log.Decisions, factor); ok {
			if ok, err = s.fails(all); ok || err != nil {
				break
			}
		}
	}
	if err == nil && !ok {
		err = fmt.Errorf("%w: a replay of its %d decisions succeeds", errNotReplayed, len(all))
	}
	if err != nil {
		return err
	}
	best, err := s.reduceAndMeasure(all)
	if err == nil && best.failed < finalRuns { // some of the smaller sets may have failed by chance
		s.confirm = max(s.confirm, carefulRuns)
		var again measuredSet
		if again, err = s.reduceAndMeasure(all); again.failed > best.failed {
			best = again
		}
	}
	if err != nil && s.ctx.Err() == nil {
		return err
	}
	return s.report(r.log.Seed, best)
}

// measuredSet is a set of decisions, and how often it fails.
type measuredSet struct {
	decisions    []weak.Decision
	failed, runs int        // 0 of 0 if the reduction did not end
	last         *searchRun // the last run that has failed; nil if none
}

// reduceAndMeasure reduces decisions, and lengthens delays of the smallest set as far as it fails in all runs, or as
// often as possible. If the search ends before, it returns the smallest set so far, with an error.
func (s *weakSearch) reduceAndMeasure(all []weak.Decision) (measuredSet, error) {
	set, err := s.reduceDecisions(all)
	best := measuredSet{decisions: set}
	if err != nil || len(set) == 0 {
		return best, err
	}
	for _, factor := range slices.Backward(lengthening) {
		longer, ok := lengthen(set, factor)
		if !ok {
			continue
		}
		m := measuredSet{decisions: longer}
		for m.runs < finalRuns {
			r, err := s.run(nil, longer)
			if err != nil {
				return best, err
			}
			if m.runs++; r.failure == s.want {
				m.failed, m.last = m.failed+1, r
			}
		}
		if best.runs == 0 || m.failed > best.failed {
			best = m
		}
		if best.failed == finalRuns {
			break
		}
	}
	return best, nil
}

// lengthening lists factors for delays. A failure may depend on the speed of the threads. With longer delays, which are
// legal as well, it depends less on it.
var lengthening = []int{1, 4, 16, 64, 1024}

// lengthen returns decisions with delays that are longer by a factor. It returns false if no delay is longer.
func lengthen(all []weak.Decision, factor int) (longer []weak.Decision, ok bool) {
	longer, ok = slices.Clone(all), factor == 1
	for i := range longer {
		if longer[i].Lengthen(factor) {
			ok = true
		}
	}
	return longer, ok
}

// reduceDecisions reduces decisions by the names of the choices, and then one by one. It returns the smallest set also
// with an error.
func (s *weakSearch) reduceDecisions(all []weak.Decision) ([]weak.Decision, error) {
	switch none, err := s.fails(nil); {
	case err != nil:
		return all, err
	case none:
		return nil, nil
	}
	var choices []weak.Choice
	for _, d := range all {
		if !slices.Contains(choices, d.Choice) {
			choices = append(choices, d.Choice)
		}
	}
	of := func(some []weak.Choice) []weak.Decision {
		return slices.DeleteFunc(slices.Clone(all), func(d weak.Decision) bool { return !slices.Contains(some, d.Choice) })
	}
	some, err := reduce(choices, func(c []weak.Choice) (bool, error) { return s.fails(of(c)) })
	set := of(some)
	var names []string
	for _, c := range some {
		names = append(names, weak.Choices[c].Name)
	}
	fmt.Fprintf(s.out, "verbena: search: %d of %d decisions remain, of %s\n", len(set), len(all),
		strings.Join(names, ", "))
	if err != nil {
		return set, err
	}
	return reduce(set, s.fails)
}

// fails reports whether a replay of decisions fails in each of the runs that confirm it, in the same way as before.
func (s *weakSearch) fails(set []weak.Decision) (bool, error) {
	for range s.confirm {
		r, err := s.run(nil, append([]weak.Decision{}, set...)) // not nil
		if err != nil || r.failure != s.want {
			return false, err
		}
	}
	return true, nil
}

// report writes a set, and describes its decisions.
func (s *weakSearch) report(seed uint64, m measuredSet) error {
	set := m.decisions
	if len(set) == 0 {
		fmt.Fprintln(s.out, "verbena: search: the program also fails with a replay without decisions: the failure depends on "+
			"the speed of the device, and not on a choice")
		return s.want.exitCode()
	}
	if m.last != nil && m.last.log != nil {
		for i := range set { // the numbers of the last run
			for _, d := range m.last.log.Decisions {
				if d.Device == set[i].Device && d.Point == set[i].Point {
					set[i].About = d.About
				}
			}
		}
	}
	if err := writeAll(s.to, (&weak.Log{Seed: seed, Decisions: set}).AppendText(nil)); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\nverbena: search: the program fails (%v) with %d %s of the device", s.want, len(set),
		pluralOf(len(set), "decision"))
	if m.runs > 0 {
		fmt.Fprintf(s.out, ", in %d of %d runs", m.failed, m.runs)
	} else {
		fmt.Fprint(s.out, "; the search ended before it found the smallest set")
	}
	fmt.Fprintln(s.out, ":")
	for i := range set[:min(len(set), maxShown)] {
		s.describe(i+1, &set[i], set[:i])
	}
	if n := len(set) - maxShown; n > 0 {
		fmt.Fprintf(s.out, "\n%d further decisions are in the file.\n", n)
	}
	return s.want.exitCode()
}

// describe prints a decision, and the clause of its choice unless an earlier decision has the same.
func (s *weakSearch) describe(n int, d *weak.Decision, earlier []weak.Decision) {
	at, _, _ := strings.Cut(string(d.AppendText(nil)), " = ")
	fmt.Fprintf(s.out, "\n%d. %s\n", n, at)
	if d.About != "" {
		fmt.Fprintf(s.out, "   %s: %s\n", d.About, d.Effect())
	} else {
		fmt.Fprintf(s.out, "   %s\n", d.Effect())
	}
	if slices.ContainsFunc(earlier, func(e weak.Decision) bool { return e.Choice == d.Choice }) {
		return
	}
	row := weak.Choices[d.Choice]
	fmt.Fprintf(s.out, "   permitted by  %s\n   exposes       a program that %s\n", row.Permitted, row.Breaks)
}

// printOutput prints the end of the output of a run.
func (s *weakSearch) printOutput(r *searchRun) {
	for line := range strings.Lines(r.output) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, weakNotice) || strings.HasPrefix(line, replayNotice) {
			continue
		}
		fmt.Fprintf(s.out, "  | %s\n", replaceControlChars(line))
	}
}

// pluralOf returns a noun for a number of items.
func pluralOf(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// searchFlags are the flags of a search. Its runs do not get them. The value is true if the flag needs a value.
var searchFlags = map[string]bool{"--weak": false, "--weak-log": true, "--weak-timeout": true, "--weak-total": true,
	"--weak-confirm": true, "--weak-choices": true}

// withoutSearchFlags returns the arguments before the program without the flags of a search.
func withoutSearchFlags(args []string) (rest []string) {
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")
		valued, found := searchFlags[name]
		switch {
		case !found:
			rest = append(rest, args[i])
		case valued && !joined:
			i++
		}
	}
	return rest
}

// joinArgs returns arguments for a shell, each with a space after it.
func joinArgs(args []string) string {
	var b strings.Builder
	for _, a := range args {
		b.WriteString(web.QuoteWord(a) + " ")
	}
	return b.String()
}

// searchCommand runs the program of a search.
type searchCommand struct {
	ctx     context.Context
	self    string
	flags   []string // arguments before the program, with the name of the command
	choices []string
	argv    []string
	dir     string
	timeout time.Duration // 0: none
}

// run implements weakSearch.run.
func (c *searchCommand) run(seed *uint64, decisions []weak.Decision) (*searchRun, error) {
	log, replay := filepath.Join(c.dir, "log"), filepath.Join(c.dir, "replay")
	args := slices.Clone(c.flags)
	switch {
	case seed != nil:
		args = append(args, "--weak="+strconv.FormatUint(*seed, 10), "--weak-log="+log)
		if len(c.choices) > 0 {
			args = append(args, "--weak-choices="+strings.Join(c.choices, ","))
		}
	case decisions != nil:
		text := (&weak.Log{Decisions: decisions}).AppendText(nil)
		if err := os.WriteFile(replay, text, 0o600); err != nil {
			return nil, fmt.Errorf("search: %w", err)
		}
		args = append(args, "--replay="+replay, "--weak-log="+log)
	}
	os.Remove(log)
	output := &tailWriter{most: shownOutput}
	cmd := exec.Command(c.self, append(append(args, "--"), c.argv...)...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = time.Second // processes that have left the group may keep the output open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	timedOut := c.await(cmd.Process.Pid)
	took := time.Since(began)
	killGroup(cmd.Process.Pid, cmd.Process.Pid)
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	if err := c.ctx.Err(); err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	r := &searchRun{took: took, output: output.String(), failure: failure{timedOut: timedOut}}
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case timedOut:
	case status.Signaled():
		return nil, fmt.Errorf("search: signal %v has ended a run", status.Signal())
	case status.ExitStatus() == exitFailure:
		return nil, fmt.Errorf("search: a run has failed:\n%s", r.output)
	default:
		r.failure.code = status.ExitStatus()
	}
	if f, err := os.Open(log); err == nil {
		defer f.Close()
		if r.log, err = weak.ReadLog(f); err != nil {
			return nil, fmt.Errorf("search: %w", err)
		}
	}
	return r, nil
}

// await waits for the end of a run, and kills its program after the time limit or an interruption. The zombie remains.
func (c *searchCommand) await(pid int) (timedOut bool) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}()
	var limit <-chan time.Time
	if c.timeout > 0 {
		timer := time.NewTimer(c.timeout)
		defer timer.Stop()
		limit = timer.C
	}
	select {
	case <-ended:
		return false
	case <-limit:
		timedOut = true
	case <-c.ctx.Done():
	}
	grace := time.NewTimer(endSearchGrace)
	defer grace.Stop()
	for {
		killGroup(pid, pid) // the launcher then writes the log
		select {
		case <-ended:
			return timedOut
		case <-grace.C:
			_ = unix.Kill(pid, unix.SIGKILL)
			<-ended
			return timedOut
		case <-time.After(killAgain):
		}
	}
}

// killAgain is the period in which a group is killed. Its processes may start others.
const killAgain = 20 * time.Millisecond

// killGroup kills the processes of a process group, except one.
func killGroup(group, except int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == except {
			continue
		}
		if of, err := unix.Getpgid(pid); err != nil || of != group {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if of, err := unix.Getpgid(pid); err == nil && of == group { // the number was not reused
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
}

// tailWriter keeps the last bytes of an output.
type tailWriter struct {
	mu   sync.Mutex
	most int
	b    []byte
	cut  bool
}

// Write implements io.Writer.
func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-t.most):]...)
	if n := len(t.b) - t.most; n > 0 || len(p) > t.most {
		t.b, t.cut = append(t.b[:0], t.b[max(n, 0):]...), true
	}
	return len(p), nil
}

// String returns the last bytes, from the beginning of a line.
func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.b
	if t.cut {
		_, b, _ = bytes.Cut(b, []byte{'\n'})
		return "[...]\n" + string(b)
	}
	return string(b)
}
