// Package procfile opens files for reading, such as files below /proc and /sys, with flags that the filter of a
// confined service allows (package confine). A symbolic link in the last component is not followed. A terminal does
// not become the controlling terminal.
package procfile

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// OpenNoFollow opens a file for reading. For a symbolic link, the error wraps ELOOP.
func OpenNoFollow(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
}

// ReadNoFollow returns the content of a file.
func ReadNoFollow(path string) ([]byte, error) {
	f, err := OpenNoFollow(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
