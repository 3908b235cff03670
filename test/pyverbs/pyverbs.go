// Package pyverbs contains the recorded results of rdma-core's own tests on Verbena and on the kernel's rxe, and
// the reasons for which tests do not pass.
//
// The program run runs the tests. verbena.txt and kernel.txt are its output, under `verbena run` and in a guest
// with the kernel's rxe. reasons.txt contains the reasons. A test of this package writes the comparison in
// docs/verbs.md and docs/results/verbs.md.
package pyverbs

import (
	"bufio"
	"embed"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// The following constants are the outcomes of a test.
const (
	OK      = "ok"
	Skipped = "skipped"
	Failed  = "failed"
	Error   = "error"
)

// Result is the result of a test.
type Result struct {
	Outcome string
	Text    string // message of the test
}

// Results maps the tests' full names to their results.
type Results map[string]Result

// Parse reads the output of run. Lines that start with # are comments.
func Parse(r io.Reader) (Results, error) {
	results := Results{}
	for s := bufio.NewScanner(r); s.Scan(); {
		line := s.Text()
		if !strings.HasPrefix(line, "tests.") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		outcome, text, _ := strings.Cut(rest, " ")
		if !slices.Contains([]string{OK, Skipped, Failed, Error}, outcome) {
			return nil, fmt.Errorf("malformed line %q", line)
		}
		results[name] = Result{outcome, text}
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("no results")
	}
	return results, nil
}

// Names returns the tests' names, sorted.
func (r Results) Names() []string { return slices.Sorted(maps.Keys(r)) }

// Count returns the number of tests with the outcome.
func (r Results) Count(outcome string) (n int) {
	for _, v := range r {
		if v.Outcome == outcome {
			n++
		}
	}
	return n
}

//go:embed verbena.txt kernel.txt reasons.txt
var recordFiles embed.FS

// VerbenaResults and Kernel return the recorded results and the system on which they were recorded.
func VerbenaResults() (Results, string, error) { return readRecordedResults("verbena.txt") }
func kernelResults() (Results, string, error)  { return readRecordedResults("kernel.txt") }

func readRecordedResults(name string) (r Results, on string, err error) {
	b, err := recordFiles.ReadFile(name)
	if err != nil {
		return nil, "", err
	}
	on, _, _ = strings.Cut(string(b), "\n")
	if r, err = Parse(strings.NewReader(string(b))); err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	return r, strings.TrimPrefix(on, "# "), nil
}

// Reasons explains why tests do not pass.
type Reasons []reason

type reason struct {
	says *regexp.Regexp
	why  string
	used bool
}

// ReadReasons reads reasons.txt.
func ReadReasons() (Reasons, error) {
	b, err := recordFiles.ReadFile("reasons.txt")
	if err != nil {
		return nil, err
	}
	var rs Reasons
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		says, why, ok := strings.Cut(line, "| ")
		if !ok {
			return nil, fmt.Errorf("reasons.txt: no reason in %q", line)
		}
		re, err := regexp.Compile(says)
		if err != nil {
			return nil, fmt.Errorf("reasons.txt: %w", err)
		}
		rs = append(rs, reason{says: re, why: why})
	}
	return rs, nil
}

// reasonFor returns the reason for the message of a test, or "" if there is none.
func (rs Reasons) reasonFor(text string) string {
	for i := range rs {
		if rs[i].says.MatchString(text) {
			rs[i].used = true
			return rs[i].why
		}
	}
	return ""
}

// unused returns the reasons that no call of reasonFor has matched.
func (rs Reasons) unused() (unused []string) {
	for _, r := range rs {
		if !r.used {
			unused = append(unused, r.says.String())
		}
	}
	return unused
}

// noHugePagesPattern matches the message of a test that could pass on another machine.
var noHugePagesPattern = regexp.MustCompile(`^There are no huge pages`)

// Mismatches lists the faults in results. A fault is a test that passed when recorded and does not pass now, a
// missing test, a failing test, or a skipped test without a reason.
func Mismatches(got, recorded Results, reasons Reasons) (complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	for _, name := range recorded.Names() {
		if _, ok := got[name]; !ok {
			complain("%s: got no run, want one", name)
		}
	}
	for _, name := range got.Names() {
		r := got[name]
		switch {
		case r.Outcome == OK:
		case recorded[name].Outcome == OK && !noHugePagesPattern.MatchString(r.Text):
			complain("%s: got %s, want ok as recorded: %s", name, r.Outcome, r.Text)
		case r.Outcome != Skipped:
			complain("%s: %s: %s", name, r.Outcome, r.Text)
		case reasons.reasonFor(r.Text) == "":
			complain("%s: got %s without a reason in reasons.txt: %s", name, r.Outcome, r.Text)
		}
	}
	return complaints
}
