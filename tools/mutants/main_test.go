package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPlaces tests that the code contains the place of every mutant. A change that moves a place must also change
// the mutant.
func TestPlaces(t *testing.T) {
	const root = "../.."
	names := map[string]bool{}
	for i := range mutants {
		m := &mutants[i]
		source, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := m.apply(string(source)); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if key := m.file + m.name; names[key] {
			t.Errorf("mutants: got two mutants with the name %s", key)
		} else {
			names[key] = true
		}
	}
	if len(mutants) < 40 {
		t.Errorf("mutants: got %d mutants, want at least 40", len(mutants))
	}
}

func TestApplyMutant(t *testing.T) {
	m := listedMutant{file: "x.go", from: "a < b", to: "a <= b"}
	if got, err := m.apply("if a < b {"); err != nil || got != "if a <= b {" {
		t.Errorf("apply: got %q and error %v, want the replaced text and no error", got, err)
	}
	for _, source := range []string{"", "if a < b || a < b {"} {
		if got, err := m.apply(source); err == nil {
			t.Errorf("apply to %q: got %q, want an error", source, got)
		}
	}
}

// TestRunLeavesTreeUnchanged tests that a property test that detects a mutant saves no file in the working tree.
func TestRunLeavesTreeUnchanged(t *testing.T) {
	t.Chdir("../..")
	const file = "internal/timeq/timeq.go"
	i := slices.IndexFunc(mutants, func(m listedMutant) bool { return m.file == file })
	if i < 0 {
		t.Fatalf("mutants: got no mutant of %s", file)
	}
	m := mutant{listedMutant: mutants[i]}
	how, err := m.runTests(m.testSuites()[0], &baselineResult{}, time.Minute)
	if err != nil || !strings.HasPrefix(how, "TestQueue") {
		t.Errorf("try: got test %q and error %v, want a failure of TestQueue", how, err)
	}
	if left, _ := filepath.Glob("internal/timeq/testdata/rapid/*/*"); len(left) > 0 {
		t.Errorf("files after try: got %q, want none", left)
	}
}
