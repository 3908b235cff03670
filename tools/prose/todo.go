package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	todoFile       = "tools/prose/todo.txt"
	exceptionsFile = "tools/prose/exceptions.txt"
)

// maxExceptions is the maximum number of exceptions in the repository.
const maxExceptions = 19

// counts maps packages or pages to numbers of findings.
type counts map[string]int

// unit returns the package of a Go file, which is its folder. For a page unit returns the page itself.
func unit(file string) string {
	if strings.HasSuffix(file, ".go") {
		return path.Dir(file)
	}
	return file
}

// count returns the number of findings of each package or page.
func count(findings []finding) counts {
	c := counts{}
	for _, f := range findings {
		c[unit(f.file)]++
	}
	return c
}

// readTodo reads the list of packages and pages that are not rewritten yet. The file need not exist.
func readTodo(name string) (counts, error) {
	content, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return counts{}, nil
	}
	if err != nil {
		return nil, err
	}
	c := counts{}
	for i, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		unit, number, ok := strings.Cut(line, " ")
		n, err := strconv.Atoi(number)
		if line != "" && (!ok || err != nil || n < 1) {
			return nil, fmt.Errorf("%s:%d: read %q: want a path and a number of findings", name, i+1, line)
		}
		if line != "" {
			c[unit] = n
		}
	}
	return c, nil
}

// write writes the file.
func (c counts) write(name string) error {
	var b strings.Builder
	for _, unit := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%s %d\n", unit, c[unit])
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}

// lower returns the recorded numbers, lowered to the current numbers. Without a file, lower returns all current
// numbers.
func (c counts) lower(present counts) counts {
	if len(c) == 0 {
		return present
	}
	lowered := counts{}
	for unit, n := range c {
		if n = min(n, present[unit]); n > 0 {
			lowered[unit] = n
		}
	}
	return lowered
}

// grown returns the packages and pages that have more findings than recorded.
func (c counts) grown(present counts) []string {
	var units []string
	for unit, n := range present {
		if n > c[unit] {
			units = append(units, unit)
		}
	}
	slices.Sort(units)
	return units
}

// shrunk returns the number of packages and pages with fewer findings than are recorded.
func (c counts) shrunk(present counts) int {
	number := 0
	for unit, n := range c {
		if present[unit] < n {
			number++
		}
	}
	return number
}

// exception permits one finding.
type exception struct {
	file, rule, text, reason string
	used                     bool
}

// readExceptions reads the list of exceptions. Each line has the file, the rule, the text and the reason, separated
// by tabs.
func readExceptions(name string) ([]*exception, error) {
	content, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []*exception
	for i, line := range strings.Split(string(content), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 {
			return nil, fmt.Errorf("%s:%d: read %q: want file, rule, text and reason, separated by tabs", name, i+1, line)
		}
		list = append(list, &exception{file: f[0], rule: f[1], text: f[2], reason: f[3]})
	}
	if len(list) > maxExceptions {
		return nil, fmt.Errorf("%s: got %d exceptions, want at most %d: reword some sentences",
			name, len(list), maxExceptions)
	}
	return list, nil
}

// except removes the findings that exceptions permit.
func except(findings []finding, list []*exception) []finding {
	return slices.DeleteFunc(findings, func(f finding) bool {
		for _, e := range list {
			if e.file == f.file && e.rule == f.rule && e.text == f.text {
				e.used = true
				return true
			}
		}
		return false
	})
}

// unused returns an error that lists the exceptions without a finding.
func unused(list []*exception) error {
	var errs []error
	for _, e := range list {
		if !e.used {
			err := fmt.Errorf("%s: no finding %s %q in %s: remove the exception", exceptionsFile, e.rule, e.text, e.file)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
