package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFile writes a complete file or leaves the existing file unchanged. writeFile writes directly to a
// file that is not regular, such as /dev/stdout or a pipe.
func writeFile(path string, content func(io.Writer) error) error {
	fail := func(err error) error { return fmt.Errorf("write %s: %w", path, err) }
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		w := bufio.NewWriter(f)
		if err := errors.Join(content(w), w.Flush(), f.Close()); err != nil {
			return fail(err)
		}
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // replace the target of the link, not the link
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".verbena-*")
	if err != nil {
		return fail(err)
	}
	defer os.Remove(f.Name())
	w := bufio.NewWriter(f)
	if err := errors.Join(content(w), w.Flush(), f.Chmod(0o644), f.Close()); err != nil {
		return fail(err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fail(err)
	}
	return nil
}
