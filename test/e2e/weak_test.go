//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// mostWeakSeeds limits the seeds that a test tries until a wrong program fails.
const mostWeakSeeds = 20

// TestWeakDeviceExposesMistakes runs programs with one mistake each. Such a program works on the ordinary device, and
// fails on a weak device with one of a few seeds. The same program without the mistake works on both.
func TestWeakDeviceExposesMistakes(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "weak")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for _, mistake := range []string{"source", "polls", "length", "order", "arm", "capacity", "keys"} {
		t.Run(mistake, func(t *testing.T) {
			run := func(form string, flags ...string) string {
				t.Helper()
				args := append(append([]string{"run"}, flags...), "--", program, mistake, form)
				lines := strings.SplitAfter(w.mustRun(args...), "\n")
				return lines[len(lines)-2]
			}
			if out := run("wrong"); out != "ok\n" {
				t.Errorf("the program with the mistake, on the ordinary device: got %q, want ok", out)
			}
			found := 0
			for seed := 1; seed <= mostWeakSeeds && found == 0; seed++ {
				if out := run("wrong", fmt.Sprintf("--weak=%d", seed)); strings.HasPrefix(out, "wrong: ") {
					found = seed
				}
			}
			if found == 0 {
				t.Fatalf("the program with the mistake works with %d seeds", mostWeakSeeds)
			}
			if out := run("right", fmt.Sprintf("--weak=%d", found)); out != "ok\n" {
				t.Errorf("the program without the mistake, with seed %d: got %q, want ok", found, out)
			}
		})
	}
	w.awaitNoProgramObjects()
}

// TestWeakDeviceRunsStandardPrograms runs programs of rdma-core on a weak device, with an event for each completion.
func TestWeakDeviceRunsStandardPrograms(t *testing.T) {
	t.Parallel()
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for seed, tool := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"} {
		t.Run(tool, func(t *testing.T) {
			needProgram(t, "ibverbs-utils", tool)
			pair := fmt.Sprintf("%[1]s -d rxe0 -g 1 -e -n 100 -s 512 -p %[2]s >/dev/null & for i in 1 2 3 4 5 6 7 8 9; do "+
				"sleep 0.2; %[1]s -d rxe0 -g 1 -e -n 100 -s 512 -p %[2]s 127.0.0.1 && break; done; wait", tool, unusedTCPPort())
			out := w.mustRun("run", fmt.Sprintf("--weak=%d", seed), "--", "sh", "-c", pair)
			if !strings.Contains(out, "100 iters") {
				t.Errorf("got %s, want 100 iterations", out)
			}
		})
	}
	w.awaitNoProgramObjects()
}
