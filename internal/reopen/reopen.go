// Package reopen reopens files by their descriptors.
//
// A descriptor of a program may refer to any file, such as a terminal, a device, a FIFO, or a file of another file
// system. Opening such a file has effects that the kernel attributes to the opener. [File] reopens such
// descriptors. File accepts only an access mode and two flags, and in a confined process a thread with a Landlock
// domain makes the call (package confine). [FileOnCallingThread] reopens descriptors made by this process, and
// [OpenLinkTarget] opens links of the kernel.
package reopen

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// allowedOpenFlags contains the flags that a caller may choose.
const allowedOpenFlags = unix.O_ACCMODE | unix.O_NONBLOCK | unix.O_APPEND

var openFunc atomic.Pointer[func(fd, how int) (int, error)]

// SetOpener makes File call the function open from now on.
func SetOpener(open func(fd, how int) (int, error)) { openFunc.Store(&open) }

// File reopens the file of a descriptor, which may be an O_PATH descriptor of any file that a program has named.
// how is the access mode, optionally with O_NONBLOCK and O_APPEND for the new description. File returns EINVAL for
// any other flag. The open itself waits neither for the other end of a FIFO nor for the holder of a lease (EAGAIN).
// File never makes a terminal the controlling terminal. The new descriptor is close-on-exec.
func File(fd, how int) (int, error) {
	if how&^allowedOpenFlags != 0 {
		return -1, &os.PathError{Op: "reopen", Path: selfFDPath(fd), Err: syscall.EINVAL}
	}
	open := FileOnCallingThread
	if f := openFunc.Load(); f != nil {
		open = *f
	}
	opened, err := open(fd, how|unix.O_NONBLOCK)
	if err != nil || how&unix.O_NONBLOCK != 0 {
		return opened, err
	}
	if _, err := unix.FcntlInt(uintptr(opened), unix.F_SETFL, how&unix.O_APPEND); err != nil {
		unix.Close(opened)
		return -1, fmt.Errorf("make %s blocking: %w", selfFDPath(fd), err)
	}
	return opened, nil
}

// FileOnCallingThread reopens the file of a descriptor on the calling thread.
func FileOnCallingThread(fd, how int) (int, error) {
	return OpenLinkTarget(unix.AT_FDCWD, selfFDPath(fd), how)
}

// DenyReopen prevents programs from reopening the file of a descriptor, if FileOnCallingThread can still reopen it
// afterwards. A process without capabilities may not open a file of mode 0, and this process needs CAP_DAC_OVERRIDE to
// open it.
func DenyReopen(fd int) error {
	if !ignoresFileMode() {
		return nil
	}
	return os.NewSyscallError("fchmod", unix.Fchmod(fd, 0))
}

// ignoresFileMode reports whether this process can open files of mode 0.
var ignoresFileMode = sync.OnceValue(func() bool {
	var p [2]int
	if unix.Pipe2(p[:], unix.O_CLOEXEC) != nil {
		return false
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if unix.Fchmod(p[0], 0) != nil {
		return false
	}
	fd, err := FileOnCallingThread(p[0], unix.O_RDONLY|unix.O_NONBLOCK)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
})

// OpenLinkTarget opens the target of a link, such as a namespace in /proc/PID/ns, on the calling thread. The caller
// must ensure that opening the target has no side effects.
//
//verbena:allow open the flags contain O_NOCTTY and O_CLOEXEC
func OpenLinkTarget(dir int, name string, how int) (int, error) {
	for {
		// The filter of a confined process refuses openat(2) without O_NOFOLLOW.
		opened, err := unix.Openat2(dir, name,
			&unix.OpenHow{Flags: uint64(how&allowedOpenFlags | unix.O_NOCTTY | unix.O_CLOEXEC)})
		switch err {
		case nil:
			return opened, nil
		case unix.EINTR:
		default:
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

func selfFDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
