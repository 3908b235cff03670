package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// git runs git in a folder.
func git(t *testing.T, root string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// lint runs the command on a repository. It returns the result and the output.
func lint(t *testing.T, o options) (bool, string) {
	t.Helper()
	var out strings.Builder
	ok, err := run(o, &out)
	if err != nil {
		t.Fatal(err)
	}
	return ok, out.String()
}

// TestRatchet tests that the number of findings of a listed package cannot grow, and that an unlisted package must
// have no finding.
func TestRatchet(t *testing.T) {
	const one, two = "package p\n\n// Nobody waits.\n", "package p\n\n// Nobody waits.\n\n// Somebody waits.\n"
	root := repository(t, map[string]string{
		"p/p.go": two, "docs/a.md": "Right.\n", todoFile: "", "test/x/b.md": "Nobody.\n",
	})
	git(t, root, "init", "-q")
	if ok, _ := lint(t, options{root: root, update: true}); !ok {
		t.Error("update an empty list: got findings")
	}
	for _, step := range []struct {
		file, content string
		ok            bool
		output        string
	}{
		{"p/p.go", two, true, ""},
		{"p/p.go", one, true, "-update-todo"},
		{"p/p.go", two + "\n// Whoever waits.\n", false, "got 3 findings, tools/prose/todo.txt allows 2"},
		{"p/p.go", two, true, ""},
		{"docs/a.md", "Nobody waits.\n", false, "docs/a.md:1: person"},
		{"docs/a.md", "No thread waits.\n", true, ""},
	} {
		if err := os.WriteFile(filepath.Join(root, step.file), []byte(step.content), 0o644); err != nil {
			t.Fatal(err)
		}
		ok, out := lint(t, options{root: root})
		if ok != step.ok || !strings.Contains(out, step.output) {
			t.Errorf("%s with %q: got %v, want %v and %q in the output; output:\n%s",
				step.file, step.content, ok, step.ok, step.output, out)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "p/p.go"), []byte(one), 0o644); err != nil {
		t.Fatal(err)
	}
	lint(t, options{root: root, update: true})
	content, err := os.ReadFile(filepath.Join(root, todoFile))
	if want := "p 1\n"; err != nil || string(content) != want {
		t.Errorf("%s: got %q and error %v, want %q", todoFile, content, err, want)
	}
}

// TestSince tests that -since lists only findings in changed lines.
func TestSince(t *testing.T) {
	root := repository(t, map[string]string{"p.go": "package p\n\n// Nobody waits.\n\n// The end.\n"})
	git(t, root, "init", "-q")
	git(t, root, "add", "p.go")
	git(t, root, "commit", "-q", "-m", "p: begin")
	content := "package p\n\n// Nobody waits.\n\n// The end.\n\n// Somebody waits.\n"
	if err := os.WriteFile(filepath.Join(root, "p.go"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	ok, out := lint(t, options{root: root, since: "HEAD"})
	if want := "p.go:7: person: \"Somebody\""; ok || !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 {
		t.Errorf("lint -since: got %v and %q, want false and one line with the prefix %q", ok, out, want)
	}
}

// TestExceptions tests that an exception allows its finding. An exception without a finding is an error, and so is
// a list of twenty exceptions.
func TestExceptions(t *testing.T) {
	exception := "p.go\tperson\tNobody\ta quotation\n"
	root := repository(t, map[string]string{"p.go": "package p\n\n// Nobody waits.\n", exceptionsFile: exception})
	git(t, root, "init", "-q")
	if ok, out := lint(t, options{root: root}); !ok {
		t.Errorf("lint with an exception: got output %s, want success", out)
	}
	for _, content := range []string{
		exception + "p.go\tperson\twhoever\ta reason\n", strings.Repeat(exception, 20), "p.go person\n",
	} {
		if err := os.WriteFile(filepath.Join(root, exceptionsFile), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := run(options{root: root}, os.Stderr); err == nil {
			t.Errorf("exceptions %q: got no error", content)
		}
	}
}

// TestCommits tests that commits checks subjects and bodies, but not trailers and reverts.
func TestCommits(t *testing.T) {
	root := t.TempDir()
	git(t, root, "init", "-q")
	for _, message := range []string{
		"x: begin", "ib: add a queue\n\nThe queue holds events.\n\nSigned-off-by: Nobody <a@b>", "ib: added a queue",
		"ib: drop a queue\n\nNobody reads it.", "Revert \"Nobody\"",
	} {
		git(t, root, "commit", "-q", "--allow-empty", "-m", message)
	}
	found, err := commits(root, "HEAD~4..HEAD")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, f.rule+" "+f.text)
	}
	if want := "person Nobody, subject added"; strings.Join(got, ", ") != want {
		t.Errorf("commits: got %q, want %q", strings.Join(got, ", "), want)
	}
	if _, err := commits(root, "absent..HEAD"); err == nil {
		t.Error("commits of an absent revision: got no error")
	}
}

// TestStandardLibrary tests that each rule refuses at most 2 of 1,000 sentences of the standard library.
func TestStandardLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the standard library")
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	r, err := examine(options{root: root, paths: []string{"net/http", "sync", "runtime", "os", "crypto/tls"}})
	if err != nil {
		t.Fatal(err)
	}
	found := counts{}
	for _, f := range r.findings {
		found[f.rule]++
	}
	for rule, n := range found {
		// The library has American spelling, and its lines have no maximum length.
		if rule != "spelling" && rule != "columns" && n*1000 > 2*r.sentences {
			t.Errorf("rule %s: got %d findings in %d sentences, want at most 2 in 1,000", rule, n, r.sentences)
		}
	}
}
