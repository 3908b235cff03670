//go:build e2e

package e2e

import (
	"testing"
)

// TestVerbs: the tests of packages verbs and cm on devices of a service, by the device files that `verbena run` shows, on both paths.
func TestVerbs(t *testing.T) {
	t.Parallel()
	suite := build(t, "verbs-suite", func(path string) []string {
		return []string{"go", "test", "-c", "-tags", "e2e", "-o", path, "verbena/verbs/internal/suite"}
	})
	for _, u := range users() {
		for _, path := range []string{"shortcut", "wire"} {
			t.Run(u.name+"/"+path, func(t *testing.T) {
				addr := loopback()
				args := []string{"--link", "rxe0=" + addr}
				if path == "wire" {
					args = append(args, "--wire")
				}
				w := startService(t, u, "", args...)
				c := w.cmd(w.deadline(100), "run", "--", suite, "-test.v")
				c.Env = append(c.Env, "VERBS_DEVICE=rxe0", "VERBS_ADDR="+addr)
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				if r := w.resources(); len(r) != 0 {
					t.Errorf("left: %v", r)
				}
			})
		}
	}
}
