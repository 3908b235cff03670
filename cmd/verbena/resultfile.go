package main

import (
	"errors"
	"os"
)

// resultFile is the file for a result that a launcher writes at its end. A launcher cannot open a file then.
type resultFile struct {
	*os.File
	made bool // the file is new
}

// openResultFile opens or creates a file. It leaves the content of an existing file unchanged.
func openResultFile(name string) (*resultFile, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		return &resultFile{f, true}, nil
	}
	if errors.Is(err, os.ErrExist) {
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666) // a symbolic link may name a file that does not exist
	}
	if err != nil {
		return nil, err
	}
	return &resultFile{f, false}, nil
}

// abandon closes the file, and removes it if it is new.
func (f *resultFile) abandon() {
	f.Close()
	if f.made {
		os.Remove(f.Name())
	}
}

// clear removes the content of a regular file.
func (f *resultFile) clear() error {
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		return f.Truncate(0)
	}
	return nil
}
