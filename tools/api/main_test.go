package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFindNonPublicUses tests that check finds types of non-public packages in every position of a signature, unless an
// alias names the type.
func TestFindNonPublicUses(t *testing.T) {
	root := writeFiles(t, map[string]string{
		"go.mod":      "module verbena\n\ngo 1.26.0\n",
		"docs/api.md": "| package |\n|---|\n| `open` |\n",
		"closed/c.go": "package closed\n\ntype T struct{}\n\ntype Named struct{}\n",
		"open/o.go": `package open

import "verbena/closed"

type Alias = closed.Named

type S struct {
	Field  map[string][]*closed.T
	hidden closed.T
}

func (S) Method() <-chan closed.T { return nil }
func (S) Fine() closed.Named      { return closed.Named{} }
func (S) inner() closed.T         { return closed.T{} }

type I interface{ Do(func(closed.T)) }

func F(...closed.T) Alias { return Alias{} }

var V [2]closed.T

func G(s S) error { return nil }
`,
	})
	faults, err := findNonPublicUses(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range faults {
		name, _, _ := strings.Cut(f, " ")
		got = append(got, strings.TrimPrefix(name, "open."))
	}
	if want := []string{"F", "I.Do", "S.Field", "S.Method", "V"}; !slices.Equal(got, want) {
		t.Errorf("check: got faults at %q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(root, "docs/api.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := findNonPublicUses(root); err == nil {
		t.Error("check of an empty page: got no error")
	}
}

// writeFiles writes files to a new folder and returns the folder.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestFindIncompatibleChanges tests that changes distinguishes incompatible changes from compatible ones.
func TestFindIncompatibleChanges(t *testing.T) {
	module := func(page, text string) string {
		return writeFiles(t, map[string]string{
			"go.mod":      "module verbena\n\ngo 1.26.0\n",
			"docs/api.md": page,
			"a/a.go":      text,
			"b/b.go":      "package b\n",
		})
	}
	const both = "| `a` |\n| `b` |\n"
	old := module(both, "package a\n\nfunc F(int) {}\n\nfunc G() {}\n\ntype T struct{ X int }\n")
	for _, c := range []struct {
		name, root string
		want       []string
	}{
		{"the same", old, nil},
		{"additions", module(both,
			"package a\n\nfunc F(int) {}\n\nfunc G() {}\n\nfunc H() {}\n\ntype T struct{ X, Y int }\n"), nil},
		{"another parameter, no function, no field",
			module(both, "package a\n\nfunc F(string) {}\n\ntype T struct{ Y int }\n"), []string{"a: F", "a: G", "a: T.X"}},
		{"a package that is not public any more",
			module("| `a` |\n", "package a\n\nfunc F(int) {}\n\nfunc G() {}\n\ntype T struct{ X int }\n"),
			[]string{"b: the package is not public any more"}},
	} {
		got, err := findIncompatibleChanges(old, c.root, io.Discard)
		if err != nil {
			t.Fatalf("%s: changes: %v", c.name, err)
		}
		same := slices.EqualFunc(got, c.want, strings.HasPrefix)
		if !same {
			t.Errorf("%s: changes: got %q, want %q", c.name, got, c.want)
		}
	}
}
