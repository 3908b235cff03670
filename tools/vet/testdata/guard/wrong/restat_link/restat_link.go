package restat_link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func device(dir, fd int, want uint64) (int, error) {
	link := fmt.Sprintf("fd/%d", fd)
	var st unix.Stat_t
	if err := unix.Fstatat(dir, link, &st, 0); err != nil || st.Ino != want {
		return -1, unix.EBADF
	}
	return unix.Openat(dir, link, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0) // want "restat: .*device opens a path that it has passed to unix.Fstatat at .*restat_link.go:13"
}

// The same path, made twice.
func again(tid int) (*os.File, error) {
	if _, err := os.Lstat(fmt.Sprintf("/proc/%d/exe", tid)); err != nil {
		return nil, err
	}
	return os.OpenFile(fmt.Sprintf("/proc/%d/exe", tid), unix.O_NOCTTY, 0) // want "restat: .*again opens a path that it has passed to os.Lstat"
}
