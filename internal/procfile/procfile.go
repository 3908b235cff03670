// Package procfile opens files for reading, such as files below /proc and /sys, with flags that the filter of a
// confined service allows (package confine). A symbolic link in the last component is not followed. A terminal does
// not become the controlling terminal.
package procfile

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a file for reading. For a symbolic link, the error wraps ELOOP.
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
