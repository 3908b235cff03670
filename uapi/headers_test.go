package uapi

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"verbena/uapi/internal/layout"
)

// TestTablesMatchHeaders compares the tables in testdata with the headers of this machine. Older headers may lack
// facts, and newer headers may have additional facts. The headers must not contradict the tables.
func TestTablesMatchHeaders(t *testing.T) {
	const include = "/usr/include"
	cc := cmp.Or(os.Getenv("CC"), "cc")
	for _, test := range []struct {
		table string
		src   layout.Source
	}{
		{kernelTable, layout.KernelABI},
		{verbsTable, layout.VerbsABI},
	} {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(test.table, "testdata/"), ".txt"), func(t *testing.T) {
			facts, err := layout.Extract(cc, include, test.src)
			if errors.Is(err, layout.ErrNoCompiler) || errors.Is(err, layout.ErrNoHeader) {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			table := readTable(t, test.table)
			wrong, missing, unknown := table.Diff(facts)
			for _, f := range wrong {
				t.Errorf("headers: %s\ntable: %s", &f, tableLines(table.Lookup(f.Kind, f.Name)))
			}
			if len(unknown) == len(facts) {
				t.Error("headers and table: got no common facts, want some")
			}
			// Only the kernel's headers have a known version.
			set := ""
			if test.table == kernelTable {
				v, err := layout.KernelVersion(cc, include)
				if err != nil {
					t.Fatal(err)
				}
				set = "linux-" + v
			}
			report := t.Logf
			if slices.Contains(table.Sets(), set) {
				report = t.Errorf
			}
			if len(missing) > 0 {
				report("facts of the table that headers %s lack:\n%s", set, tableLines(missing))
			}
			if len(unknown) > 0 {
				report("facts of headers %s that the table lacks; run go generate, then add them to the package:\n%s",
					set, tableLines(unknown))
			}
		})
	}
}

func tableLines(table layout.Table) string {
	var b strings.Builder
	for i := range table {
		fmt.Fprintln(&b, table[i].String())
	}
	return b.String()
}
