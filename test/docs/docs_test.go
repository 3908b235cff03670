// Package docs tests that the pages of the documentation find one another.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// pages are the Markdown files at the top, in docs and in docs/results.
func pages(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/results/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range found {
			rel, err := filepath.Rel(root, f)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, rel)
		}
	}
	return names
}

// docs/README.md lists every page of docs, and every file of results.
func TestIndex(t *testing.T) {
	index := read(t, "docs/README.md")
	for _, p := range pages(t) {
		name, inDocs := strings.CutPrefix(p, "docs/")
		if inDocs && name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

var (
	link  = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	block = regexp.MustCompile("(?s)```.*?```")
)

// Links lead to files that there are.
func TestLinks(t *testing.T) {
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(block.ReplaceAllString(read(t, p), ""), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(p), m[1])); err != nil {
				t.Errorf("%s: %v", p, err)
			}
		}
	}
}

// The glossary is in alphabetical order, and has no term twice.
func TestWords(t *testing.T) {
	var words []string
	for line := range strings.Lines(read(t, "docs/words.md")) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.Trim(cells[1], " -") == "" || strings.TrimSpace(cells[1]) == "word" {
			continue
		}
		words = append(words, strings.ToLower(strings.TrimSpace(cells[1])))
	}
	if len(words) < 30 {
		t.Errorf("%d words, want at least 30", len(words))
	}
	for i := range len(words) - 1 {
		if words[i] >= words[i+1] {
			t.Errorf("%q stands before %q", words[i], words[i+1])
		}
	}
}
