package rdmacore

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"verbena/internal/gendoc"
	"verbena/test/pyverbs"
)

const resultsPage = "../../docs/results/verbs.md"

// maxShownItems is the number of items that the table names for one reason.
const maxShownItems = 4

// TestTablesMatchRecords compares the tables of versions and of failures in docs/results/verbs.md with the records.
func TestTablesMatchRecords(t *testing.T) {
	records, err := records()
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := reasons()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"| rdma-core | of | on | programs ok | failed | pyverbs ok | skipped | failed | errors |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range records {
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %d | %d |\n", r.Version, r.Distribution, r.On,
			countOutcomes(r.Programs, pyverbs.OK), countOutcomes(r.Programs, pyverbs.Failed),
			countOutcomes(r.Tests, pyverbs.OK), countOutcomes(r.Tests, pyverbs.Skipped), countOutcomes(r.Tests,
				pyverbs.Failed), countOutcomes(r.Tests,
				pyverbs.Error))
	}
	gendoc.CheckSection(t, resultsPage, "versions", b.String())

	failures, unexplained := failures(records, reasons)
	for _, u := range unexplained {
		t.Errorf("item %s: got no reason in reasons.txt, want one", u)
	}
	for _, x := range reasons {
		if !x.used {
			t.Errorf("reasons.txt: got no item that matches %q, want one", x.says)
		}
	}
	b.Reset()
	fmt.Fprintf(&b, "| what fails | on Verbena with | on rxe with | why |\n|---|---|---|---|\n")
	for _, f := range failures {
		items := f.Items
		for i, item := range items {
			items[i] = "`" + item + "`"
		}
		if len(items) > maxShownItems {
			items = append(items[:maxShownItems:maxShownItems], fmt.Sprintf("and %d more", len(items)-maxShownItems))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.Join(items, ", "), strings.Join(f.Verbena, ", "),
			strings.Join(f.Kernel, ", "), f.Why)
	}
	gendoc.CheckSection(t, resultsPage, "version failures", b.String())
}

// TestRecordsCoverEachVersionKind tests that there are versions of each kind: with extended completion queues that
// count wrongly, without extended completion queues, and the newest versions.
func TestRecordsCoverEachVersionKind(t *testing.T) {
	records, err := records()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []struct{ from, below float64 }{{0, 34}, {34, 55}, {55, 59}, {59, 64}, {64, 1000}} {
		for _, kernel := range []bool{false, true} {
			if !slices.ContainsFunc(records, func(r record) bool {
				return r.versionNumber() >= kind.from && r.versionNumber() < kind.below && r.Kernel == kernel
			}) {
				t.Errorf("records of versions from %g to below %g (kernel: %v): got none, want one", kind.from, kind.below, kernel)
			}
		}
	}
}

func TestParseRecord(t *testing.T) {
	const good = "# 44.0 | Debian 12 | Verbena\nib_x -e | failed | server: exit status 1: no | word\nib_y | ok |\ntests.a ok\ntests.b error what | how\n1 ok, 0 skipped\n"
	r, err := parseRecord(good)
	if err != nil {
		t.Fatal(err)
	}
	if r.Version != "44.0" || r.Distribution != "Debian 12" || r.Kernel || len(r.Programs) != 2 || len(r.Tests) != 2 ||
		r.Programs[0] != (item{"ib_x -e", pyverbs.Failed, "server: exit status 1: no | word"}) ||
		r.Tests[1] != (item{"b", pyverbs.Error, "what | how"}) {
		t.Errorf("parse: got %+v, want the values of the record", r)
	}
	for _, bad := range []string{"", "# 44.0\ntests.a ok\n", "# 4 | D | V\ntests.a ok\n",
		"# 4 | D | V\nib_x | great |\ntests.a ok\n", "# 4 | D | V\nib_x | ok |\n"} {
		if r, err := parseRecord(bad); err == nil {
			t.Errorf("parse(%q): got %+v, want an error", bad, r)
		}
	}
}
