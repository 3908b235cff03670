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

// lint runs the command on a repository and returns its verdict and its output.
func lint(t *testing.T, o options) (bool, string) {
	t.Helper()
	var out strings.Builder
	ok, err := run(o, &out)
	if err != nil {
		t.Fatal(err)
	}
	return ok, out.String()
}

// TestRatchet: the number of findings of a listed package cannot grow, and a package that is not listed has none.
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
			t.Errorf("%s %q: got %v, want %v and %q; output:\n%s", step.file, step.content, ok, step.ok, step.output, out)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "p/p.go"), []byte(one), 0o644); err != nil {
		t.Fatal(err)
	}
	lint(t, options{root: root, update: true})
	content, err := os.ReadFile(filepath.Join(root, todoFile))
	if want := "p 1\n"; err != nil || string(content) != want {
		t.Errorf("%s: got %q, %v, want %q", todoFile, content, err, want)
	}
}

// TestSince: only findings in changed lines are listed.
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
		t.Errorf("got %v and %q, want one line %q", ok, out, want)
	}
}

// TestExceptions: an exception allows its finding. One that no finding needs is an error, and so are twenty.
func TestExceptions(t *testing.T) {
	exception := "p.go\tperson\tNobody\ta quotation\n"
	root := repository(t, map[string]string{"p.go": "package p\n\n// Nobody waits.\n", exceptionsFile: exception})
	git(t, root, "init", "-q")
	if ok, out := lint(t, options{root: root}); !ok {
		t.Errorf("with an exception: got %s", out)
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

// TestCommits: subjects and bodies of a range of revisions are checked, trailers and reverts are not.
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
		t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
	}
	if _, err := commits(root, "absent..HEAD"); err == nil {
		t.Error("a revision that does not exist: got no error")
	}
}

// TestStandardLibrary: the rules accept the sentences of the standard library, but for two in a thousand.
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
		// The library is in American spelling, and a line of code is not a sentence.
		if rule != "spelling" && rule != "columns" && n*1000 > 2*r.sentences {
			t.Errorf("%s: got %d findings in %d sentences, want at most 2 in 1,000", rule, n, r.sentences)
		}
	}
}
