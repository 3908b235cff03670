//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestContractConsumer builds the consumer of docs/contract.md as a user of the module does, and runs it.
func TestContractConsumer(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs", "contract.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := scratch(t)
	for _, m := range recipe.FindAllSubmatch(doc, -1) {
		if err := os.WriteFile(filepath.Join(dir, string(m[1])), m[2], 0o644); err != nil {
			t.Fatal(err)
		}
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
		t.Errorf("got %q, %v", out, err)
	}
}
