//go:build e2e

package e2e

import (
	"regexp"
	"testing"

	"verbena/test/reports"
)

// TestReports runs the programs of test/reports that need the C library. TestVerbs runs the other programs.
func TestReports(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "reports")
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			w := startService(t, u, "", "--link", "rxe0="+unusedAddr())
			for _, r := range reports.All() {
				if r.C == "" {
					continue
				}
				want := regexp.MustCompile(`^ok\n$`)
				// The library leaves the length of a list of inline data at 0, and no device can detect this.
				if v := libibverbsVersion(t); r.C == "inline_list" && v >= 34 && v < 64 {
					want = regexp.MustCompile(`^verbena: .* inline data and the length 0; .*\nempty\nok\n$`)
				}
				if out, err := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", program, r.C).CombinedOutput(); err != nil ||
					!want.Match(out) {
					t.Errorf("%s (%s): got %q, %v, want %v", r.ID, r.C, out, err, want)
				}
			}
			w.awaitNoProgramObjects()
		})
	}
}
