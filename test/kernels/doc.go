// Package kernels runs programs under `verbena run` on the kernels of Debian's releases in QEMU, and records the
// results. `make kernels` runs the programs and writes testdata/kernels.json, which is the source of
// docs/results/kernels.md.
package kernels

import (
	"encoding/json"
	"os"
	"strings"
)

// record holds the results on one kernel.
type record struct {
	Suite   string            // Debian release
	Kernel  string            // kernel release, such as 6.1.0-56-amd64
	Lacks   []string          // missing features, in the order of `verbena version --kernel`
	Results map[string]string // results by "USER PROGRAM"; a result is "ok" or the failure
}

// users and programs list the combinations that run on each kernel.
var (
	users    = []string{"root", "nobody"}
	programs = []string{"ibv_devinfo", "ibv_rc_pingpong", "ibv_rc_pingpong -e", "ib_write_bw", "rping", "Go under run",
		"Go on the socket", "signals", "fork"}
)

// leftOverDescriptorsResult is the result of a program that keeps descriptors open, because a signal interrupted the
// call that would have returned them.
const leftOverDescriptorsResult = "ok, but descriptors are left over"

const recordsFile = "testdata/kernels.json"

func readRecords() (list []record, err error) {
	b, err := os.ReadFile(recordsFile)
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	return list, err
}

// parseRecord separates the lines printed by the guest.
func parseRecord(suite, out string) record {
	r := record{Suite: suite, Results: map[string]string{}}
	for line := range strings.Lines(out) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch word {
		case "kernel":
			r.Kernel = rest
		case "lacks":
			r.Lacks = append(r.Lacks, rest)
		case "result":
			name, result, _ := strings.Cut(rest, " = ")
			r.Results[name] = result
		}
	}
	return r
}

// failedPrograms lists the programs that did not pass, in the order of programs.
func (r *record) failedPrograms(user string) (list []string) {
	for _, p := range programs {
		if got := r.Results[user+" "+p]; got != "ok" && got != leftOverDescriptorsResult {
			list = append(list, p)
		}
	}
	return list
}
