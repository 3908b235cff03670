package rdmaunit

import (
	"fmt"
	"strings"
	"testing"

	"verbena/internal/gendoc"
	"verbena/test/pyverbs"
)

const resultsPage = "../../docs/results/verbs.md"

// TestTablesMatchResults compares the tables in docs/results/verbs.md with the results. Each test that does not pass
// must have a reason.
func TestTablesMatchResults(t *testing.T) {
	items, on, err := results()
	if err != nil {
		t.Fatal(err)
	}
	explained, unexplained, err := explain(items)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range unexplained {
		t.Errorf("%s: got no reason in reasons.txt, want one", u)
	}
	counts := map[string]int{}
	for _, i := range items {
		counts[i.Outcome]++
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | ok | skipped | failed | errors |\n|---|---|---|---|---|\n| %s | %d | %d | %d | %d |\n",
		strings.ReplaceAll(on, " | ", ", "), counts[pyverbs.OK], counts[pyverbs.Skipped], counts[pyverbs.Failed],
		counts[pyverbs.Error])
	gendoc.CheckSection(t, resultsPage, "rdma-unit-test", b.String())

	b.Reset()
	fmt.Fprintf(&b, "| tests | number | why not |\n|---|---|---|\n")
	for _, r := range explained {
		if r.N == 0 {
			t.Errorf("reasons.txt: got no test for %q, want one", r.Why)
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s |\n", strings.Join(r.Tests, "`, `"), r.N, r.Why)
	}
	gendoc.CheckSection(t, resultsPage, "rdma-unit-test failures", b.String())
}
