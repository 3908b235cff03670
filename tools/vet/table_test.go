package vet

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table of rules in docs/verbenavet.md")

// ruleChecks lists the checks that find a breach of a rule of docs/results/contract.md. The keys are the first words of
// the rules.
var ruleChecks = []struct {
	rule   string
	checks []string
}{
	{"A driver's method of the first group does not sleep", []string{NoSleep}},
	{"Such a method does not spin", []string{NoSleep}},
	{"No method sleeps while it holds a lock", []string{NoSleep, Copy}},
	{"The memory of a SEND or RDMA WRITE is not changed", []string{Life}},
	{"Posting returns the number of accepted", []string{Keep, Release}},
	{"Every method may run at the same time", []string{Serial}},
	{"A method never calls a callback", []string{Callback}},
	{"A consumer that has armed a CQ polls once more", []string{Arm}},
	{"The caller of `RunCallbacks`", []string{Callback, NoSleep}},
	{"A callback does not sleep", []string{NoSleep}},
	{"A callback does not wait for a lock", []string{NoSleep}},
	{"A callback returns", []string{Panic, NoSleep}},
	{"A callback does not destroy its own object", []string{Callback, Hotplug, NoSleep}},
	{"The driver holds no lock across these calls", []string{Hotplug}},
	{"No code uses a removed device or a destroyed object", []string{Life}},
	{"After `Remove` has returned, the client uses", []string{Life}},
	{"A region is not deregistered or changed", []string{Release, Life}},
	{"A queue pair with a shared receive queue is destroyed", []string{Event}},
	{"`Unregister` waits only for the end", []string{Session}},
	{"A referenced object cannot be destroyed", []string{Life}},
	{"A completion names its queue pair", []string{Event}},
}

var (
	ruleRow    = regexp.MustCompile(`^\| (.+) \| (.+) \| (.+) \|$`)
	checkedTag = regexp.MustCompile(`\*([a-z-]+)\*`)
	testTag    = regexp.MustCompile("`([A-Z][A-Za-z]+(?:/[A-Za-z0-9]+)?)`")
)

// plainWords replaces words that the lint of the page refuses.
var plainWords = strings.NewReplacer("A granted capacity", "A capacity of a queue",
	"request whose memory cannot be read", "request with memory that cannot be read")

const tableBegin, tableEnd = "<!-- rules -->\n", "<!-- end of rules -->\n"

// TestTableOfRules checks that the table of docs/verbenavet.md has each rule of docs/results/contract.md, with its
// checks.
func TestTableOfRules(t *testing.T) {
	rules, err := os.ReadFile("../../docs/results/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| rule | verbenavet | checked mode | `ibtest` |\n|---|---|---|---|\n")
	used := map[string]bool{}
	inRules := false
	for line := range strings.Lines(string(rules)) {
		m := ruleRow.FindStringSubmatch(strings.TrimSpace(line))
		switch {
		case m == nil:
			inRules = inRules && strings.HasPrefix(line, "|---")
			continue
		case m[1] == "rule":
			inRules = true
			continue
		case !inRules:
			continue
		}
		var checks []string
		for _, k := range ruleChecks {
			if strings.HasPrefix(m[1], k.rule) {
				used[k.rule] = true
				checks = k.checks
			}
		}
		words := strings.Fields(plainWords.Replace(m[1]))
		if len(words) > 5 {
			words = append(words[:5], "…")
		}
		b.WriteString("| " + strings.Join(words, " ") + " | " + cell(checks) + " | " +
			cell(tags(checkedTag, m[3], -1)) + " | " + cell(tags(testTag, m[3], 2)) + " |\n")
	}
	for _, k := range ruleChecks {
		if !used[k.rule] {
			t.Errorf("docs/results/contract.md: got no rule that begins with %q", k.rule)
		}
		for _, c := range k.checks {
			if !slices.Contains(escapableChecks, c) && c != Copy {
				t.Errorf("%q: unknown check %q", k.rule, c)
			}
		}
	}
	const page = "../../docs/verbenavet.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s: got no %q and %q", page, tableBegin, tableEnd)
	}
	want := before + tableBegin + b.String() + tableEnd + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s: the table differs from docs/results/contract.md and ruleChecks: run go test ./vet -run TableOfRules -update "+
			"in tools", page)
	}
}

// tags returns the marked names of a cell, at most n of them, and an ellipsis for the rest.
func tags(re *regexp.Regexp, s string, n int) (list []string) {
	for _, m := range re.FindAllStringSubmatch(s, -1) {
		if len(list) == n {
			return append(list, "…")
		}
		list = append(list, m[1])
	}
	return list
}

func cell(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
