//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// buildSuite builds the tests of package verbs as a program.
func buildSuite(t *testing.T) string {
	t.Helper()
	return buildProgram(t, "verbs-suite", func(path string) []string {
		return []string{"go", "test", "-c", "-tags", "e2e", "-o", path, "verbena/test/suite"}
	})
}

// TestVerbs runs the tests of packages verbs and cm on devices of a service, over both paths. The tests open
// devices by the device files of `verbena run`, or by the service's socket.
func TestVerbs(t *testing.T) {
	t.Parallel()
	suite := buildSuite(t)
	all := matrixCells()
	for i, place := range all {
		t.Run(place.name, func(t *testing.T) {
			mine := func(way int) bool { return fullMatrix || way%len(all) == i } // each way of opening runs in one of the cells
			w := startService(t, place.user, "", place.args...)
			env := []string{"VERBS_DEVICE=rxe0", "VERBS_ADDR=" + place.addr, "VERBS_REPORTS=1"}
			if mine(0) {
				c := w.verbenaCommand(w.contextWithTimeout(100), "run", "--", suite, "-test.v")
				c.Env = append(c.Env, env...)
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
			if mine(1) {
				c := w.verbenaCommand(w.contextWithTimeout(100))
				c.Path, c.Args = suite, []string{suite, "-test.v"}
				c.Env = append(append(c.Env, env...), "VERBS_SERVICE="+w.socket)
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("through the socket: %v\n%s", err, out)
				}
			}
			w.awaitNoProgramObjects()
		})
	}
}

// TestVerbsOnEFA runs the tests of SRD by the device files of `verbena run`, where the doorbells are stores.
func TestVerbsOnEFA(t *testing.T) {
	t.Parallel()
	suite := buildSuite(t)
	w := startService(t, matrixCells()[0].user, "", "--link", "efa0="+unusedAddr()+",personality=efa")
	c := w.verbenaCommand(w.contextWithTimeout(100), "run", "--", suite, "-test.v", "-test.run", "TestSRD")
	c.Env = append(c.Env, "VERBS_EFA=efa0")
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestSRD") {
		t.Errorf("%v\n%s", err, out)
	}
	w.awaitNoProgramObjects()
}

// TestVerbsOnSharedService runs the same tests over the socket of a root service as another user. No resources may
// remain charged to the user.
func TestVerbsOnSharedService(t *testing.T) {
	t.Parallel()
	needRoot(t)
	suite := buildSuite(t)
	addr := unusedAddr()
	w := startService(t, testUser{"root", 0}, "", "--link", "rxe0="+addr, "--mode", "0666")
	os.Chmod(filepath.Dir(w.socket), 0o755)
	c := w.asUser(65534).verbenaCommand(w.contextWithTimeout(100))
	c.Path, c.Args = suite, []string{suite, "-test.v"}
	c.Env = append(c.Env, "VERBS_DEVICE=rxe0", "VERBS_ADDR="+addr, "VERBS_SERVICE="+w.socket)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	w.awaitNoProgramObjects()
	if out := w.mustRun("res", "show"); strings.Contains(out, "65534") {
		t.Errorf("remaining charges of the user: got %s", out)
	}
}

// TestVerbsWithoutSystemCalls tests that a program over the socket posts and polls without system calls, with two
// exceptions. One call wakes a service that sleeps because the program had no processor for some time. The other call
// is sched_yield(2) after a poll without a completion.
func TestVerbsWithoutSystemCalls(t *testing.T) {
	needProgram(t, "strace", "strace")
	suite := buildSuite(t)
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	trace := filepath.Join(t.TempDir(), "trace")
	c := exec.CommandContext(w.contextWithTimeout(100), "strace", "-f", "-e", "signal=none", "-o", trace, suite, "-test.v",
		"-test.run", "TestQuiet")
	c.Env = append(os.Environ(), "VERBS_DEVICE=rxe0", "VERBS_SERVICE="+w.socket, "VERBS_POSTS=1000000")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	thread, calls, over := "", map[string]int{}, false
	for line := range strings.Lines(string(text)) {
		id, call, _ := strings.Cut(line, " ")
		call = strings.TrimSpace(call)
		switch {
		case strings.HasPrefix(call, "getpgid(1073741825"):
			thread = id
		case strings.HasPrefix(call, "getpgid(1073741826"):
			over = true
		case id == thread && !over:
			if name, _, found := strings.Cut(call, "("); found && !strings.HasPrefix(name, "<") {
				calls[name]++
			}
		}
	}
	if !over {
		t.Fatalf("trace: got no end of the loop: %d bytes", len(text))
	}
	total := 0
	for name, n := range calls {
		if name != "sched_yield" {
			total += n
		}
	}
	t.Logf("calls of 1,000,000 posts and polls: %v", calls)
	if total > 10_000 {
		t.Errorf("system calls in 1,000,000 posts and polls: got %d: %v", total, calls)
	}
}
