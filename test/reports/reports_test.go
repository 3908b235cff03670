package reports

import (
	"net/netip"
	"os"
	"regexp"
	"testing"

	"verbena/internal/leaktest"
	"verbena/test/suite"
	"verbena/verbs"
	"verbena/verbs/cm"
	"verbena/verbs/embed"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestReports runs the programs on a device in this process, over the wire and over the shortcut.
func TestReports(t *testing.T) {
	for _, wire := range []bool{false, true} {
		name := map[bool]string{false: "shortcut", true: "wire"}[wire]
		t.Run(name, func(t *testing.T) {
			s, err := embed.NewSoftware(embed.Software{Wire: wire})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			Run(t, suite.CMConfig{
				Config:  suite.Config{Open: func() (*verbs.Device, error) { return s.Open("") }},
				Manager: func() (*cm.Manager, error) { return s.ConnectionManager(nil) },
				Addr:    netip.MustParseAddr("127.0.0.1"),
			})
		})
	}
}

// TestLog tests that README.md has one row with a link for each report, and no other rows.
func TestLog(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| \[([^]]+)\]\(([^)]+)\) \|`).FindAllStringSubmatch(string(text), -1) {
		rows[m[1]+" "+m[2]] = true
	}
	for _, r := range All() {
		n := 0
		for _, has := range []bool{r.Verbs != nil, r.CM != nil, r.C != ""} {
			if has {
				n++
			}
		}
		if n != 1 || r.Kind == "" || r.Clause == "" {
			t.Errorf("%s: got %d programs, kind %q and clause %q, want one program, a kind and a clause", r.ID, n, r.Kind, r.Clause)
		}
		if row := r.ID + " " + r.URL; rows[row] {
			delete(rows, row)
		} else {
			t.Errorf("README.md: got no row for %s, want one", row)
		}
	}
	for row := range rows {
		t.Errorf("README.md: got a row for %s, want only rows of the table", row)
	}
}
