// Command verdict reads the output of `go test -json` and decides whether the tests have passed:
//
//	go test -json ./... | bin/verdict
//
// The verdict is a failure (exit code 1) if a test has failed, and also in these cases:
//
//   - if no package was tested, or if a test or package has not ended;
//   - if a package has failed without a failed test, or with a panic, a fatal error or a data race;
//   - if a test was skipped with CI=true, and test/skips.txt gives no reason;
//   - if a test that test/pending.txt expects to fail has passed (its line must be removed);
//   - if tests have repeated runs more than four times. Such a test logs a line that contains "repeat:".
//
// verdict reports a failure of a pending test, but the run then still passes. verdict prints the output of failed and
// unfinished tests, and one line for each package. With -v, verdict prints the logs of all tests. The reasons of
// skipped tests follow, each reason once, and with -slowest N the slowest tests. A pipe into verdict hides the exit
// code of go test.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	skips := flag.String("skips", "test/skips.txt", "`file` that lists the expected skips")
	pending := flag.String("pending", "test/pending.txt", "`file` that lists the tests that are known to fail")
	verbose := flag.Bool("v", false, "print the logs of passing tests")
	slow := flag.Int("slowest", 0, "print this `number` of the slowest tests")
	flag.Parse()
	j := resultCollector{verbose: *verbose, ci: os.Getenv("CI") == "true", out: os.Stdout}
	var err error
	if j.skips, err = readList(*skips); err == nil {
		j.pending, err = readList(*pending)
	}
	if err == nil {
		err = j.readEvents(os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "verdict:", err)
		os.Exit(1)
	}
	faults := j.failureReasons()
	if *slow > 0 {
		fmt.Print(j.slowestTests(*slow))
	}
	if len(faults) > 0 {
		fmt.Println(strings.Join(faults, "\n"))
		os.Exit(1)
	}
}

// modulePrefix is the common prefix of package names, which the lists omit.
const modulePrefix = "verbena/"

// testList holds the lines "PACKAGE TEST: reason" of a file, keyed by package and test. TEST also selects the subtests
// of the test, and may end in "*".
type testList map[testID]string

type testID struct{ pkg, test string }

func (n testID) String() string { return n.pkg + " " + n.test }

func readList(path string) (testList, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l, err := parseList(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func parseList(text string) (testList, error) {
	l := testList{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		what, reason, ok := strings.Cut(line, ": ")
		pkg, test, two := strings.Cut(what, " ")
		if n := (testID{pkg, test}); !ok || !two || reason == "" || l[n] != "" {
			return nil, fmt.Errorf("line %q: want PACKAGE TEST: REASON, each test once", line)
		}
		l[testID{pkg, test}] = reason
	}
	return l, nil
}

// findEntry returns the entry of a test, or else the entry of a test that contains the test.
func (l testList) findEntry(n testID) (entry testID, ok bool) {
	for e := range l {
		if e.pkg != n.pkg {
			continue
		}
		prefix, open := strings.CutSuffix(e.test, "*")
		if n.test == e.test || strings.HasPrefix(n.test, e.test+"/") || open && strings.HasPrefix(n.test, prefix) {
			return e, true
		}
	}
	return testID{}, false
}

// testEvent is a line of the output of `go test -json` (go doc test2json).
type testEvent struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64
}

// resultCollector collects the results of a run.
type resultCollector struct {
	skips, pending testList
	ci, verbose    bool
	out            io.Writer

	packages map[string]string // final action of each package, or "" while the package runs
	tests    map[testID]string // final action of each test, or "" while the test runs
	output   map[testID][]string
	repeats  []string
	build    map[string][]string
	crashed  map[string]bool    // packages that ended while a test was running
	skipped  map[string]int     // number of skipped tests for each reason, without the tests in skips
	took     map[testID]float64 // duration of each test in seconds
}

// readEvents reads the events of a run and prints the output.
func (j *resultCollector) readEvents(r io.Reader) error {
	j.packages, j.tests, j.output = map[string]string{}, map[testID]string{}, map[testID][]string{}
	j.build, j.crashed = map[string][]string{}, map[string]bool{}
	j.took, j.skipped = map[testID]float64{}, map[string]int{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e testEvent
			if line[0] != '{' || json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(j.out, line)
			} else {
				j.addEvent(&e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (j *resultCollector) addEvent(e *testEvent) {
	pkg := strings.TrimPrefix(e.Package, modulePrefix)
	n := testID{pkg, e.Test}
	switch e.Action {
	case "start":
		j.packages[pkg] = ""
	case "run":
		j.tests[n] = ""
	case "build-output":
		j.build[e.ImportPath] = append(j.build[e.ImportPath], e.Output)
	case "output":
		j.output[n] = append(j.output[n], e.Output)
		if e.Test != "" && strings.Contains(e.Output, "repeat:") {
			j.repeats = append(j.repeats, fmt.Sprintf("%v: %s", n, strings.TrimSpace(e.Output)))
		}
		if strings.HasPrefix(e.Output, "panic: ") || strings.HasPrefix(e.Output, "fatal error: ") ||
			strings.HasPrefix(e.Output, "WARNING: DATA RACE") {
			j.crashed[pkg] = true
		}
		if text := strings.TrimSpace(e.Output); j.verbose && !strings.HasPrefix(text, "=== ") &&
			!strings.HasPrefix(text, "--- PASS") {
			fmt.Fprint(j.out, e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test != "" {
			j.tests[n], j.took[n] = e.Action, e.Elapsed
			j.printFinishedTest(n, e)
			return
		}
		j.packages[pkg] = e.Action
		if e.FailedBuild != "" {
			fmt.Fprint(j.out, strings.Join(j.build[e.FailedBuild], ""))
		}
		fmt.Fprintf(j.out, "%-5s %s\t%.1fs\n", map[string]string{"pass": "ok", "fail": "FAIL", "skip": "-"}[e.Action], pkg,
			e.Elapsed)
	}
}

// printFinishedTest prints the output of a finished test.
func (j *resultCollector) printFinishedTest(n testID, e *testEvent) {
	_, known := j.pending.findEntry(n)
	if _, ok := j.skips.findEntry(n); e.Action == "skip" && !ok {
		j.skipped[skipReason(j.output[n])]++
	}
	switch {
	case j.verbose:
	case e.Action == "fail" && known:
		if !strings.Contains(n.test, "/") {
			fmt.Fprintf(j.out, "pending: %v has failed, as expected (%.1fs)\n", n, e.Elapsed)
		}
	case e.Action == "fail":
		fmt.Fprint(j.out, strings.Join(j.output[n], ""))
	}
	if e.Action != "fail" || known {
		delete(j.output, n)
	}
}

// positionPattern matches the position before a message in the log of a test.
var positionPattern = regexp.MustCompile(`^\w+\.go:\d+: `)

// skipReason returns the last log message of a skipped test, which is the reason.
func skipReason(output []string) string {
	for _, line := range slices.Backward(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "=== ") &&
			!strings.HasPrefix(line, "--- ") {
			return positionPattern.ReplaceAllString(line, "")
		}
	}
	return "no reason given"
}

// failureReasons returns the reasons why the run has failed. The list is empty if the run has passed.
func (j *resultCollector) failureReasons() (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if len(j.packages) == 0 {
		add("verdict: no package was tested")
	}
	for _, pkg := range slices.Sorted(maps.Keys(j.packages)) {
		action := j.packages[pkg]
		failed, excused := 0, 0
		for _, n := range j.testsOf(pkg) {
			entry, known := j.pending.findEntry(n)
			switch j.tests[n] {
			case "fail":
				failed++
				if known || j.hasOnlyPendingSubtests(n) {
					excused++
				} else {
					add("verdict: %v has failed", n)
				}
			case "":
				// The output of the last one contains the stacks if a timeout has ended the run.
				if !j.verbose {
					fmt.Fprint(j.out, strings.Join(j.output[n], ""))
				}
				add("verdict: %v has not ended", n)
			case "pass":
				if known && entry == n {
					add("verdict: %v passes: remove it from test/pending.txt", n)
				}
			case "skip":
				if _, ok := j.skips.findEntry(n); j.ci && !ok {
					add("verdict: %v was skipped, and test/skips.txt does not say why", n)
				}
			}
		}
		switch {
		case action == "":
			add("verdict: package %s has not ended", pkg)
		case action == "fail" && (failed == 0 || j.crashed[pkg]):
			fmt.Fprint(j.out, strings.Join(j.output[testID{pkg, ""}], ""))
			add("verdict: package %s has failed", pkg)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(j.skipped)) {
		fmt.Fprintf(j.out, "%d skipped: %s\n", j.skipped[why], why)
	}
	if len(j.repeats) > 0 {
		fmt.Fprintf(j.out, "%d repeats of runs:\n%s\n", len(j.repeats), strings.Join(j.repeats, "\n"))
	}
	if len(j.repeats) > maxRepeats {
		add("verdict: got %d repeats of runs, want at most %d", len(j.repeats), maxRepeats)
	}
	return list
}

// slowestTests returns the list of the n slowest tests, without their subtests.
func (j *resultCollector) slowestTests(n int) string {
	var list []testID
	for t := range j.took {
		if !strings.Contains(t.test, "/") {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b testID) int { return cmp.Compare(j.took[b], j.took[a]) })
	var b strings.Builder
	for _, t := range list[:min(n, len(list))] {
		fmt.Fprintf(&b, "%6.1fs %v\n", j.took[t], t)
	}
	return b.String()
}

// maxRepeats is the maximum number of repeated runs in one run of go test. A run contains about ten exchanges with
// losses of up to 5 %. One of twenty exchanges is repeated, so five repeats occur in one of ten thousand runs.
const maxRepeats = 4

func (j *resultCollector) testsOf(pkg string) (list []testID) {
	for n := range j.tests {
		if n.pkg == pkg {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b testID) int { return strings.Compare(a.test, b.test) })
	return list
}

// hasOnlyPendingSubtests reports whether a test has failed only because of subtests that are all pending.
func (j *resultCollector) hasOnlyPendingSubtests(n testID) bool {
	some := false
	for m, action := range j.tests {
		if m.pkg != n.pkg || action != "fail" || !strings.HasPrefix(m.test, n.test+"/") {
			continue
		}
		if _, known := j.pending.findEntry(m); known {
			some = true
		} else if !j.hasOnlyPendingSubtests(m) {
			return false
		}
	}
	return some
}
