package vet

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wantPattern matches a comment that lists the expected reports of its line: // want "regexp" ["regexp" ...]. Each
// expression must match "CHECK: TEXT" of a report on that line.
var wantPattern = regexp.MustCompile(`// want ((?:"(?:[^"\\]|\\.)*"\s*)+)(?:$|\*/)`)
var quotedPattern = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)

// TestSnippetsHaveExpectedReports tests that each fault in a wrong snippet is reported at its position, and that there
// are no other reports. Correct snippets have no reports.
func TestSnippetsHaveExpectedReports(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob: got %d snippets and error %v, want some snippets", len(files), err)
	}
	var patterns []string
	for _, name := range files {
		patterns = append(patterns, "./"+filepath.Dir(name))
	}
	programs, err := Load(".", Options{}, patterns...)
	if err != nil || len(programs) != 1 {
		t.Fatalf("Load: got %d programs and error %v, want 1 program", len(programs), err)
	}
	checkSnippets(t, files, programs)
}

// TestTestFilesAreTrusted is TestSnippetsHaveExpectedReports for test files, in which a channel has space for all
// messages, and a loop on the time stands for a computation.
func TestTestFilesAreTrusted(t *testing.T) {
	files, err := filepath.Glob("testdata/testfiles/*/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob: got %d test files and error %v, want some files", len(files), err)
	}
	programs, err := Load(".", Options{Tests: true}, "./testdata/testfiles/...")
	if err != nil {
		t.Fatal(err)
	}
	checkSnippets(t, files, programs)
}

// TestConsumersAreTrusted is TestSnippetsHaveExpectedReports with Options.TrustSpace.
func TestConsumersAreTrusted(t *testing.T) {
	files, err := filepath.Glob("testdata/space/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob: got %d files and error %v, want some files", len(files), err)
	}
	programs, err := Load(".", Options{TrustSpace: true}, "./testdata/space/...")
	if err != nil {
		t.Fatal(err)
	}
	checkSnippets(t, files, programs)
}

// checkSnippets checks the reports of the programs against the comments in the files.
func checkSnippets(t *testing.T, files []string, programs []*Program) {
	got := map[sourceLine][]string{}
	for _, p := range programs {
		for _, r := range append(p.Check(), UnusedEscapes(programs)...) {
			at := p.Fset.Position(r.Pos)
			if strings.Contains(at.Filename, "testdata") {
				got[sourceLine{at.Filename, at.Line}] = append(got[sourceLine{at.Filename, at.Line}], p.Format(&r, true))
			}
		}
	}
	counts := map[string]int{}
	for _, name := range files {
		abs, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		kind := strings.Split(filepath.ToSlash(name), "/")[2]
		counts[kind]++
		t.Run(name, func(t *testing.T) {
			wanted := 0
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			s := bufio.NewScanner(f)
			for n := 1; s.Scan(); n++ {
				l := sourceLine{abs, n}
				m := wantPattern.FindStringSubmatch(s.Text())
				if m != nil {
					for _, q := range quotedPattern.FindAllStringSubmatch(m[1], -1) {
						wanted++
						re := regexp.MustCompile(q[1])
						found := false
						for i, r := range got[l] {
							if re.MatchString(r) {
								got[l] = append(got[l][:i:i], got[l][i+1:]...)
								found = true
								break
							}
						}
						if !found {
							t.Errorf("%s:%d: got no report that matches %q", name, n, q[1])
						}
					}
				}
				for _, r := range got[l] {
					t.Errorf("%s:%d: got unexpected report %s", name, n, r)
				}
			}
			if wrong := strings.HasPrefix(kind, "wrong"); wrong != (wanted > 0) {
				t.Errorf("%s snippet: got %d expected reports", kind, wanted)
			}
		})
	}
	t.Log(counts)
}

// TestLoadTestsReadsTestFiles checks that each test binary is a program with the functions of the test files.
func TestLoadTestsReadsTestFiles(t *testing.T) {
	programs, err := Load(".", Options{Tests: true}, "verbena/examples/page")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, p := range programs {
		for f := range p.funcs {
			found = found || p.Name == "verbena/examples/page.test" && f.Name() == "TestTicketsAreUnique"
		}
	}
	if !found {
		t.Error("programs: got no TestTicketsAreUnique in the test binary of examples/page, want one")
	}
}
