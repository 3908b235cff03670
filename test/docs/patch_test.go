package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

var (
	diffLink    = regexp.MustCompile(`\]\((\S+\.diff)\)`)
	patchedFile = regexp.MustCompile(`(?m)^diff --git a/(\S+) b/`)
	testCommand = regexp.MustCompile(`(?m)^go test (.*) -run '(.*)'$`)
)

// TestPatchesApply tests that the patches of the pages for contributors apply and, without -short, that their tests
// pass in an overlay of this tree. Each patch touches no more product files than its page states, and adds a new line.
func TestPatchesApply(t *testing.T) {
	for _, page := range []struct {
		name    string
		product []string
		adds    string // part of a line that the patch adds to the first file
	}{
		{"docs/add-a-fault.md", []string{"internal/fault/kinds.go", "link/rule.go"}, "Name: \"truncate\""},
		{"docs/add-a-provider.md", []string{
			"verbs/device.go", "verbs/provider/tiny/queue_unsafe.go", "verbs/provider/tiny/tiny.go",
		}, "tiny.Provider{}"},
		{"docs/add-a-verb.md", []string{
			"uapi/verb/table.go", "engine/device.go", "ib/device.go", "ib/driver.go", "uapi/ioctl_attrs.go",
			"uverbs/ioctl_methods.go",
		}, "Name: \"query_comp_cntr_caps\""},
	} {
		t.Run(page.name, func(t *testing.T) {
			text := readPage(t, page.name)
			diffs := diffLink.FindAllStringSubmatch(text, -1)
			command := testCommand.FindStringSubmatch(text)
			if len(diffs) != 1 || command == nil {
				t.Fatalf("got %d patches and the command %q, want one of each", len(diffs), command)
			}
			diff := readPage(t, filepath.Join("docs", diffs[0][1]))
			overlay, product := applyPatch(t, t.TempDir(), diff)
			slices.Sort(product)
			if want := slices.Sorted(slices.Values(page.product)); !slices.Equal(product, want) {
				t.Errorf("files of the product: got %q, want %q", product, want)
			}
			if !strings.Contains(diff, page.adds) || strings.Contains(readPage(t, page.product[0]), page.adds) {
				t.Errorf("addition of %s to %s: got none, or it exists already, want a new line", page.adds, page.product[0])
			}
			if !testing.Short() { // compiles most of the module
				runPatchedTests(t, overlay, command[1], command[2])
			}
		})
	}
}

// runPatchedTests runs tests of packages with an overlay.
func runPatchedTests(t *testing.T, overlay, packages, tests string) {
	t.Helper()
	args := []string{"test", "-v", "-vet=off", "-overlay=" + overlay, "-run=^(" + tests + ")$"}
	if raceEnabled() {
		args = append(args, "-race") // packages are already compiled with -race
	}
	c := exec.Command("go", append(args, strings.Fields(packages)...)...)
	c.Dir = repoRoot
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: got %v, want success:\n%s", c, err, out)
	}
	for name := range strings.SplitSeq(tests, "|") {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("test %s: got no run, want one:\n%s", name, out)
		}
	}
}

// applyPatch applies a patch to copies of its files, in dir. It returns the path of an overlay with the copies for the
// go command, and the names of the files other than tests.
func applyPatch(t *testing.T, dir, diff string) (overlay string, product []string) {
	t.Helper()
	top, err := filepath.Abs(repoRoot)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, m := range patchedFile.FindAllStringSubmatch(diff, -1) {
		name := m[1]
		files = append(files, name)
		if !strings.HasSuffix(name, "_test.go") {
			product = append(product, name)
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(top, name))
		if os.IsNotExist(err) {
			continue // a new file
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("git", "apply", "--whitespace=error-all", "-")
	c.Dir, c.Stdin = dir, strings.NewReader(diff)
	// There is no repository, so paths are relative to dir.
	c.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git apply: got %v, want success: renew the patch\n%s", err, out)
	}
	replace := map[string]string{}
	for _, name := range files {
		replace[filepath.Join(top, name)] = filepath.Join(dir, name)
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return overlay, product
}

// raceEnabled reports whether the race detector is enabled.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-race" && s.Value == "true"
	})
}
