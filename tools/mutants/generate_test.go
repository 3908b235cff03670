package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGenerate tests that generate finds the places of a file for mutants, and checks the names and the text of the
// mutants.
func TestGenerate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example\n\ngo 1.26\n")
	write("p/p.go", `package p

import (
	"fmt"
	"syscall"
)

const maxThings = 7

type file struct{ uid, n int }

func (f *file) checkTrapped() error { return nil }

func (f *file) isAlive() bool { return true }

func (f *file) use(uid int, short bool) error {
	if err := f.checkTrapped(); err != nil {
		return err
	}
	if f.uid != uid || !f.isAlive() {
		return syscall.EPERM
	}
	if f.n >= maxThings {
		return fmt.Errorf("too many: %w", syscall.EMFILE)
	}
	for i := 0; i < maxThings; i++ {
		f.n++
	}
	switch {
	case short:
		return syscall.EINVAL
	case f.n == 3:
		return nil
	}
	return nil
}
`)
	write("principal/principal.go", `package principal

type Principal struct{ Manager bool }

func (p Principal) HasCapability(int) bool { return true }

func (p Principal) SeesAccount(int) bool { return p.Manager }
`)
	write("q/q.go", `package q

import "example/principal"

type set struct{ Manager bool }

func (s set) HasCapability(int) bool { return s.Manager }

type peer struct {
	principal.Principal
	gone bool
}

func use(s set, p peer, list func(sees func(int) bool)) bool {
	p.Manager = !p.gone
	list(p.SeesAccount)
	return s.HasCapability(1) && p.HasCapability(2) && p.Manager
}

func covers(have, want uint) bool { return want&^have == 0 && want&^have != 8 }
`)
	got, err := generateMutants(dir, []string{"p", "q"}, (*generator).collectChecks)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"p/p.go:file.use:identity:1 func() error { _ = f.checkTrapped(); return nil }()",
		"p/p.go:file.use:user:1 (f.uid != uid && false)",
		"p/p.go:file.use:identity:2 (f.isAlive() || true)",
		"p/p.go:file.use:bound:1 (f.n >= maxThings && false)",
		"p/p.go:file.use:refusal:1 ((f.uid != uid || !f.isAlive()) && false)",
		"p/p.go:file.use:refusal:2 (short && false)",
		"q/q.go:use:identity:1 func(int) bool { _ = p.SeesAccount; return true }",
		"q/q.go:use:identity:2 (p.HasCapability(2) || true)",
		"q/q.go:use:identity:3 (p.Manager || true)",
		"q/q.go:covers:identity:1 (want&^have == 0 || true)",
	}
	var list []string
	for i := range got {
		list = append(list, fmt.Sprint(&got[i], " ", got[i].edit.text))
	}
	if !slices.Equal(list, want) {
		t.Errorf("generate: got\n%s\nwant\n%s", strings.Join(list, "\n"), strings.Join(want, "\n"))
	}
	source, err := os.ReadFile(filepath.Join(dir, "p/p.go"))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := got[1].apply(string(source)); err != nil ||
		!strings.Contains(s, "if (f.uid != uid && false) || !f.isAlive() {") {
		t.Errorf("apply the second mutant: got error %v and source\n%s", err, s)
	}
	if _, err := got[1].apply("x" + string(source)); err == nil {
		t.Error("apply to a source that has changed: got success, want an error")
	}
}

// TestUnseenMutantsExist tests that the mutants of unseen.txt exist, and that at least 200 generated mutants are not in
// unseen.txt.
func TestUnseenMutantsExist(t *testing.T) {
	all, err := generateMutants("../..", guardedPackages, (*generator).collectChecks)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for i := range all {
		if names[all[i].name] {
			t.Errorf("generate: got two mutants with the name %s", &all[i])
		}
		names[all[i].name] = true
	}
	unseen, err := readUndetectableMutants("unseen.txt", all)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all) - len(unseen); n < 200 {
		t.Errorf("generate: got %d mutants, %d of them in unseen.txt, want at least 200 others", len(all), len(unseen))
	}
	bad := filepath.Join(t.TempDir(), "unseen.txt")
	for _, text := range []string{"p.go:f:bound:1 equivalent", all[0].name + "\n", all[0].name + " `other text` a\n",
		all[0].name + " a\n" + all[0].name + " b\n"} {
		if err := os.WriteFile(bad, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readUndetectableMutants(bad, all); err == nil {
			t.Errorf("readUndetectableMutants of %q: got success, want an error", text)
		}
	}
}

// TestUnseenDriverMutantsExist tests that the mutants of unseen-drivers.txt exist, and change the quoted text.
func TestUnseenDriverMutantsExist(t *testing.T) {
	all, err := generateDriverMutants("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readUndetectableMutants("unseen-drivers.txt", all); err != nil {
		t.Error(err)
	}
}
