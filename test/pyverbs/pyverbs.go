// Package pyverbs knows what rdma-core's own tests say of Verbena and of the kernel's rxe, test by test, and why a test
// does not pass.
//
// The program run runs them; verbena.txt and kernel.txt are what it printed, under `verbena run` and in a guest with
// the kernel's rxe; reasons.txt are the reasons. docs/verbs.md and docs/results/verbs.md have the comparison, which a
// test of this package writes.
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

// Outcomes of a test.
const (
	OK      = "ok"
	Skipped = "skipped"
	Failed  = "failed"
	Error   = "error"
)

// Result is what came of a test.
type Result struct {
	Outcome string
	Text    string // what the test said about it
}

// Results are by the tests' full names.
type Results map[string]Result

// Parse reads what run prints. Lines that start with # are comments.
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
			return nil, fmt.Errorf("cannot make sense of %q", line)
		}
		results[name] = Result{outcome, text}
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("no results")
	}
	return results, nil
}

// Names are the tests' names, sorted.
func (r Results) Names() []string { return slices.Sorted(maps.Keys(r)) }

// Count is how many tests have the outcome.
func (r Results) Count(outcome string) (n int) {
	for _, v := range r {
		if v.Outcome == outcome {
			n++
		}
	}
	return n
}

//go:embed verbena.txt kernel.txt reasons.txt
var files embed.FS

// Verbena and Kernel are what was recorded, and on what.
func Verbena() (Results, string, error) { return recorded("verbena.txt") }
func Kernel() (Results, string, error)  { return recorded("kernel.txt") }

func recorded(name string) (r Results, on string, err error) {
	b, err := files.ReadFile(name)
	if err != nil {
		return nil, "", err
	}
	on, _, _ = strings.Cut(string(b), "\n")
	if r, err = Parse(strings.NewReader(string(b))); err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	return r, strings.TrimPrefix(on, "# "), nil
}

// Reasons tell why tests do not pass.
type Reasons []reason

type reason struct {
	says *regexp.Regexp
	why  string
	used bool
}

// ReadReasons reads reasons.txt.
func ReadReasons() (Reasons, error) {
	b, err := files.ReadFile("reasons.txt")
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

// Why is the reason for what a test said, "" if there is none.
func (rs Reasons) Why(text string) string {
	for i := range rs {
		if rs[i].says.MatchString(text) {
			rs[i].used = true
			return rs[i].why
		}
	}
	return ""
}

// Unused are the reasons that nobody asked for.
func (rs Reasons) Unused() (unused []string) {
	for _, r := range rs {
		if !r.used {
			unused = append(unused, r.says.String())
		}
	}
	return unused
}

// noHugePages is what a test says that another machine would let pass.
var noHugePages = regexp.MustCompile(`^There are no huge pages`)

// Complaints are what is wrong with results: a test that passed when it was recorded and does not, one that is not
// there any more, one that fails, or one that is skipped and has no reason.
func Complaints(got, recorded Results, reasons Reasons) (complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	for _, name := range recorded.Names() {
		if _, ok := got[name]; !ok {
			complain("%s: was not run", name)
		}
	}
	for _, name := range got.Names() {
		r := got[name]
		switch {
		case r.Outcome == OK:
		case recorded[name].Outcome == OK && !noHugePages.MatchString(r.Text):
			complain("%s: %s, and passed when it was recorded: %s", name, r.Outcome, r.Text)
		case r.Outcome != Skipped:
			complain("%s: %s: %s", name, r.Outcome, r.Text)
		case reasons.Why(r.Text) == "":
			complain("%s: %s without a reason in reasons.txt: %s", name, r.Outcome, r.Text)
		}
	}
	return complaints
}
