//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"verbena/ib/check"
)

// reportLine matches the first line of a report of the sanitizer.
var reportLine = regexp.MustCompile(`(?m)^==\d+==verbena: sanitizer: (\S+) in `)

// TestSanitize runs the programs of test/sanitize. Each program with a misuse is reported by the rule that the table of
// the program names, and by no other rule. The same program without the misuse is not reported.
func TestSanitize(t *testing.T) {
	t.Parallel()
	needProgram(t, "gcc libc6-dev libibverbs-dev", "gcc")
	program := buildProgram(t, "misuse", func(path string) []string {
		return []string{"gcc", "-Wall", "-O1", "-o", path, "../sanitize/misuse.c", "-libverbs"}
	})
	table, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	t.Run("programs", func(t *testing.T) { // returns when all programs have ended
		for row := range strings.Lines(string(table)) {
			name, rule, _ := strings.Cut(strings.TrimSpace(row), " ")
			t.Run(name, func(t *testing.T) { testMisuse(t, w, program, name, rule) })
		}
	})
	w.awaitNoProgramObjects()
}

// testMisuse runs both forms of a program of the table. The forms run after each other, and other programs meanwhile.
func testMisuse(t *testing.T, w *testService, program, name, rule string) {
	t.Parallel()
	checks := "--sanitize=all"
	if rule != check.RuleSourceAfterReply.String() {
		checks += ",-" + check.RuleSourceAfterReply.String()
	}
	for form, want := range map[string][]string{"wrong": {rule}, "right": nil} {
		out, err := w.verbenaCommand(w.contextWithTimeout(60), "run", checks, "--", program, name, form).CombinedOutput()
		var got []string
		for _, m := range reportLine.FindAllStringSubmatch(string(out), -1) {
			got = append(got, m[1])
		}
		if slices.Sort(got); !slices.Equal(slices.Compact(got), want) {
			t.Errorf("rules reported for the %s form: got %v, want %v; output:\n%s", form, got, want, out)
		}
		if code := exitCode(err); code != map[string]int{"wrong": 66, "right": 0}[form] {
			t.Errorf("exit code of the %s form: got %d; output:\n%s", form, code, out)
		}
	}
}

// TestSanitizeReportAndAbort tests the file of reports, and the end of the reported process. The launcher is confined
// when it writes the file and sends the signal.
func TestSanitizeReportAndAbort(t *testing.T) {
	t.Parallel()
	needProgram(t, "gcc libc6-dev libibverbs-dev", "gcc")
	program := buildProgram(t, "misuse", func(path string) []string {
		return []string{"gcc", "-Wall", "-O1", "-o", path, "../sanitize/misuse.c", "-libverbs"}
	})
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	file := filepath.Join(t.TempDir(), "reports.json")
	c := w.verbenaCommand(w.contextWithTimeout(60), "run", "--sanitize=abort", "--sanitize-report", file, "--", "sh", "-c",
		`"$0" send-refilled wrong; echo "ended: $?"`, program)
	out, err := c.CombinedOutput()
	if code := exitCode(err); code != 66 || !strings.Contains(string(out), "ended: 134\n") {
		t.Errorf("got exit code %d, want 66, and 134 (SIGABRT) of the process; output:\n%s", code, out)
	}
	text, err := os.ReadFile(file)
	var reports []struct{ Rule string }
	if err == nil {
		err = json.Unmarshal(text, &reports)
	}
	if err != nil || len(reports) != 1 || reports[0].Rule != "source-changed" {
		t.Errorf("file of reports: got %s (%v), want one of source-changed", text, err)
	}
	w.awaitNoProgramObjects()
}
