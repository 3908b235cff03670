package check_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"verbena/ib/check"
	"verbena/internal/gendoc"
)

// misuse matches a row of the table of test/sanitize/misuse.c.
var misuse = regexp.MustCompile(`(?m)^\t\{"([a-z-]+)", "([a-z-]+)", [a-z_]+\},$`)

// TestProgramRules checks the table of the rules for programs, and its part of docs/sanitizer.md. Each rule that is on
// by default has a program that violates it.
func TestProgramRules(t *testing.T) {
	source, err := os.ReadFile("../../test/sanitize/misuse.c")
	if err != nil {
		t.Fatal(err)
	}
	examples := map[string][]string{}
	for _, m := range misuse.FindAllStringSubmatch(string(source), -1) {
		examples[m[2]] = append(examples[m[2]], m[1])
	}
	var b strings.Builder
	b.WriteString("| rule | default | reports a program that | clause | remedy | examples |\n|---|---|---|---|---|---|\n")
	seen := map[check.Rule]bool{}
	for _, r := range check.ProgramRules {
		name := r.Rule.String()
		if seen[r.Rule] || r.Reports == "" || r.Clause == "" || r.Remedy == "" || r.Rule.ContractPoint() == 0 {
			t.Errorf("row %s: got %+v, want one row with all texts", name, r)
		}
		if seen[r.Rule] = true; !r.Off && examples[name] == nil {
			t.Errorf("examples of %s: got none, want one in test/sanitize/misuse.c", name)
		}
		on := "on"
		if r.Off {
			on = "off"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", name, on, r.Reports, r.Clause, r.Remedy,
			strings.Join(examples[name], ", "))
		delete(examples, name)
	}
	for name := range examples {
		t.Errorf("test/sanitize/misuse.c: got rule %s, want a rule of the table", name)
	}
	gendoc.CheckSection(t, "../../docs/sanitizer.md", "sanitizer rules", b.String())
}

// TestParseProgramRules checks the selection of rules by name.
func TestParseProgramRules(t *testing.T) {
	tests := []struct {
		names     string
		on, off   check.Rule
		wantError bool
	}{
		{"", check.RuleSourceChanged, check.RuleTargetReused, false},
		{"-source-changed", check.RuleInFlight, check.RuleSourceChanged, false},
		{"in-flight", check.RuleInFlight, check.RuleSourceChanged, false},
		{"all", check.RuleTargetReused, check.RuleSleepInMethod, false},
		{"all,-in-flight", check.RuleTargetReused, check.RuleInFlight, false},
		{"-in-flight,target-reused", check.RuleTargetReused, check.RuleInFlight, false},
		{"callchain", 0, 0, true}, // a rule for drivers
		{"-all", 0, 0, true},
	}
	for _, tt := range tests {
		var names []string
		if tt.names != "" {
			names = strings.Split(tt.names, ",")
		}
		s, err := check.ParseProgramRules(names)
		if (err != nil) != tt.wantError {
			t.Errorf("ParseProgramRules(%q): got error %v, want error %v", tt.names, err, tt.wantError)
		}
		if err == nil && (!s.Has(tt.on) || s.Has(tt.off)) {
			t.Errorf("ParseProgramRules(%q): got %v in the set: %v, %v: %v; want the first only", tt.names, tt.on, s.Has(tt.on),
				tt.off, s.Has(tt.off))
		}
	}
}
