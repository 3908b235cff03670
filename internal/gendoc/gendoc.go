// Package gendoc keeps generated parts of documents up to date. A test calls [CheckSection], which fails if the part is
// stale. If UPDATE_DOCS is set in the environment, CheckSection rewrites the part.
package gendoc

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// CheckSection compares a part of a file with its generated text. In the file, the part is between these lines:
//
//	<!-- generated: NAME -->
//	<!-- end: NAME -->
func CheckSection(t testing.TB, file, name, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := replaceSection(string(text), name, want)
	switch {
	case err != nil:
		t.Fatalf("%s: %v", file, err)
	case fresh == string(text):
	case os.Getenv("UPDATE_DOCS") != "" && os.Getenv("CI") == "true":
		t.Fatalf("%s: part %q is out of date, and UPDATE_DOCS with CI=true would hide it", file, name)
	case os.Getenv("UPDATE_DOCS") != "":
		if err := os.WriteFile(file, []byte(fresh), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the part %q is out of date: run `make docs`", file, name)
	}
}

func replaceSection(text, name, want string) (string, error) {
	begin, end := fmt.Sprintf("<!-- generated: %s -->\n", name), fmt.Sprintf("<!-- end: %s -->\n", name)
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("no part %q between %q and %q", name, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + "\n" + strings.TrimSpace(want) + "\n\n" + end + after, nil
}
