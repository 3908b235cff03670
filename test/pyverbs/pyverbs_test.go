package pyverbs

import (
	"fmt"
	"strings"
	"testing"

	"verbena/internal/gendoc"
)

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

const (
	docs    = "../../docs/verbs.md"
	results = "../../docs/results/verbs.md"
)

// TestDocsMatchResults compares the totals in docs/verbs.md, and the list of tests in docs/results/verbs.md.
func TestDocsMatchResults(t *testing.T) {
	ours, on, err := VerbenaResults()
	kernel, kernelOn, kerr := kernelResults()
	if err != nil || kerr != nil {
		t.Fatal(err, kerr)
	}
	reasons := must(ReadReasons())(t)
	var b strings.Builder
	fmt.Fprintf(&b, "| | ok | skipped | failed | errors |\n|---|---|---|---|---|\n")
	for _, r := range []struct {
		results Results
		on      string
	}{{ours, on}, {kernel, kernelOn}} {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", r.on, r.results.Count(OK), r.results.Count(Skipped),
			r.results.Count(Failed), r.results.Count(Error))
	}
	gendoc.CheckSection(t, docs, "totals", b.String())

	b.Reset()
	fmt.Fprintf(&b, "| test | Verbena | kernel's rxe | why not |\n|---|---|---|---|\n")
	for _, name := range ours.Names() {
		r, k := ours[name], kernel[name]
		why := ""
		if r.Outcome != OK {
			if why = reasons.reasonFor(r.Text); why == "" || r.Outcome != Skipped {
				t.Errorf("%s: got %s and reason %q, want a skipped test with a reason: %s", name, r.Outcome, why, r.Text)
			}
		}
		if k.Outcome == "" {
			t.Errorf("%s: got no line in kernel.txt, want one", name)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.TrimPrefix(name, "tests."), resultMark(r), resultMark(k), why)
	}
	for _, name := range kernel.Names() {
		if _, ok := ours[name]; !ok {
			t.Errorf("%s: got no line in verbena.txt, want one", name)
		}
	}
	gendoc.CheckSection(t, results, "tests", b.String())
	reasons.reasonFor("There are no huge pages") // depends on the machine
	for _, says := range reasons.unused() {
		t.Errorf("reasons.txt: got no test with the message %q, want one", says)
	}
	if ours.Count(OK) <= kernel.Count(OK) {
		t.Errorf("passing tests: got %d, want more than on the kernel's rxe", ours.Count(OK))
	}
}

func resultMark(r Result) string {
	if r.Outcome == OK {
		return "**ok**"
	}
	return r.Outcome
}

func TestMismatches(t *testing.T) {
	reasons := Reasons{{says: noHugePagesPattern, why: "none"}}
	recorded := Results{"tests.a": {OK, ""}, "tests.b": {OK, ""}, "tests.c": {Skipped, "whatever"}}
	for _, test := range []struct {
		name, a, b string
		want       int
	}{
		{"as recorded", "ok", "ok", 0},
		{"no huge pages here", "skipped There are no huge pages", "ok", 0},
		{"skipped", "skipped for some reason", "ok", 1},
		{"failed", "ok", "failed 1 != 2", 1},
		{"error", "error killed by signal 11", "error", 2},
	} {
		got, err := Parse(strings.NewReader("noise\ntests.a " + test.a + "\ntests.b " + test.b +
			"\ntests.c ok\n1 ok, and so on\n"))
		if err != nil {
			t.Fatal(err)
		}
		if c := Mismatches(got, recorded, reasons); len(c) != test.want {
			t.Errorf("Complaints with %s: got %q, want another number", test.name, c)
		}
	}
	if c := Mismatches(Results{"tests.a": {OK, ""}, "tests.n": {Failed, ""}}, recorded, reasons); len(c) != 3 {
		t.Errorf("Complaints with two missing tests and a new failing test: got %q, want 3", c)
	}
	for _, bad := range []string{"", "tests.a great\n", "tests.a\n"} {
		if r, err := Parse(strings.NewReader(bad)); err == nil {
			t.Errorf("Parse(%q): got %v, want an error", bad, r)
		}
	}
}
