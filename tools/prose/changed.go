package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	changedFile = regexp.MustCompile(`^\+\+\+ b/(.*)$`)
	changedPart = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)
)

// part is a range of changed lines.
type part struct{ first, last int }

// changes returns the lines of files that have changed since a revision.
func changes(root, revision string) (map[string][]part, error) {
	out, err := exec.Command("git", "-C", root, "diff", "--no-color", "--no-ext-diff", "--src-prefix=a/",
		"--dst-prefix=b/", "--relative", "-U0", revision, "--").Output()
	if err != nil {
		return nil, fmt.Errorf("git diff %s: %w", revision, err)
	}
	changed := map[string][]part{}
	file := ""
	for _, line := range strings.Split(string(out), "\n") {
		if m := changedFile.FindStringSubmatch(line); m != nil {
			file = m[1]
		}
		if m := changedPart.FindStringSubmatch(line); m != nil {
			first, _ := strconv.Atoi(m[1])
			number, err := strconv.Atoi(m[2])
			if err != nil {
				number = 1 // git omits a length of 1
			}
			changed[file] = append(changed[file], part{first, first + number - 1})
		}
	}
	return changed, nil
}

// since removes the findings outside of the lines that have changed since a revision.
func since(root, revision string, findings []finding) ([]finding, error) {
	changed, err := changes(root, revision)
	return slices.DeleteFunc(findings, func(f finding) bool {
		return !slices.ContainsFunc(changed[f.file], func(p part) bool { return p.first <= f.line && f.line <= p.last })
	}), err
}
