package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// tracked returns the checked files of the repository, with paths relative to its root.
func tracked(root string) ([]string, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of the repository %s: %w", root, err)
	}
	var files []string
	for _, name := range strings.Split(string(out), "\x00") {
		if isChecked(name) && isPage(name) {
			files = append(files, name)
		}
	}
	return files, nil
}

// isPage reports whether a file of the repository is a Go file or a checked Markdown page.
func isPage(name string) bool {
	return !strings.HasSuffix(name, ".md") || strings.HasPrefix(name, "docs/") || !strings.Contains(name, "/")
}

// below returns the checked files below a folder. If the path is a file, below returns the file itself.
func below(folder string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && isChecked(filepath.ToSlash(name)) {
			files = append(files, name)
		}
		return err
	})
	return files, err
}

// unchecked lists the names of folders whose files are not checked.
var unchecked = set("testdata results vendor")

// isChecked reports whether a file is a Go file or a page, and is not in a folder of unchecked.
func isChecked(name string) bool {
	if slices.ContainsFunc(strings.Split(path.Dir(name), "/"), func(f string) bool { return unchecked[f] }) {
		return false
	}
	return strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".md")
}

// A finding is a violation of a rule.
type finding struct {
	file    string
	line    int
	rule    string
	text    string // words that violate the rule
	instead string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %q: %s", f.file, f.line, f.rule, f.text, f.instead)
}

// result is the result of a check of some files.
type result struct {
	findings  []finding
	sentences int
}

// checker checks files concurrently on several goroutines.
type checker struct {
	root string

	mu     sync.Mutex
	names  namer
	used   usedNames
	result result
	err    error // the first error
}

// check checks files below a root.
func check(root string, files []string) (result, error) {
	c := checker{root: root, names: namer{}, used: usedNames{}}
	queue := make(chan string)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for name := range queue {
				c.file(name)
			}
		})
	}
	for _, name := range files {
		queue <- name
	}
	close(queue)
	workers.Wait()
	c.result.findings = append(c.result.findings, c.names.findings()...)
	c.result.findings = append(c.result.findings, c.used.findings()...)
	slices.SortFunc(c.result.findings, byPlace)
	return c.result, c.err
}

// byPlace compares findings by file and line.
func byPlace(a, b finding) int {
	if a.file != b.file {
		return strings.Compare(a.file, b.file)
	}
	if a.line != b.line {
		return a.line - b.line
	}
	return strings.Compare(a.rule+a.text, b.rule+b.text)
}

// file checks a file and adds its findings to the result.
func (c *checker) file(name string) {
	content, err := os.ReadFile(filepath.Join(c.root, name))
	if os.IsNotExist(err) {
		return // the file was removed, but is still in the index of the repository
	}
	var r result
	var s *source
	switch {
	case err != nil:
	case strings.HasSuffix(name, ".md"):
		r = checkPage(name, content)
	default:
		if s, err = parse(name, content); s != nil && err == nil {
			r = checkSource(name, content, s)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.err == nil {
		c.err = err
	}
	if s != nil && err == nil {
		c.names.file(name, s)
		c.used.file(name, content, s)
	}
	c.result.findings = append(c.result.findings, r.findings...)
	c.result.sentences += r.sentences
}

// checkPage checks a Markdown page.
func checkPage(name string, content []byte) result {
	texts := parseMarkdown(content)
	return checkTexts(name, texts, pageLines(name, content, texts))
}

// checkSource checks a Go file, except the names of its types.
func checkSource(name string, content []byte, s *source) result {
	return checkTexts(name, s.texts, goLines(name, content, s))
}

// checkTexts checks the sentences of texts, and adds the other findings of the file.
func checkTexts(name string, texts []text, others []finding) result {
	r := result{findings: others}
	for i := range texts {
		for _, s := range split(&texts[i]) {
			r.sentences++
			r.findings = append(r.findings, checkSentence(name, &s)...)
		}
	}
	return r
}

// sentences checks the sentences of a text.
func sentences(name string, t *text) []finding {
	return checkTexts(name, []text{*t}, nil).findings
}

// checkSentence checks a sentence.
func checkSentence(name string, s *sentence) []finding {
	var found []finding
	review(s, func(r *rule, at span) {
		text := s.excerpt(at)
		instead := r.instead
		if right := corrections()[s.words[at.begin].low]; r.name == "spelling" {
			instead = "write " + right
		}
		found = append(found, finding{name, s.words[at.begin].line, r.name, text, instead})
	})
	return found
}
