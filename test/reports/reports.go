// Package reports contains small programs made from reports in public trackers of rdma-core, of RDMA programs, and
// of drivers of other devices. Each program repeats the failing operation and checks for the correct value.
// README.md describes the fault for each report, and the source of the correct value.
//
// A report is one entry of the table that [All] returns. The program of a report runs on every transport of package
// verbs, like the tests of package suite. Entries with a case of test/e2e/testdata/reports.c need the C library, so
// the end-to-end tests run them.
package reports

import (
	"testing"

	"verbena/test/suite"
)

// BugReport is a public report, with a program that tests a device for the same fault.
type BugReport struct {
	// ID is the repository and the number, such as rdma-core#1624.
	ID  string
	URL string
	// Kind is the kind of fault.
	Kind string
	// Clause is the source of the correct value: a clause of the InfiniBand Architecture Specification (IBA), volume 1, a
	// manual page, a function of Linux, or a statement of the maintainers.
	Clause string

	// Exactly one of the following fields is set. That field is the program.
	Verbs func(*suite.Testbed)
	CM    func(*suite.CMTestbed)
	C     string // name of a case of test/e2e/testdata/reports.c
}

// endMemorySize is the size of an End's memory in bytes. The memory of ten Ends is below the limit of locked memory.
const endMemorySize = 64 << 10

// Run runs the programs of package verbs. Programs without a connection manager run in parallel, because some wait for
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
			suite.WithDevice(t, c.Config, func(w *suite.Testbed) {
				w.Memory = endMemorySize
				r.Verbs(w)
			})
		})
	}
}
