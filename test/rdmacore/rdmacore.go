// Package rdmacore contains the results of the programs and pyverbs tests of several versions of rdma-core, on
// Verbena and on the Linux kernel's rxe, and the reasons for failures.
//
// The script record runs the programs in root file systems of the distributions with these versions, and writes the
// files VERSION.verbena.txt and VERSION.kernel.txt. The script runs the files programs and test/pyverbs/run in
// these file systems. reasons.txt contains the reasons. A test of this package makes the comparison in
// docs/results/verbs.md.
package rdmacore

import (
	"bufio"
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"verbena/test/pyverbs"
)

// record holds the results of one version of rdma-core.
type record struct {
	Version      string // for example 44.0
	Distribution string
	On           string // Verbena, or the kernel's version
	Kernel       bool
	Programs     []item
	Tests        []item // results of pyverbs tests
}

// item is a program with its options, or a test of pyverbs.
type item struct {
	Name    string
	Outcome string // one of the outcomes of package pyverbs
	Text    string // message of the item
}

// hasFailed reports whether the item failed.
func (i item) hasFailed() bool { return i.Outcome == pyverbs.Failed || i.Outcome == pyverbs.Error }

func countOutcomes(items []item, outcomes ...string) (n int) {
	for _, i := range items {
		if slices.Contains(outcomes, i.Outcome) {
			n++
		}
	}
	return n
}

//go:embed *.txt
var recordFiles embed.FS

// records reads the records, sorted by version, with the records of Verbena first.
func records() (all []record, err error) {
	names, err := fs.Glob(recordFiles, "*.*.txt")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := recordFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		r, err := parseRecord(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if want := strings.HasSuffix(name, ".kernel.txt"); r.Kernel != want {
			return nil, fmt.Errorf("%s: got a record of %s, want the system in the name of the file", name, r.On)
		}
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.versionNumber(), b.versionNumber()), cmp.Compare(a.sortRank(), b.sortRank()))
	})
	return all, nil
}

func (r *record) versionNumber() float64 { n, _ := strconv.ParseFloat(r.Version, 64); return n }

func (r *record) sortRank() int {
	if r.Kernel {
		return 1
	}
	return 0
}

// parseRecord reads a record. The first line holds the version, the distribution and the tested system. The following
// lines have the results of the programs, and then the output of test/pyverbs/run.
func parseRecord(text string) (*record, error) {
	first, rest, _ := strings.Cut(text, "\n")
	head := strings.Split(strings.TrimPrefix(first, "# "), " | ")
	if len(head) != 3 {
		return nil, fmt.Errorf("malformed first line %q", first)
	}
	r := &record{Version: head[0], Distribution: head[1], On: head[2], Kernel: head[2] != "Verbena"}
	for s := bufio.NewScanner(strings.NewReader(rest)); s.Scan(); {
		fields := strings.SplitN(s.Text(), " |", 3)
		if len(fields) != 3 || strings.HasPrefix(fields[0], "tests.") {
			continue
		}
		i := item{strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1]), strings.TrimSpace(fields[2])}
		if !slices.Contains([]string{pyverbs.OK, pyverbs.Skipped, pyverbs.Failed}, i.Outcome) {
			return nil, fmt.Errorf("malformed line %q", s.Text())
		}
		r.Programs = append(r.Programs, i)
	}
	tests, err := pyverbs.Parse(strings.NewReader(rest))
	if err != nil {
		return nil, err
	}
	for _, name := range tests.Names() {
		r.Tests = append(r.Tests, item{strings.TrimPrefix(name, "tests."), tests[name].Outcome, tests[name].Text})
	}
	if len(r.Programs) == 0 {
		return nil, fmt.Errorf("no programs")
	}
	return r, nil
}

// reason explains why items fail.
type reason struct {
	says *regexp.Regexp // expression for name and text, with ": " between them
	why  string
	used bool
}

// reasons returns the reasons in reasons.txt.
func reasons() (all []*reason, err error) {
	text, err := recordFiles.ReadFile("reasons.txt")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
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
		all = append(all, &reason{says: re, why: why})
	}
	return all, nil
}

// failure is a reason and the items that fail for this reason.
type failure struct {
	Why             string
	Items           []string
	Verbena, Kernel []string // versions, in the form used in the documentation
}

// failures groups the failing items by reason, in the order of the reasons. Unexplained lists the items without a
// reason.
func failures(records []record, reasons []*reason) (all []failure, unexplained []string) {
	by := map[*reason]*failure{}
	for _, r := range records {
		major, _, _ := strings.Cut(r.Version, ".")
		for _, i := range slices.Concat(r.Programs, r.Tests) {
			if !i.hasFailed() {
				continue
			}
			said := i.Name + ": " + i.Text
			n := slices.IndexFunc(reasons, func(x *reason) bool { return x.says.MatchString(said) })
			if n < 0 {
				unexplained = append(unexplained, fmt.Sprintf("%s on %s: %s", r.Version, r.On, said))
				continue
			}
			reasons[n].used = true
			f := by[reasons[n]]
			if f == nil {
				f = &failure{Why: reasons[n].why}
				by[reasons[n]] = f
			}
			where := &f.Verbena
			if r.Kernel {
				where = &f.Kernel
			}
			if !slices.Contains(*where, major) {
				*where = append(*where, major)
			}
			if !slices.Contains(f.Items, i.Name) {
				f.Items = append(f.Items, i.Name)
			}
		}
	}
	for _, x := range reasons {
		if f := by[x]; f != nil {
			all = append(all, *f)
		}
	}
	return all, unexplained
}
