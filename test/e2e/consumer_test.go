//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestContractConsumer builds examples/consumer in a separate module, like a user, and runs it.
func TestContractConsumer(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := newScratchDir(t)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "examples/consumer"))); err != nil {
		t.Fatal(err)
	}
	var out []byte
	for _, args := range [][]string{
		{"mod", "init", "example.org/consumer"},
		{"mod", "edit", "-require", "verbena@v0.0.0", "-replace", "verbena=" + root},
		{"mod", "tidy"},
		{"vet", "."},
		{"build", "-o", "consumer", "."},
	} {
		c := exec.Command("go", args...)
		c.Dir = dir
		if out, err = c.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	c := exec.Command("./consumer")
	c.Dir = dir
	if out, err = c.CombinedOutput(); err != nil || string(out) != "hello from a consumer\n" {
		t.Errorf("consumer: got %q, %v", out, err)
	}
}
