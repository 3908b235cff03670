package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStages compares the stages of `make test` with the jobs of the forge's workflow, and both with the Makefile's
// targets.
func TestStages(t *testing.T) {
	makefile := read(t, "Makefile")
	list := func(where, text, pattern, separator string) []string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s: got no match for %s, want one", where, pattern)
		}
		return strings.Split(m[1], separator)
	}
	stages := list("Makefile", makefile, `@scripts/stages (.*)`, " ")
	jobs := list(".github/workflows/ci.yml", read(t, ".github/workflows/ci.yml"), `stage: \[(.*)\]`, ", ")
	if !slices.Equal(stages, jobs) {
		t.Errorf("stages: got %v in make test and %v in the workflow, want equal lists", stages, jobs)
	}
	for _, s := range stages {
		if !strings.Contains(makefile, "\n.PHONY: "+s+"\n") {
			t.Errorf("Makefile: got no target %s, want one", s)
		}
	}
}
