package restat_descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The file that is looked at is the file that is opened.
func device(dir, fd int, want uint64) (int, error) {
	path, err := unix.Openat(dir, fmt.Sprintf("fd/%d", fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil || st.Ino != want {
		return -1, unix.EBADF
	}
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", path), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
}
