package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// openOwnFile opens a file of this user for writing, and creates it with mode 0600 if it is missing. The directory may
// be writable for others, such as /tmp. openOwnFile refuses a symbolic link, a file of another user, a file with a
// second hard link, and any file that is not regular. openOwnFile leaves such a file unchanged and returns an error
// that wraps EPERM.
func openOwnFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link, which is not followed: %w", path, syscall.EPERM)
	}
	if err != nil {
		return nil, err
	}
	if err := checkOrdinaryFile(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkOrdinaryFile returns an error unless the file is a regular file of this user with one hard link.
func checkOrdinaryFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Nlink > 1 {
		return fmt.Errorf("%s is not a regular file of user %d with one name (its owner is %d): remove it, or choose another path: %w",
			f.Name(), os.Geteuid(), st.Uid, syscall.EPERM)
	}
	return nil
}

// openLog opens a log file and truncates it.
func openLog(path string) (*os.File, error) {
	f, err := openOwnFile(path)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openLockedFile takes an advisory lock on a file, and creates the file if necessary. how is unix.LOCK_EX or LOCK_SH.
// With LOCK_NB, openLockedFile does not wait, and returns EWOULDBLOCK if another open file holds the lock. When
// openLockedFile returns, the path refers to the locked file.
func openLockedFile(path string, how int) (*os.File, error) {
	const attempts = 100 // an attempt fails if the file was replaced meanwhile
	for range attempts {
		f, err := openOwnFile(path)
		if errors.Is(err, syscall.EPERM) && isMissing(path) {
			continue // the last link of the file was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if err := lockFile(f, how); err != nil {
			f.Close()
			return nil, err
		}
		if isOpenFile(f, path) {
			return f, nil
		}
		f.Close()
	}
	return nil, &fs.PathError{Op: "lock", Path: path, Err: unix.EBUSY}
}

func lockFile(f *os.File, how int) error {
	if err := retryOnEINTR(func() error { return unix.Flock(int(f.Fd()), how) }); err != nil {
		return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return nil
}

func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// isOpenFile reports whether a path refers to the open file.
func isOpenFile(f *os.File, path string) bool {
	have, err1 := f.Stat()
	want, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(have, want)
}

func retryOnEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// openDirectory opens a directory, so that its files stay accessible after the directory is renamed.
func openDirectory(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// procPath returns a path of the file that a descriptor of this process refers to.
func procPath(f *os.File, name string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), name)
}
