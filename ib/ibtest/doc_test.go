package ibtest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"verbena/ib/check"
)

// docs/results/contract.md names every check of the suite and every rule of checked mode. Neither it nor
// docs/contract.md names another.
func TestContractPage(t *testing.T) {
	var texts []string
	for _, file := range []string{"../../docs/results/contract.md", "../../docs/contract.md"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	list, page := texts[0], texts[0]+texts[1]
	var names []string
	for _, c := range allChecks() {
		if names = append(names, c.name); !strings.Contains(list, "`"+c.name+"`") {
			t.Errorf("docs/results/contract.md: got no check %s, want one", c.name)
		}
		if c.rule == "" || c.test == nil {
			t.Errorf("check %s: got no rule or no test, want both", c.name)
		}
	}
	for _, m := range regexp.MustCompile("`([A-Z][A-Za-z]+/[A-Za-z0-9]+)`").FindAllStringSubmatch(page, -1) {
		if !slices.Contains(names, m[1]) {
			t.Errorf("docs/results/contract.md: got check %s, want a check of the suite", m[1])
		}
	}
	var rules []string
	for r := check.RuleSleepInMethod; r.ContractPoint() != 0; r++ {
		if rules = append(rules, r.String()); !strings.Contains(list, "*"+r.String()+"*") {
			t.Errorf("docs/results/contract.md: got no rule %v, want one", r)
		}
	}
	for _, m := range regexp.MustCompile(`[^*]\*([a-z]+(-[a-z]+)+|hold|result|callchain)\*[^*]`).FindAllStringSubmatch(page, -1) {
		if !slices.Contains(rules, m[1]) {
			t.Errorf("docs/results/contract.md: got rule %s, want a rule of checked mode", m[1])
		}
	}
	if n := len(names); n != len(slices.Compact(slices.Sorted(slices.Values(names)))) {
		t.Error("two checks have the same name")
	}
}
