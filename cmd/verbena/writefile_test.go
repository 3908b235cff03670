package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestWriteFileIsAllOrNothing tests that writeFile writes a file completely or not at all, and does not replace links
// or special files.
func TestWriteFileIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	content := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("written file: got %q, %v, want %q", b, err, want)
		}
	}
	if err := writeFile(path, text("one")); err != nil {
		t.Fatal(err)
	}
	content("one")
	if err := writeFile(link, text("two")); err != nil {
		t.Fatal(err)
	}
	content("two")
	if i, err := os.Lstat(link); err != nil || i.Mode()&os.ModeSymlink == 0 {
		t.Error("symbolic link: got a regular file, want the link")
	}
	wrong := errors.New("wrong")
	if err := writeFile(path, func(w io.Writer) error {
		io.WriteString(w, "three")
		return wrong
	}); !errors.Is(err, wrong) {
		t.Errorf("writeFile: got %v, want %v", err, wrong)
	}
	content("two")
	if err := writeFile("/dev/null", text("x")); err != nil {
		t.Error(err)
	}
	if i, err := os.Stat("/dev/null"); err != nil || i.Mode().IsRegular() {
		t.Fatal("/dev/null: got a regular file, want the device")
	}
	for _, p := range []string{dir, filepath.Join(dir, "none", "file")} {
		if err := writeFile(p, text("x")); err == nil {
			t.Errorf("%s: got success, want an error", p)
		}
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("files: got %d, want 2", len(list))
	}
}
