//go:build e2e

package e2e

import (
	"testing"
)

// TestRdmanet: the tests of package rdmanet that need no device of their own, on one of a service.
func TestRdmanet(t *testing.T) {
	t.Parallel()
	tests := build(t, "rdmanet-tests", func(path string) []string {
		return []string{"go", "test", "-c", "-o", path, "verbena/rdmanet"}
	})
	w := startService(t, users()[0], "", "--link", "rxe0="+loopback())
	c := w.cmd(w.deadline(100), "run", "--", tests, "-test.v", "-test.run", "^(TestConn|TestFlow|TestHTTP|TestListener|TestCM|TestKilledPeer)$")
	c.Env = append(c.Env, "VERBS_DEVICE=rxe0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if r := w.resources(); len(r) != 0 {
		t.Errorf("left: %v", r)
	}
}
