package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// resultFile is the file for a result that a launcher writes at its end. A launcher cannot open a file then.
type resultFile struct {
	*os.File
	made bool // the file is new
	// shared is set if the file is the standard output or error, which may contain output of the program.
	shared bool
}

// openResultFile opens or creates a file. It leaves the content of an existing file unchanged.
func openResultFile(name string) (*resultFile, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		return &resultFile{File: f, made: true}, nil
	}
	if errors.Is(err, os.ErrExist) {
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666) // a symbolic link may name a file that does not exist
	}
	if err != nil {
		return nil, err
	}
	for _, std := range []*os.File{os.Stdout, os.Stderr} {
		if isSameRegularFile(f, std) { // continue at the offset of the program
			fd, err := unix.FcntlInt(std.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				break
			}
			f.Close()
			return &resultFile{File: os.NewFile(uintptr(fd), name), shared: true}, nil
		}
	}
	return &resultFile{File: f}, nil
}

func isSameRegularFile(a, b *os.File) bool {
	x, err := a.Stat()
	y, berr := b.Stat()
	return err == nil && berr == nil && x.Mode().IsRegular() && os.SameFile(x, y)
}

// abandon closes the file, and removes it if it is new.
func (f *resultFile) abandon() {
	f.Close()
	if f.made {
		os.Remove(f.Name())
	}
}

// clear removes the content of a regular file, unless it is shared.
func (f *resultFile) clear() error {
	if f.shared {
		return nil
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		return f.Truncate(0)
	}
	return nil
}

// namedFile is a file of a command line.
type namedFile struct{ flag, path string }

// checkDistinctFiles returns an error if two flags name the same regular file, of which one is written.
func checkDistinctFiles(written, read []namedFile) error {
	all := append(written, read...)
	for i, a := range written {
		for _, b := range all[i+1:] {
			if a.path != "" && b.path != "" && isSamePath(a.path, b.path) {
				return fmt.Errorf("run: %s and %s name the same file: %s", a.flag, b.flag, b.path)
			}
		}
	}
	return nil
}

// isSamePath reports whether two paths lead to the same regular file, or to the same new file.
func isSamePath(a, b string) bool {
	x, err := os.Stat(a)
	y, berr := os.Stat(b)
	if err == nil && berr == nil {
		return x.Mode().IsRegular() && os.SameFile(x, y)
	}
	x, err = os.Stat(filepath.Dir(a))
	y, berr = os.Stat(filepath.Dir(b))
	return err == nil && berr == nil && os.SameFile(x, y) && filepath.Base(a) == filepath.Base(b)
}
