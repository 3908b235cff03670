// Command mutants introduces one defect at a time into the code, and checks that the unit tests of the package
// detect the defect:
//
//	bin/mutants [flags]             mutants of the list
//	bin/mutants -drivers [flags]    mutants derived from the source of the drivers
//	bin/mutants -generated [flags]  mutants derived from the packages that isolate users
//
// All forms accept -run REGEXP, -sample N with -seed S, -budget DURATION, -limit DURATION, -parallel N and -list.
// -e2e REGEXP has an effect with -drivers and -generated.
//
// An overlay of the go command replaces the original file by the file with the defect. The working tree does not
// change. A mutant is detected if a test fails. A mutant is not detected if a test hangs or if the code does not
// compile. The source must contain the place of each mutant exactly once. The exit code is 1 if a mutant is not
// detected or if none was, and 2 for wrong usage.
//
// The mutants come from a list (mutants.go). With -generated the command derives the mutants from the source of the
// packages that isolate users from each other (generate.go). It places a mutant at each check of an identity, each
// comparison of users, each limit and each refusal. A generated mutant that does not compile is not counted.
// unseen.txt lists the mutants that no unit test can detect, with the reasons. The command omits these mutants,
// unless -e2e is set.
// With -drivers the command derives defects of all kinds from the source of the drivers (anywhere.go). The contract
// suite with its reference model, or else the driver's own tests, must detect these defects. For these defects, a
// test that hangs counts as a detection. unseen-drivers.txt lists the mutants that no test can detect.
// One binary per package contains all these mutants (combined.go). The command first records the mutants whose place
// each test executes. For a mutant it runs only the tests that execute its place, the fastest first (suite.go). The
// tests without -short run last, and with -short not at all.
//
// With -e2e, the matching end-to-end tests run as root with each mutant that the unit tests do not detect.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// listedMutant is a mutant of mutants.go. It replaces the text from in a file by the text to.
type listedMutant struct {
	name string
	file string // the tests of the package in the file's folder must detect the mutant
	from string
	to   string
}

// apply returns the source with the defect.
func (m *listedMutant) apply(source string) (string, error) {
	if n := strings.Count(source, m.from); n != 1 || m.from == m.to {
		return "", fmt.Errorf("%s: got %d places of %q, want 1", m.file, n, m.from)
	}
	return strings.Replace(source, m.from, m.to, 1), nil
}

// mutant is a listed or generated defect.
type mutant struct {
	listedMutant
	// edit is the change of a generated mutant, and nil for a listed one. The replaced text may occur several times.
	edit *sourceEdit
	// tests lists tests that run in this order until one detects the mutant. If tests is nil, the tests of the
	// mutant's package run.
	tests []testSelection
}

// testSelection selects the tests that must detect a mutant.
type testSelection struct {
	pkg   string
	run   string // pattern of the names of the tests; "" selects all
	short bool   // run the tests with -short
}

func (m *mutant) testSuites() []testSelection {
	if m.tests != nil {
		return m.tests
	}
	return []testSelection{{pkg: filepath.Dir(m.file)}}
}

// String returns the name of the mutant with its file. The name of a generated mutant begins with the file.
func (m *mutant) String() string {
	if m.edit != nil {
		return m.name
	}
	return m.file + ": " + m.name
}

// generateDriverMutants derives the mutants of the drivers. root is the directory of the module.
func generateDriverMutants(root string) (all []mutant, err error) {
	for _, d := range driverPackages {
		of, err := generateMutants(root, []string{d.dir}, (*generator).collectAnywhere)
		if err != nil {
			return nil, err
		}
		for _, m := range of {
			m.tests = d.tests
			all = append(all, m)
		}
	}
	return all, nil
}

// describe returns the name of the mutant and its change, with the line of a generated one.
func (m *mutant) describe() string {
	d := fmt.Sprintf("%s\t%s", m, strings.Join(strings.Fields(m.from), " "))
	if m.edit == nil {
		return d
	}
	source, err := os.ReadFile(m.file)
	if err != nil {
		return d
	}
	line := bytes.Count(source[:m.edit.from], []byte("\n"))
	text := strings.Split(string(source), "\n")[line]
	return fmt.Sprintf("%s\tline %d\t%q instead of %q\t%s", d, line+1, m.edit.text,
		source[m.edit.from:m.edit.to], strings.TrimSpace(text))
}

func main() {
	var r runner
	generated := flag.Bool("generated", false, "derive the mutants from the source")
	ofDrivers := flag.Bool("drivers", false, "derive the mutants from the source of the drivers, for the contract suite")
	list := flag.Bool("list", false, "print the mutants, and do not run them")
	run := flag.String("run", ".", "select the mutants whose name or file matches this `pattern`")
	sample := flag.Int("sample", 0, "run this `number` of mutants, chosen at random (0 means all)")
	seed := flag.Uint64("seed", 1, "`seed` of the random choice of -sample")
	budget := flag.Duration("budget", 0, "start no mutant after this `duration` (0 means no limit)")
	flag.DurationVar(&r.limit, "limit", 90*time.Second, "maximum `duration` of the tests of one mutant")
	flag.StringVar(&r.e2e, "e2e", "", "`pattern` of the end-to-end tests for mutants that unit tests do not detect")
	flag.BoolVar(&r.short, "short", false, "with -drivers, run only the tests with -short")
	tests := flag.String("tests", "", "with -drivers, run only the tests with -short that match this `pattern`")
	parallel := flag.Int("parallel", 2, "`number` of mutants, of different packages, that run concurrently")
	flag.Parse()
	re, err := regexp.Compile(*run)
	if err != nil {
		printUsage(err)
	}
	all := make([]mutant, len(mutants))
	for i := range mutants {
		all[i].listedMutant = mutants[i]
	}
	unseen := map[string]string{}
	switch {
	case *ofDrivers:
		all = nil
		if all, err = generateDriverMutants("."); err != nil {
			printUsage(err)
		}
		if unseen, err = readUndetectableMutants("tools/mutants/unseen-drivers.txt", all); err != nil {
			printUsage(err)
		}
	case *generated:
		if all, err = generateMutants(".", guardedPackages, (*generator).collectChecks); err != nil {
			printUsage(err)
		}
		if unseen, err = readUndetectableMutants("tools/mutants/unseen.txt", all); err != nil {
			printUsage(err)
		}
	}
	all = selectMutants(all, re, *sample, *seed)
	if *tests != "" {
		r.short = true
		restrictTests(all, *tests)
	}
	if *list {
		for i := range all {
			fmt.Println(all[i].describe())
		}
		fmt.Printf("%d mutants\n", len(all))
		return
	}
	r.healthy = map[testSelection]*baselineResult{}
	if err := r.run(all, unseen, *parallel, *budget); err != nil {
		printUsage(err)
	}
	fmt.Printf("%d mutants, %d not detected", r.detected+r.missed, r.missed)
	if *generated || *ofDrivers {
		fmt.Printf(", %d in unseen.txt, %d that do not compile, %d not started", r.unseen, r.invalid, r.left)
	}
	fmt.Println()
	if r.missed > 0 || r.detected == 0 {
		os.Exit(1)
	}
}

// restrictTests makes the mutants run only the tests with -short that match a pattern.
func restrictTests(all []mutant, pattern string) {
	for i := range all {
		m := &all[i]
		m.tests = slices.Clone(m.tests)
		for j := range m.tests {
			if m.tests[j].short {
				m.tests[j].run = pattern
			}
		}
	}
}

func printUsage(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(2)
}

// selectMutants returns the matching mutants in the order of the list. With a sample size n, it returns n of them,
// chosen at random.
func selectMutants(all []mutant, re *regexp.Regexp, n int, seed uint64) []mutant {
	var list []mutant
	for _, m := range all {
		if re.MatchString(m.name) || re.MatchString(m.file) {
			list = append(list, m)
		}
	}
	if n == 0 || n >= len(list) {
		return list
	}
	chosen := rand.New(rand.NewPCG(seed, 0)).Perm(len(list))[:n]
	slices.Sort(chosen)
	few := make([]mutant, n)
	for i, k := range chosen {
		few[i] = list[k]
	}
	return few
}

// readUndetectableMutants reads the mutants that no test can detect. Each line of the file has a name and a reason. The
// reason may begin with the text that the mutant changes, in backquotes: a change of the source may give the name to
// another mutant. Each name must be the name of a mutant.
func readUndetectableMutants(path string, all []mutant) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sources := map[string]string{} // the changed texts of the mutants by their names
	for i := range all {
		sources[all[i].name] = strings.Join(strings.Fields(all[i].from), " ")
	}
	reasons := map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		source, exists := sources[name]
		quoted, rest, isQuoted := strings.Cut(strings.TrimPrefix(reason, "`"), "`")
		if isQuoted {
			reason = rest
		}
		switch reason = strings.TrimSpace(reason); {
		case reason == "":
			return nil, fmt.Errorf("%s: mutant %s has no reason", path, name)
		case !exists:
			return nil, fmt.Errorf("%s: mutant %s does not exist", path, name)
		case isQuoted && quoted != source:
			return nil, fmt.Errorf("%s: mutant %s changes %q, want %q", path, name, source, quoted)
		case reasons[name] != "":
			return nil, fmt.Errorf("%s: mutant %s is listed twice", path, name)
		}
		reasons[name] = reason
	}
	return reasons, nil
}

// runner runs several mutants concurrently. The tests of one package do not run concurrently, because they may use
// the same resources.
type runner struct {
	limit time.Duration
	e2e   string
	short bool

	mu      sync.Mutex
	healthy map[testSelection]*baselineResult
	e2eMu   sync.Mutex

	detected, missed, unseen, invalid, left int
}

// baselineResult holds the result of a package's tests without a mutant.
type baselineResult struct {
	mu   sync.Mutex // locked while the tests of the package run
	once sync.Once
	err  error
	took time.Duration
}

func (r *runner) run(all []mutant, unseen map[string]string, parallel int, budget time.Duration) error {
	began := time.Now()
	var chosen []*mutant
	for i := range all {
		if unseen[all[i].name] != "" && r.e2e == "" {
			r.unseen++
		} else {
			chosen = append(chosen, &all[i])
		}
	}
	combined, rest, err := combine(chosen)
	if err != nil {
		return err
	}
	suites, err := buildSuites(combined, r.limit, r.short)
	if err != nil {
		return err
	}
	defer os.RemoveAll(suites.dir)
	var jobs []func()
	for _, m := range combined.mutants {
		jobs = append(jobs, func() { r.runMutant(m.mutant, func() (string, error) { return suites.run(m) }) })
	}
	for _, m := range rest {
		jobs = append(jobs, func() { r.runMutant(m, func() (string, error) { return r.runSuites(m) }) })
	}
	queue := make(chan func())
	var wg sync.WaitGroup
	for range max(parallel, 1) {
		wg.Go(func() {
			for job := range queue {
				job()
			}
		})
	}
	for _, job := range jobs {
		if budget != 0 && time.Since(began) > budget {
			r.left++
		} else {
			queue <- job
		}
	}
	close(queue)
	wg.Wait()
	return nil
}

// runSuites builds the tests with one mutant and runs them until one detects it.
func (r *runner) runSuites(m *mutant) (how string, err error) {
	err = errPass
	for _, s := range m.testSuites() {
		if r.short && !s.short {
			continue
		}
		if how, err = m.runTests(s, r.runBaseline(s), r.limit); !errors.Is(err, errPass) {
			break
		}
	}
	return how, err
}

// runMutant runs the tests of a mutant and prints the result.
func (r *runner) runMutant(m *mutant, test func() (how string, err error)) {
	began := time.Now()
	how, err := test()
	if m.edit != nil && r.e2e != "" && err != nil && !errors.Is(err, errBuild) {
		r.e2eMu.Lock()
		how, err = m.runEndToEndTests(r.e2e, err)
		r.e2eMu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.detected++
	case m.edit != nil && errors.Is(err, errBuild):
		r.invalid++
		how = "does not compile"
	default:
		r.missed++
		how = "NOT DETECTED: " + err.Error()
	}
	fmt.Printf("%-70s %5.1fs  %s\n", m, time.Since(began).Seconds(), how)
}

// runBaseline runs the tests once without a mutant.
func (r *runner) runBaseline(suite testSelection) *baselineResult {
	r.mu.Lock()
	h := r.healthy[suite]
	if h == nil {
		h = &baselineResult{}
		r.healthy[suite] = h
	}
	r.mu.Unlock()
	h.once.Do(func() {
		for range 2 { // on a busy machine a test fails occasionally, so failing tests run a second time
			began := time.Now()
			var out string
			if out, h.err = suite.runSelectedTests(nil, r.limit, &h.mu); h.err == nil {
				h.took = time.Since(began)
				break
			}
			h.err = fmt.Errorf("%s: %w", findFailedTest(out), h.err)
		}
	})
	return h
}

// runTests runs the tests with a mutant, and returns the name of the test that detected the mutant.
func (m *mutant) runTests(s testSelection, h *baselineResult, limit time.Duration) (how string, err error) {
	if h.err != nil {
		return "", fmt.Errorf("the tests of %s fail without a mutant: %w", s.pkg, h.err)
	}
	broken, err := m.mutatedFiles()
	if err != nil {
		return "", err
	}
	if m.edit != nil && h.took > 0 {
		limit = min(limit, 3*h.took+20*time.Second)
	}
	out, err := s.runSelectedTests(broken, limit, &h.mu)
	switch {
	case err == nil:
		return "", errPass
	case errors.Is(err, errHangs) && m.tests != nil:
		return "does not end", nil
	case errors.Is(err, errHangs), errors.Is(err, errBuild):
		return "", err
	}
	return findFailedTest(out), nil
}

// runEndToEndTests runs end-to-end tests with a mutant that unit tests did not detect. missed is the reason why they
// did not.
func (m *mutant) runEndToEndTests(tests string, missed error) (how string, err error) {
	broken, err := m.mutatedFiles()
	if err != nil {
		return "", err
	}
	var out []byte
	err = withOverlay(broken, func(dir, overlay string) error {
		bin := filepath.Join(dir, "verbena")
		build := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "./cmd/verbena")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", errBuild, b)
		}
		c := exec.Command("go", "test", "-count=1", "-timeout", "10m", "-failfast", "-tags", "e2e", "-run", tests,
			"./test/e2e")
		c.Env = append(os.Environ(), "CI=", "VERBENA="+bin)
		out, err = c.CombinedOutput()
		return err
	})
	switch {
	case err == nil:
		return "", missed
	case errors.Is(err, errBuild):
		return "", err
	}
	return "e2e: " + findFailedTest(string(out)), nil
}

// mutatedFiles returns the contents of the mutant's file with the defect.
func (m *mutant) mutatedFiles() (map[string]string, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return nil, err
	}
	s, err := m.apply(string(source))
	return map[string]string{m.file: s}, err
}

// apply returns the source with the defect.
func (m *mutant) apply(source string) (string, error) {
	if e := m.edit; e != nil {
		if e.to > len(source) || source[e.from:e.to] != m.from {
			return "", fmt.Errorf("%s has changed since the mutants were generated", m.file)
		}
		return source[:e.from] + e.text + source[e.to:], nil
	}
	return m.listedMutant.apply(source)
}

var (
	errPass  = errors.New("no test fails")
	errHangs = errors.New("the tests do not end")
	errBuild = errors.New("the code does not compile")
)

// withOverlay replaces the contents of files by an overlay and calls f. dir is a temporary directory that f may also
// use.
func withOverlay(replace map[string]string, f func(dir, overlay string) error) error {
	dir, err := os.MkdirTemp("", "verbena-mutant-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, content := range replace {
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		overlay.Replace[path] = filepath.Join(dir, filepath.Clean("/"+file)) // the name in errors of the compiler
		if err := os.MkdirAll(filepath.Dir(overlay.Replace[path]), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(overlay.Replace[path], []byte(content), 0o644); err != nil {
			return err
		}
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, list, 0o644); err != nil {
		return err
	}
	// Some tests run their binary as another user, who must be able to read the directory.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	return f(dir, path)
}

// runSelectedTests runs the tests with replaced contents of files. It builds the tests before it locks running.
func (t testSelection) runSelectedTests(replace map[string]string, limit time.Duration,
	running *sync.Mutex) (out string,
	err error) {
	err = withOverlay(replace, func(dir, overlay string) error {
		bin := filepath.Join(dir, "mutant.test")
		if err := t.compile(overlay, bin); err != nil {
			return err
		}
		running.Lock()
		defer running.Unlock()
		var err error
		out, err = t.execute(bin, limit, nil)
		return err
	})
	return out, err
}

// execute runs the tests of a binary until one fails. env and args are added to the environment and the arguments.
func (t testSelection) execute(bin string, limit time.Duration, env []string, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, bin, append(args, "-test.failfast", "-test.run", t.run,
		fmt.Sprintf("-test.short=%v", t.short))...)
	c.Dir = t.pkg
	// Without RAPID_NOFAILFILE, failing property tests would save their cases in the working tree.
	c.Env = append(append(os.Environ(), "CI=", "RAPID_NOFAILFILE=true"), env...)
	// The signal also ends the processes that the tests have started.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	b, err := c.CombinedOutput()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: the tests still run after %v", errHangs, limit)
	}
	return string(b), err
}

// findFailedTest returns the name of the failed test in the output, or of its first failed subtest.
func findFailedTest(out string) string {
	found := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		name, isTest := strings.CutPrefix(line, "--- FAIL: ")
		parent, _, _ := strings.Cut(found, " ")
		switch {
		case isTest && (found == "" || strings.HasPrefix(name, parent+"/")):
			found = name
		case found == "" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "leaktest: ")):
			return line
		}
	}
	return cmp.Or(found, "a failure")
}
