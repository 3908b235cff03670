//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"verbena/test/pyverbs"
)

// TestPyverbs runs rdma-core's own tests. Every test must pass, or have a recorded reason to fail or to skip.
func TestPyverbs(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3", "/usr/bin/python3")
	needCondition(t, exec.Command("/usr/bin/python3", "-c", "import pyverbs.device").Run() == nil,
		"python3-pyverbs: scripts/deps installs it")
	run, err := filepath.Abs("../pyverbs/run")
	if err != nil {
		t.Fatal(err)
	}
	recorded, _, err := pyverbs.VerbenaResults()
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := pyverbs.ReadReasons()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range packetPaths {
		t.Run(path.name, func(t *testing.T) {
			t.Parallel()
			w := startService(t, testUser{"user", uint32(os.Getuid())}, "",
				append([]string{"--link", "rxe0=" + unusedAddr()}, path.args...)...)
			cmd := w.verbenaCommand(w.contextWithTimeout(240), "run", "--", run, "rxe0", "1", "1")
			if cache, err := os.UserCacheDir(); err == nil {
				cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache) // this cache may contain the tests
			}
			out, runErr := cmd.Output()
			got, err := pyverbs.Parse(bytes.NewReader(out))
			if err != nil {
				t.Fatalf("%v: %v\n%s", runErr, err, out)
			}
			for _, c := range pyverbs.Mismatches(got, recorded, reasons) {
				t.Error(c)
			}
			t.Logf("passing tests: got %d, want %d as recorded", got.Count(pyverbs.OK), recorded.Count(pyverbs.OK))
			w.awaitNoProgramObjects()
		})
	}
}
