// Package procfile opens files by their paths for reading, such as those below /proc and /sys, in a way that the filter
// of a confined service allows (package confine): a last component that is a symbolic link is not followed, and a
// terminal does not become the controlling one.
package procfile

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a file for reading. The error wraps ELOOP for a symbolic link.
func Open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
}

// Read returns the content of a file.
func Read(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
