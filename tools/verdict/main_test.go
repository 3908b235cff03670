package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	const (
		start   = `{"Action":"start","Package":"verbena/p"}`
		ended   = `{"Action":"pass","Package":"verbena/p"}`
		failed  = `{"Action":"fail","Package":"verbena/p"}`
		program = `{"Action":"output","Package":"verbena/p","Output":"panic: no\n"}`
	)
	test := func(action, name string) string {
		return fmt.Sprintf(`{"Action":"run","Package":"verbena/p","Test":%q}`, name) + "\n" +
			fmt.Sprintf(`{"Action":"output","Package":"verbena/p","Test":%q,"Output":"output of %[1]s\n"}`, name) + "\n" +
			fmt.Sprintf(`{"Action":%q,"Package":"verbena/p","Test":%q}`, action, name)
	}
	says := func(name, text string) string {
		return fmt.Sprintf(`{"Action":"output","Package":"verbena/p","Test":%q,"Output":%q}`, name, text)
	}
	for _, c := range []struct {
		name    string
		lines   []string
		skips   string
		pending string
		local   bool // CI is not set
		faults  []string
		prints  string
	}{
		{name: "good", lines: []string{start, test("pass", "TestA"), ended}, prints: "ok    p"},
		{name: "nothing", faults: []string{"no package was tested"}},
		{name: "failure", lines: []string{start, test("fail", "TestA"), failed}, faults: []string{"p TestA has failed"},
			prints: "output of TestA"},
		{name: "cut off", lines: []string{start, `{"Action":"run","Package":"verbena/p","Test":"TestA"}`},
			faults: []string{"TestA has not ended", "package p has not ended"}},
		{name: "timeout", lines: []string{start, `{"Action":"run","Package":"verbena/p","Test":"TestA"}`,
			says("TestA", "panic: test timed out\n"), failed}, faults: []string{"TestA has not ended", "package p has failed"},
			prints: "panic: test timed out"},
		{name: "failure outside of tests", lines: []string{start, test("pass", "TestA"), failed},
			faults: []string{"package p has failed"}},
		{name: "build", lines: []string{`{"ImportPath":"verbena/p","Action":"build-output","Output":"syntax\n"}`, start,
			`{"Action":"fail","Package":"verbena/p","FailedBuild":"verbena/p"}`}, faults: []string{"package p has failed"},
			prints: "syntax"},
		{name: "skip without a reason", lines: []string{start, test("skip", "TestA"), ended},
			faults: []string{"TestA was skipped"}},
		{name: "skip elsewhere than in CI", lines: []string{start, test("skip", "TestA"), ended}, local: true,
			prints: "1 skipped: output of TestA"},
		{name: "skips for one reason", lines: []string{start, says("TestA", "    x_test.go:12: missing: root\n"),
			says("TestA", "--- SKIP: TestA (0.00s)\n"),
			`{"Action":"skip","Package":"verbena/p","Test":"TestA"}`, says("TestB", "    y_test.go:1: missing: root\n"),
			`{"Action":"skip","Package":"verbena/p","Test":"TestB"}`, ended}, local: true, prints: "2 skipped: missing: root\n"},
		{name: "skip with a reason", lines: []string{start, test("skip", "TestA"), ended}, skips: "p TestA: why"},
		{name: "skip of a subtest", lines: []string{start, test("skip", "TestA/b/c"), test("pass", "TestA"), ended},
			skips: "p TestA/b: why"},
		{name: "skip by pattern", lines: []string{start, test("skip", "TestA/be"), ended}, skips: "p TestA/b*: why"},
		{name: "skip of another test", lines: []string{start, test("skip", "TestAB"), ended},
			skips: "p TestA: why\nq TestAB: why", faults: []string{"TestAB was skipped"}},
		{name: "pending", lines: []string{start, test("fail", "TestA"), failed}, pending: "p TestA: why",
			prints: "pending: p TestA"},
		{name: "pending passes", lines: []string{start, test("pass", "TestA"), ended}, pending: "p TestA: why",
			faults: []string{"TestA passes: remove it"}},
		{name: "pending was skipped", lines: []string{start, test("skip", "TestA"), ended}, pending: "p TestA: why",
			local: true},
		{name: "pending and a failure", lines: []string{start, test("fail", "TestA"), test("fail", "TestB"), failed},
			pending: "p TestA: why", faults: []string{"TestB has failed"}},
		{name: "subtests of a pending one", lines: []string{start, test("fail", "TestA/b"), test("pass", "TestA/c"),
			test("fail", "TestA"), failed}, pending: "p TestA: why"},
		{name: "pending subtest", lines: []string{start, test("fail", "TestA/b"), test("fail", "TestA"), failed},
			pending: "p TestA/b: why"},
		{name: "pending subtest and another", lines: []string{start, test("fail", "TestA/b"), test("fail", "TestA/c"),
			test("fail", "TestA"), failed},
			pending: "p TestA/b: why", faults: []string{"TestA has failed", "TestA/c has failed"}},
		{name: "panic in a pending test", lines: []string{start, test("fail", "TestA"), program, failed},
			pending: "p TestA: why", faults: []string{"package p has failed"}},
		{name: "one repeat", lines: []string{start, says("TestA", "x.go:1: repeat: lost\n"), test("pass", "TestA"), ended},
			prints: "1 repeats"},
		{name: "five repeats", lines: []string{start, says("TestA", "repeat: lost\n"), says("TestA", "repeat: lost\n"),
			says("TestA", "repeat: lost\n"),
			says("TestB", "repeat: lost\n"), says("TestB", "repeat: lost\n"), test("pass", "TestA"), ended}, faults: []string{
			"5 repeats"}},
		{name: "other lines", lines: []string{"# a note", start, ended}, prints: "# a note"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			j := resultCollector{ci: !c.local, out: &out}
			var err error
			if j.skips, err = parseList(c.skips); err != nil {
				t.Fatal(err)
			}
			if j.pending, err = parseList(c.pending); err != nil {
				t.Fatal(err)
			}
			if err := j.readEvents(strings.NewReader(strings.Join(c.lines, "\n"))); err != nil {
				t.Fatal(err)
			}
			faults := j.failureReasons()
			if !slices.EqualFunc(faults, c.faults, strings.Contains) {
				t.Errorf("judge: got faults %q, want %q", faults, c.faults)
			}
			if !strings.Contains(out.String(), c.prints) {
				t.Errorf("judge: got output %q, want output with %q", &out, c.prints)
			}
		})
	}
}

func TestParseList(t *testing.T) {
	for _, bad := range []string{"p TestA", "p TestA:", "TestA: why", "p TestA: why\np TestA: why"} {
		if l, err := parseList(bad); err == nil {
			t.Errorf("parseList(%q): got %v, want an error", bad, l)
		}
	}
	l, err := parseList("# comment\n\np TestA: why: so\n")
	if err != nil || len(l) != 1 || l[testID{"p", "TestA"}] != "why: so" {
		t.Errorf("parseList: got %v and error %v, want one entry with the reason \"why: so\"", l, err)
	}
}

func TestSlowestTests(t *testing.T) {
	var lines []string
	for name, took := range map[string]float64{"TestA": 1, "TestB": 30, "TestB/c": 20, "TestD": 2.25} {
		lines = append(lines, fmt.Sprintf(`{"Action":"pass","Package":"verbena/p","Test":%q,"Elapsed":%g}`, name, took))
	}
	j := resultCollector{out: &bytes.Buffer{}}
	if err := j.readEvents(strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	if got, want := j.slowestTests(2), "  30.0s p TestB\n   2.2s p TestD\n"; got != want {
		t.Errorf("slowest: got %q, want %q", got, want)
	}
}
