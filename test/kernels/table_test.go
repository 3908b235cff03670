package kernels

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"verbena/internal/gendoc"
	"verbena/supervisor"
)

// TestTable compares docs/results/kernels.md with the recorded runs.
func TestTable(t *testing.T) {
	list, err := readRecords()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| Debian | kernel | as root | as an ordinary user | lacks |\n|---|---|---|---|---|\n")
	lacked := map[string]bool{}
	for _, r := range list {
		cells := []string{r.Suite, r.Kernel}
		for _, user := range users {
			failed := r.failedPrograms(user)
			switch {
			case len(failed) == 0 && r.Results[user+" signals"] == leftOverDescriptorsResult:
				cells = append(cells, "works; signals leave descriptors over")
			case len(failed) == 0:
				cells = append(cells, "works")
			case len(failed) == len(programs):
				cells = append(cells, "does not work")
			default:
				cells = append(cells, "all but "+strings.Join(failed, ", "))
			}
		}
		lacks := "-"
		if len(r.Lacks) > 0 {
			lacks = strings.Join(r.Lacks, ", ")
		}
		for _, l := range r.Lacks {
			lacked[l] = true
		}
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(cells, " | "), lacks)
	}
	features := supervisor.KnownFeatures()
	fmt.Fprintf(&b,
		"\n| what a kernel may lack | since Linux | without it | not promised without it |\n|---|---|---|---|\n")
	for _, f := range features {
		promise := f.Promise
		if promise == "" {
			promise = "-"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, f.Since, f.Without, promise)
		delete(lacked, f.Name)
	}
	for l := range lacked {
		t.Errorf("%s: got the unknown feature %q, want a known one: run make kernels", recordsFile, l)
	}
	gendoc.CheckSection(t, "../../docs/results/kernels.md", "kernels", b.String())
	if len(list) == 0 || slices.ContainsFunc(list, func(r record) bool { return r.Kernel == "" }) {
		t.Errorf("%s: got no kernels, or one without a name, want some", recordsFile)
	}
}

func TestParseRecord(t *testing.T) {
	r := parseRecord("sid",
		"noise\nkernel: 7.0\nlacks: short slices\nresult: root rping = ok\r\nresult: nobody rping = exit code 1: a = b\n")
	if r.Kernel != "7.0" || !slices.Equal(r.Lacks, []string{"short slices"}) || r.Results["root rping"] != "ok" ||
		r.Results["nobody rping"] != "exit code 1: a = b" {
		t.Errorf("parse: got %+v, want kernel 7.0 and its results", r)
	}
	if f := r.failedPrograms("root"); len(f) != len(programs)-1 || slices.Contains(f, "rping") {
		t.Errorf("failed: got %v, want all but rping", f)
	}
}
