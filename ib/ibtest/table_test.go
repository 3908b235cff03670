package ibtest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/broken.md anew")

const brokenIntro = `# Broken on purpose

Each of these drivers and consumers breaks one rule of [the contract](contract.md), in a way that real ones have. The tests
TestWrongDrivers and TestWrongConsumers of package ib/ibtest run them, and fail if one is not caught, or the report does
not say what is in the last column. The second column has the check that names the fault, where it has one of its own: each driver
meets it, or the whole suite, in a process of its own. ` + "`make mutants`" + ` has each driver meet the whole suite: that check is the first that fails.
The suite passes on the same driver without the defect. Made by
` + "`go test ./ib/ibtest -run TestBrokenTable -update`" + `; the test fails when the page is out of date.

One way of real drivers to be wrong is not in the table, since a driver of this midlayer cannot go it: two workers that
run one CQ's handler at once. A driver never sees the handler. The rule *one-handler* guards the midlayer itself, and is
tested by TestCheckTwoHandlers of package ib.
`

// TestBrokenTable checks that docs/broken.md lists the cases of TestWrongDrivers and TestWrongConsumers.
func TestBrokenTable(t *testing.T) {
	var b strings.Builder
	b.WriteString(brokenIntro)
	says := func(s string) string {
		if rule, ok := strings.CutPrefix(s, "rule "); ok {
			return "rule *" + rule + "*"
		}
		return "“" + s + "”"
	}
	fmt.Fprintf(&b, "\n## %d wrong drivers\n\n| the driver | caught by | which says |\n|---|---|---|\n", len(wrongDrivers))
	for _, w := range wrongDrivers {
		by := "any check"
		if w.by != "" {
			by = "`" + w.by + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", w.defect, by, says(w.says))
	}
	fmt.Fprintf(&b, "\n## %d wrong consumers\n\n| the consumer | checked mode says |\n|---|---|\n", len(wrongConsumers))
	for _, c := range wrongConsumers {
		fmt.Fprintf(&b, "| %s | %s |\n", c.defect, says(c.says))
	}
	const page = "../../docs/broken.md"
	if *update {
		if os.Getenv("CI") == "true" {
			t.Fatalf("-update with CI=true would hide that %s is out of date", page)
		}
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is out of date: run go test ./ib/ibtest -run TestBrokenTable -update", page)
	}
}
