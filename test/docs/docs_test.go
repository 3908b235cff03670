// Package docs tests the links and lists of the documentation.
package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const repoRoot = "../.."

func readPage(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repoRoot, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// listPages returns the Markdown files at the top, in docs, in docs/results and in examples.
func listPages(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/results/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(repoRoot, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("glob %s: got error %v or no pages, want pages", pattern, err)
		}
		for _, f := range found {
			rel, err := filepath.Rel(repoRoot, f)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, rel)
		}
	}
	return names
}

// TestIndexListsPages tests that docs/README.md lists every page of docs.
func TestIndexListsPages(t *testing.T) {
	index := readPage(t, "docs/README.md")
	for _, p := range listPages(t) {
		name, inDocs := strings.CutPrefix(p, "docs/")
		if inDocs && name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md: got no entry for %s, want one", name)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	block   = regexp.MustCompile("(?s)```.*?```")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	marks   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// headingAnchors returns the anchors of the headings of a page, in the format of GitHub.
func headingAnchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		names[strings.ReplaceAll(marks.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}

// TestLinksResolve tests that links refer to existing files, and to existing headings of pages.
func TestLinksResolve(t *testing.T) {
	for _, p := range listPages(t) {
		text := readPage(t, p)
		for _, m := range link.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
			to := filepath.Join(filepath.Dir(p), m[1])
			if m[1] == "" {
				to = p
			}
			if _, err := os.Stat(filepath.Join(repoRoot, to)); err != nil {
				t.Errorf("link in %s: got %v, want an existing file", p, err)
				continue
			}
			if m[2] != "" && !headingAnchors(readPage(t, to))[m[2]] {
				t.Errorf("link in %s: got no heading in %s for #%s, want one", p, to, m[2])
			}
		}
	}
}

// TestPagesNameReadersAndNextPage checks that every page of docs begins with a sentence that names its readers, and
// ends with a link to the next step. Every code block must have a language.
func TestPagesNameReadersAndNextPage(t *testing.T) {
	blockStart := regexp.MustCompile("(?m)^ *```(.*)\n(?s:.*?)\n *```$")
	for _, p := range listPages(t) {
		text := readPage(t, p)
		for _, m := range blockStart.FindAllStringSubmatch(text, -1) {
			if m[1] == "" {
				t.Errorf("%s: got a block without a language, want one", p)
			}
		}
		if filepath.Dir(p) != "docs" {
			continue
		}
		paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
		first := paragraphs[min(1, len(paragraphs)-1)]
		if !strings.HasPrefix(paragraphs[0], "# ") || !strings.HasPrefix(first, "This page is for ") {
			t.Errorf("%s: got the beginning %q, want \"This page is for ...\"", p, first)
		}
		if last := paragraphs[len(paragraphs)-1]; !strings.HasPrefix(last, "Next: ") || !link.MatchString(last) {
			t.Errorf("%s: got the end %q, want \"Next: [page](page)\"", p, last)
		}
	}
}

// TestGlossaryIsSorted tests that the glossary is in alphabetical order, without duplicates.
func TestGlossaryIsSorted(t *testing.T) {
	var words []string
	for line := range strings.Lines(readPage(t, "docs/words.md")) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.Trim(cells[1], " -") == "" || strings.TrimSpace(cells[1]) == "word" {
			continue
		}
		words = append(words, strings.ToLower(strings.TrimSpace(cells[1])))
	}
	if len(words) < 30 {
		t.Errorf("words: got %d, want at least 30", len(words))
	}
	for i := range len(words) - 1 {
		if words[i] >= words[i+1] {
			t.Errorf("order of words: got %q before %q, want alphabetical order", words[i], words[i+1])
		}
	}
}

// TestThreadNamesExist tests that docs/threads.md names functions of the linked files, and identifiers of their
// packages.
func TestThreadNamesExist(t *testing.T) {
	page := readPage(t, "docs/threads.md")
	var packages strings.Builder
	entry := regexp.MustCompile("\\[`(?:(\\w+)\\.)?(\\w+)`\\]\\(\\.\\./([\\w/]+\\.go)\\)")
	functions := entry.FindAllStringSubmatch(page, -1)
	if len(functions) < 6 {
		t.Fatalf("docs/threads.md: got %d functions, want at least 6", len(functions))
	}
	for _, m := range functions {
		receiver := `(?:\(.*\) )?`
		if m[1] != "" {
			receiver = `\(\w+ \*?` + m[1] + `\) `
		}
		if !regexp.MustCompile(`(?m)^func ` + receiver + m[2] + `\(`).MatchString(readPage(t, m[3])) {
			t.Errorf("docs/threads.md: %s has no function %s.%s", m[3], m[1], m[2])
		}
		files, err := filepath.Glob(filepath.Join(repoRoot, filepath.Dir(m[3]), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			packages.Write(b)
		}
	}
	for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(page, -1) {
		if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(packages.String()) {
			t.Errorf("docs/threads.md: no linked package has the name %s", m[1])
		}
	}
}

// TestJobsNameMissingFiles tests the errors of the scripts of jobs without a folder, and with an empty one.
func TestJobsNameMissingFiles(t *testing.T) {
	scripts, err := filepath.Glob("../../recipes/jobs/*.sh")
	if err != nil || len(scripts) < 2 {
		t.Fatalf("scripts: got %v and error %v, want two or more", scripts, err)
	}
	for _, s := range scripts {
		for _, c := range []struct {
			args []string
			want string
		}{
			{nil, "usage: " + filepath.Base(s) + " "},
			{[]string{t.TempDir()}, ": build "},
		} {
			out, err := exec.Command(s, c.args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%s %v: got error %v and %q, want a failure that contains %q", s, c.args, err, out, c.want)
			}
		}
	}
}
