package ibtest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"verbena/ib/check"
)

// TestContractPage checks that docs/contract.md names exactly the checks of the suite and the rules of checked mode.
func TestContractPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	var names []string
	for _, c := range checks() {
		if names = append(names, c.name); !strings.Contains(page, "`"+c.name+"`") {
			t.Errorf("check %s is not on the page", c.name)
		}
		if c.rule == "" || c.test == nil {
			t.Errorf("check %s has no rule or no test", c.name)
		}
	}
	for _, m := range regexp.MustCompile("`([A-Z][A-Za-z]+/[A-Za-z0-9]+)`").FindAllStringSubmatch(page, -1) {
		if !slices.Contains(names, m[1]) {
			t.Errorf("there is no check %s", m[1])
		}
	}
	var rules []string
	for r := check.RuleSleepInMethod; r.Point() != 0; r++ {
		if rules = append(rules, r.String()); !strings.Contains(page, "*"+r.String()+"*") {
			t.Errorf("rule %v is not on the page", r)
		}
	}
	for _, m := range regexp.MustCompile(`[^*]\*([a-z]+(-[a-z]+)+|hold|result|callchain)\*[^*]`).FindAllStringSubmatch(page, -1) {
		if !slices.Contains(rules, m[1]) {
			t.Errorf("there is no rule %s", m[1])
		}
	}
	if n := len(names); n != len(slices.Compact(slices.Sorted(slices.Values(names)))) {
		t.Error("two checks have the same name")
	}
}
