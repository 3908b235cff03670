package shm

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/internal/reopen"
)

// OpenLink opens the target of a link such as /proc/PID/fd/N for reading and writing, if the target is a [File]
// with a name that begins with prefix. OpenLink returns EINVAL for any other file, and does not open such a file. A
// hostile owner of the descriptor may have chosen the name, and may replace the file concurrently.
//
//verbena:allow restat the type and device of the opened file are compared, not of the path
func OpenLink(link, prefix string) (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, fmt.Errorf("open shared memory %s: %w", link, err) }
	to, err := os.Readlink(link)
	if err != nil {
		return fail(err)
	}
	if !strings.HasPrefix(to, "/memfd:"+prefix) {
		return fail(unix.EINVAL)
	}
	path, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(path)
	if !isMemfd(path) {
		return fail(unix.EINVAL)
	}
	fd, err := reopen.File(path, unix.O_RDWR)
	if err != nil {
		return fail(err)
	}
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals != want {
		unix.Close(fd)
		return fail(unix.EINVAL)
	}
	return os.NewFile(uintptr(fd), to), nil
}

// isMemfd reports whether a descriptor, including a descriptor opened with O_PATH, refers to a memfd. All memfds
// are on one internal file system of the kernel, which is not mounted. isMemfd does not query the file system,
// which may be a program of the user (FUSE).
func isMemfd(fd int) bool {
	dev, err := memfdDeviceNumber()
	if err != nil {
		return false
	}
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && unix.Mkdev(st.Dev_major, st.Dev_minor) == dev
}

var memfdDeviceNumber = sync.OnceValues(func() (uint64, error) {
	fd, err := unix.MemfdCreate("verbena-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	return st.Dev, nil
})
