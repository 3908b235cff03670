// Package reports holds small programs made of reports in public trackers: of rdma-core, of RDMA programs, and of other
// devices' drivers. Each does what failed there, and wants the right value. README.md says of each what went wrong, and
// why that value is right.
//
// A report is one entry of the table that [All] returns. Its program runs on every transport of package verbs, as the
// tests of package suite do. Entries with a case of test/e2e/testdata/reports.c need the C library; the end-to-end
// tests run them.
package reports

import (
	"testing"

	"verbena/test/suite"
)

// Report is a public report with a program that shows whether a device has the same fault.
type Report struct {
	// ID is the repository and the number, such as rdma-core#1624.
	ID  string
	URL string
	// Kind is the kind of fault.
	Kind string
	// Clause is the source of the right value: a clause of the InfiniBand Architecture Specification (IBA), volume 1, a
	// manual page, a function of Linux, or what the maintainers said.
	Clause string

	// One of these is the program.
	Verbs func(*suite.World)
	CM    func(*suite.CMWorld)
	C     string // a case of test/e2e/testdata/reports.c
}

// memory is that of an End, in bytes: ten of them are less than a user may lock.
const memory = 64 << 10

// Run runs the programs of package verbs. Those that need no connection manager run at the same time: some wait for
// timers.
func Run(t *testing.T, c suite.CMConfig) {
	for _, r := range All() {
		if r.C != "" {
			continue
		}
		t.Run(r.ID, func(t *testing.T) {
			if r.CM != nil {
				suite.WithCM(t, c, r.CM)
				return
			}
			t.Parallel()
			suite.With(t, c.Config, func(w *suite.World) {
				w.Memory = memory
				r.Verbs(w)
			})
		})
	}
}
