package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStagesMatchWorkflow compares the stages of `make test` with the jobs of the forge's workflow, and both with the
// Makefile's targets.
func TestStagesMatchWorkflow(t *testing.T) {
	makefile := readPage(t, "Makefile")
	list := func(where, text, pattern, separator string) []string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s: got no match for %s, want one", where, pattern)
		}
		return strings.Split(m[1], separator)
	}
	var stages []string
	for _, s := range list("Makefile", makefile, `@scripts/stages (.*)`, " ") {
		if s != "wait" {
			stages = append(stages, strings.TrimSuffix(s, `\&`))
		}
	}
	jobs := list(".github/workflows/ci.yml", readPage(t, ".github/workflows/ci.yml"), `stage: \[(.*)\]`, ", ")
	if !slices.Equal(stages, jobs) {
		t.Errorf("stages: got %v in make test and %v in the workflow, want equal lists", stages, jobs)
	}
	for _, s := range stages {
		if !strings.Contains(makefile, "\n.PHONY: "+s+"\n") {
			t.Errorf("Makefile: got no target %s, want one", s)
		}
	}
}

// TestStagesRepeatFailures tests that the report of scripts/stages repeats the failures of a stage, that the script
// does not wait for a process that a stage has left behind, and that a stage with & runs beside the next one.
func TestStagesRepeatFailures(t *testing.T) {
	dir := t.TempDir()
	fake := filepath.Join(dir, "make")
	if err := os.WriteFile(fake, []byte(`#!/bin/sh
case $2 in
good) sleep 20 & echo $! >`+dir+`/pid;;
long) while ! [ -e `+dir+`/next ]; do sleep 0.1; done; echo --- FAIL: TestB; exit 1;;
next) touch `+dir+`/next;;
bad) printf 'ok a\n--- FAIL: TestA\nverdict: b TestB has not ended\n\tTestB (1m2s)\nmuch more\n'; exit 2;;
esac
`), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(repoRoot, "scripts/stages"), "long&", "good", "next", "wait", "bad", "good")
	cmd.Env = append(os.Environ(), "MAKE="+fake, "FAIL_FAST=")
	out, err := os.CreateTemp(dir, "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	began := time.Now()
	if err := cmd.Run(); err == nil {
		t.Error("stages with a failed stage: got success, want an error")
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("stages: took %v, want less than the process that a stage left behind", took)
	}
	if b, err := os.ReadFile(dir + "/pid"); err == nil {
		exec.Command("kill", strings.TrimSpace(string(b))).Run()
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if want := "stage good: ok\nstage next: ok\n--- FAIL: TestB\nstage long: FAILED\n"; !strings.HasPrefix(text, want) {
		t.Errorf("output: got %q, want %q first", text, want)
	}
	_, end, _ := strings.Cut(text, "much more\n")
	want := `^stage bad: FAILED\nstage good: ok\n\nlong: --- FAIL: TestB\n` +
		`bad: --- FAIL: TestA\nbad: verdict: b TestB has not ended\nbad: \tTestB \(1m2s\)\n` +
		`good +ok +0:0\d\nnext +ok +0:0\d\nlong +FAILED +0:0\d\nbad +FAILED +0:0\d\ngood +ok +0:0\d\n$`
	if !regexp.MustCompile(want).MatchString(end) {
		t.Errorf("end of the output: got\n%s\nwant a match for %s", end, want)
	}
}
