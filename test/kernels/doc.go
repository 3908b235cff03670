// Package kernels runs programs under `verbena run` on the kernels of Debian's releases, in QEMU, and keeps what came of it: `make kernels` runs
// them and writes testdata/kernels.json, of which docs/results/kernels.md is made.
package kernels

import (
	"encoding/json"
	"os"
	"strings"
)

// Record is what was seen on one kernel.
type Record struct {
	Suite   string            // of Debian
	Kernel  string            // its release, such as 6.1.0-56-amd64
	Lacks   []string          // features, in the order of `verbena version --kernel`
	Results map[string]string // by "USER PROGRAM": "ok", or how it failed
}

// users and programs are those that are run on each.
var (
	users    = []string{"root", "nobody"}
	programs = []string{"ibv_devinfo", "ibv_rc_pingpong", "ibv_rc_pingpong -e", "ib_write_bw", "rping", "Go under run",
		"Go on the socket", "signals", "fork"}
)

// leftOver is the result of a program that finds descriptors open which a signal has kept it from learning of.
const leftOver = "ok, but descriptors are left over"

const recorded = "testdata/kernels.json"

func read() (list []Record, err error) {
	b, err := os.ReadFile(recorded)
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	return list, err
}

// parse takes the lines that the guest prints apart.
func parse(suite, out string) Record {
	r := Record{Suite: suite, Results: map[string]string{}}
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

// failed lists what has not passed, in the order of the programs.
func (r *Record) failed(user string) (list []string) {
	for _, p := range programs {
		if got := r.Results[user+" "+p]; got != "ok" && got != leftOver {
			list = append(list, p)
		}
	}
	return list
}
