package ibtest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var updateFlag = flag.Bool("update", false, "write docs/results/broken.md")

const brokenPageIntro = `# Results: drivers and consumers that break the contract

[broken.md](../broken.md) has the conclusions. The tests TestWrongDrivers and TestWrongConsumers of package ib/ibtest
run each driver and each consumer below, and fail if a fault is not caught or the report lacks the text of the last
column. ` + "`go test ./ib/ibtest -run TestBrokenTable -update`" + ` writes this file; the test fails when it is out of date.

The column "caught by" names the check of the fault, if the fault has a check of its own. The driver runs that check;
otherwise it runs the whole suite, in a process of its own. With ` + "`make mutants`" + ` every driver runs the whole suite, and
the named check must be the first that fails. The suite passes on the same driver without the defect.
`

// TestBrokenTable checks that docs/results/broken.md lists the cases of TestWrongDrivers and TestWrongConsumers.
func TestBrokenTable(t *testing.T) {
	var b strings.Builder
	b.WriteString(brokenPageIntro)
	says := func(s string) string {
		if rule, ok := strings.CutPrefix(s, "rule "); ok {
			return "rule *" + rule + "*"
		}
		return "“" + s + "”"
	}
	fmt.Fprintf(&b, "\n## %d wrong drivers\n\n| the driver | caught by | which says |\n|---|---|---|\n",
		len(driverDefects))
	for _, w := range driverDefects {
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
	const page = "../../docs/results/broken.md"
	if *updateFlag {
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
