package service

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// removingFunctions lists the functions of the standard library and of x/sys/unix that remove a file or its content.
var removingFunctions = map[string][]string{
	"os": {"Remove", "RemoveAll", "Rename", "Truncate", "Create", "OpenRoot", "WriteFile", "O_TRUNC"},
	"unix": {"Unlink", "Unlinkat", "Rmdir", "Rename", "Renameat", "Renameat2", "Truncate",
		"Ftruncate", "Creat", "O_TRUNC", "Fallocate"},
	"syscall": {"Unlink", "Unlinkat", "Rmdir", "Rename", "Renameat", "Truncate", "Ftruncate",
		"Creat", "O_TRUNC", "Fallocate"},
}

// removingMethods lists methods of os.File and os.Root that remove a file or its content.
var removingMethods = []string{"Truncate", "RemoveAll"}

// findRemovals returns the calls in a source file that may remove a file, as "file function call".
func findRemovals(t *testing.T, root, path string) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]string{} // maps the local name of a package in the file to its path
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if i.Name != nil {
			packages[i.Name.Name] = name
		} else {
			packages[name] = name
		}
	}
	for _, d := range file.Decls {
		function := "-"
		if f, ok := d.(*ast.FuncDecl); ok {
			function = f.Name.Name
		}
		ast.Inspect(d, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of := "file"
			if x, ok := s.X.(*ast.Ident); ok && packages[x.Name] != "" {
				of = packages[x.Name]
			}
			if slices.Contains(removingFunctions[of], s.Sel.Name) || of == "file" && slices.Contains(removingMethods,
				s.Sel.Name) {
				found = append(found, fmt.Sprintf("%s %s %s.%s", filepath.ToSlash(rel), function, of, s.Sel.Name))
			}
			return true
		})
	}
	return found
}

// TestRemovalsAreDocumented tests that docs/results/removals.md lists each call in the repository that may remove a
// file or its content, with its guard, and no others.
func TestRemovalsAreDocumented(t *testing.T) {
	root := ".."
	page, err := os.ReadFile(filepath.Join(root, "docs/results/removals.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+\\.go [^`]+)` \\| (.+) \\|$").FindAllSubmatch(page, -1) {
		listed[string(m[1])] = false
		if len(bytes.TrimSpace(m[2])) == 0 {
			t.Errorf("docs/results/removals.md: got no guard for %s, want one", m[1])
		}
	}
	files := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		for _, r := range findRemovals(t, root, path) {
			if _, ok := listed[r]; !ok {
				t.Errorf("docs/results/removals.md: got no row, want\n%s", r)
			}
			listed[r] = true
		}
		return nil
	})
	if err != nil || files < 50 {
		t.Fatalf("source files: got %d and error %v, want at least 50", files, err)
	}
	for r, found := range listed {
		if !found {
			t.Errorf("docs/results/removals.md: got a row for the missing call %s, want none", r)
		}
	}
}
