//go:build e2e

package e2e

import (
	"os/exec"
	"testing"
	"time"
)

// TestServiceEndBlocksNoProgram tests that no program blocks for ever after its service has ended. The program
// ib_write_lat polls memory that its peer writes to. The program ibv_srq_pingpong waits for receives of a shared
// receive queue, which an orderly end does not flush.
func TestServiceEndBlocksNoProgram(t *testing.T) {
	t.Parallel()
	needProgram(t, "perftest", "ib_write_lat")
	needProgram(t, "ibverbs-utils", "ibv_srq_pingpong")
	for program, args := range map[string][]string{
		"ib_write_lat":     {"-d", "rxe0", "-x", "1", "-F", "-n", "5000000"},
		"ibv_srq_pingpong": {"-d", "rxe0", "-g", "1", "-n", "100000000"},
	} {
		for _, how := range []string{"stop", "kill"} {
			t.Run(program+", "+how, func(t *testing.T) {
				t.Parallel()
				w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
				server, client := startConnectedPair(t, w, program, args)
				if how == "stop" {
					w.mustRun("stop")
				} else if err := w.serve.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				for name, c := range map[string]*exec.Cmd{"server": server, "client": client} {
					if code := waitForExitWithin(t, name, c, 30*time.Second); code == 0 {
						t.Errorf("%s: got exit code 0 after the end of the service", name)
					}
				}
			})
		}
	}
}
