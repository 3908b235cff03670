//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRecoveryRecipes runs the program and the script of docs/recovery.md without changes.
func TestRecoveryRecipes(t *testing.T) {
	t.Parallel()
	needProgram(t, "gcc", "cc")
	_, err := os.Stat("/usr/include/infiniband/verbs.h")
	needCondition(t, err == nil, "libibverbs-dev")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../examples/recovery")); err != nil {
		t.Fatal(err)
	}
	w := startService(t, testUser{"self", uint32(os.Getuid())}, "", "--link", "rxe0="+unusedAddr())
	if err := os.Symlink(verbenaBinary(t), filepath.Join(dir, "verbena")); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(w.contextWithTimeout(200), "sh", "recover.sh")
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "VERBENA_SOCKET="+w.socket)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("recover.sh: %v\n%s", err, out)
	}
	// The script makes five resets. One of the resets happens twice.
	if d := w.firstDevice(); d.Resets != 6 || d.Contexts+d.Zombies != 0 {
		t.Errorf("device: got %+v, want 6 resets and no contexts", d)
	}
	if !strings.Contains(string(out), "finished: ") {
		t.Errorf("program: did not finish:\n%s", out)
	}
}
