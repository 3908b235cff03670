package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCheck tests that types of unlisted packages are found in every position of a signature, unless an alias names
// them.
func TestCheck(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
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
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	faults, err := check(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range faults {
		name, _, _ := strings.Cut(f, " ")
		got = append(got, strings.TrimPrefix(name, "open."))
	}
	if want := []string{"F", "I.Do", "S.Field", "S.Method", "V"}; !slices.Equal(got, want) {
		t.Errorf("faults at %q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(root, "docs/api.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := check(root); err == nil {
		t.Error("empty page: got no error")
	}
}
