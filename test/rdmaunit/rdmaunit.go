// Package rdmaunit contains the results of the tests of google/rdma-unit-test on Verbena, and the reasons for which
// tests do not pass.
//
// The script record builds and runs the tests, and writes verbena.txt. reasons.txt contains the reasons. A test of
// this package writes the table in docs/results/verbs.md.
package rdmaunit

import (
	"bufio"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"verbena/test/pyverbs"
)

//go:embed verbena.txt
var recordedResults string

//go:embed reasons.txt
var recordedReasons string

// item is the result of a test.
type item struct {
	Name    string
	Outcome string // one of the outcomes of package pyverbs
	Text    string // message of the test
}

// results returns the results in verbena.txt, and the first line, which names the versions.
func results() (items []item, on string, err error) {
	on, rest, _ := strings.Cut(strings.TrimPrefix(recordedResults, "# "), "\n")
	for s := bufio.NewScanner(strings.NewReader(rest)); s.Scan(); {
		f := strings.SplitN(s.Text()+" ", " ", 3)
		i := item{Name: f[0], Outcome: f[1], Text: strings.TrimSpace(f[len(f)-1])}
		if !slices.Contains([]string{pyverbs.OK, pyverbs.Skipped, pyverbs.Failed, pyverbs.Error}, i.Outcome) {
			return nil, "", fmt.Errorf("verbena.txt: malformed line %q", s.Text())
		}
		items = append(items, i)
	}
	return items, on, nil
}

// reason explains why tests do not pass.
type reason struct {
	Why   string
	Tests []string // tests that do not pass, without the names of their parameters
	N     int      // number of these tests, with all parameters
}

// explain assigns the tests that do not pass to the reasons in reasons.txt, in the order of that file. It also returns
// the tests without a reason.
func explain(items []item) (explained []reason, unexplained []string, err error) {
	var says []*regexp.Regexp
	for line := range strings.Lines(recordedReasons) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		expression, why, ok := strings.Cut(strings.TrimSpace(line), "| ")
		if !ok {
			return nil, nil, fmt.Errorf("reasons.txt: no reason in %q", line)
		}
		re, err := regexp.Compile(expression)
		if err != nil {
			return nil, nil, fmt.Errorf("reasons.txt: %w", err)
		}
		says, explained = append(says, re), append(explained, reason{Why: why})
	}
	for _, i := range items {
		if i.Outcome == pyverbs.OK {
			continue
		}
		line := i.Name + ": " + i.Text
		n := slices.IndexFunc(says, func(re *regexp.Regexp) bool { return re.MatchString(line) })
		if n < 0 {
			unexplained = append(unexplained, line)
			continue
		}
		r := &explained[n]
		r.N++
		if name := baseTestName(i.Name); !slices.Contains(r.Tests, name) {
			r.Tests = append(r.Tests, name)
		}
	}
	return explained, unexplained, nil
}

// baseTestName returns the name of a test without the names of its instance and its parameters.
func baseTestName(name string) string {
	parts := strings.Split(name, "/")
	for _, p := range parts {
		if strings.Contains(p, ".") {
			return p
		}
	}
	return name
}
