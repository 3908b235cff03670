//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var recipe = regexp.MustCompile("(?ms)^```[a-z]+ ([a-z_.]+)\n(.*?)^```$")

// TestRecoveryRecipes runs the recipes of docs/recovery.md without changes.
func TestRecoveryRecipes(t *testing.T) {
	t.Parallel()
	needProgram(t, "gcc", "cc")
	_, err := os.Stat("/usr/include/infiniband/verbs.h")
	need(t, err == nil, "libibverbs-dev")
	doc, err := os.ReadFile("../../docs/recovery.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := map[string]bool{}
	for _, m := range recipe.FindAllSubmatch(doc, -1) {
		files[string(m[1])] = true
		if err := os.WriteFile(filepath.Join(dir, string(m[1])), m[2], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !files["recover_test.go"] {
		t.Fatal("docs/recovery.md: got no recover_test.go")
	}
	if err := os.CopyFS(dir, os.DirFS("../../examples/recovery")); err != nil {
		t.Fatal(err)
	}
	t.Run("C program and shell script", func(t *testing.T) {
		w := startService(t, user{"self", uint32(os.Getuid())}, "", "--link", "rxe0="+loopback())
		if err := os.Symlink(binary(t), filepath.Join(dir, "verbena")); err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(w.deadline(200), "sh", "recover.sh")
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "VERBENA_SOCKET="+w.socket)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("recover.sh: %v\n%s", err, out)
		}
		// The script makes five resets. One of the resets happens twice.
		if d := w.dev(); d.Resets != 6 || d.Contexts+d.Zombies != 0 {
			t.Errorf("device: got %+v, want 6 resets and no contexts", d)
		}
		if !strings.Contains(string(out), "finished: ") {
			t.Errorf("program: did not finish:\n%s", out)
		}
	})
	t.Run("Go test", func(t *testing.T) {
		// The overlay adds the file to the module without a change of the module's directory.
		root, err := filepath.Abs("../..")
		if err != nil {
			t.Fatal(err)
		}
		overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
			filepath.Join(root, "test", "recipe", "recover_test.go"): filepath.Join(dir, "recover_test.go"),
		}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(file, overlay, 0o644); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("go", "test", "-c", "-vet=off", "-o", filepath.Join(dir, "recover.test"), "-overlay", file,
			"./test/recipe")
		c.Dir = root
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		c = exec.Command("./recover.test", "-test.v", "-test.timeout=2m")
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestRecovery") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
