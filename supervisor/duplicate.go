package supervisor

import (
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/reopen"
)

// duplicate answers dup(2), or fcntl(2) with F_DUPFD, of a device file: the new number, too, has to be one that the
// filter traps. A duplicate at a low number of the program's own choice, or one sent over a socket, answers ioctl(2)
// only. Another file is duplicated here if it is to get a number of those that device files get: see duplicateTo.
func (w *worker) duplicate(c call) verdict {
	through := verdict{fate: letThrough}
	t := w.session
	least, flags := uint32(0), uint64(0)
	if c == callFcntl {
		switch uint32(w.n.args[1]) {
		case unix.F_DUPFD_CLOEXEC:
			flags = unix.O_CLOEXEC
		case unix.F_DUPFD:
		default:
			return through
		}
		if least = uint32(w.n.args[2]); least >= math.MaxInt32 {
			return through
		}
	}
	fd := int32(w.n.args[0])
	d := w.descriptor(fd)
	directory := false
	if d == nil && !t.numbers.has(least) {
		if _, directory = w.directory(fdLink(fd)); !directory {
			return through
		}
	}
	if d == nil && !directory && t.numbers.low.has(least) {
		// The kernel finds a free number. One that is looked up here another thread may have taken before it is installed.
		t.forget(least, math.MaxInt32)
		return through
	}
	w.begin(callOpen)
	th, err := w.look()
	if err != nil {
		return fails(err)
	}
	defer th.close()
	if d == nil {
		copied, err := w.copyFile(th, fd)
		if err != nil {
			return through // the kernel says what is wrong; or that is not allowed (Yama)
		}
		defer unix.Close(copied)
		if directory {
			return w.installFrom(th, copied, least, flags)
		}
		number, err := w.installAbove(th, copied, least, flags)
		if err == unix.EBADF { // the limit of open files
			return through
		}
		return verdict{val: int64(number), err: err}
	}
	p, _, err := w.process(th)
	if err != nil {
		return fails(err)
	}
	copied, err := w.copyDevice(th, p, fd, d.file)
	if err != nil {
		t.log.Warn("duplicate a descriptor of a device", "pid", p.pid, "name", p.name, "fd", fd, "err", err)
		return fails(err)
	}
	defer unix.Close(copied)
	number, err := w.installCommandFile(th, p, copied, least, false, flags)
	if err != nil {
		return fails(err)
	}
	return verdict{val: int64(number)}
}

// errOwnTable is the error for a thread that does not share its descriptors with the main thread, before Linux 6.9.
var errOwnTable = fmt.Errorf("the thread has descriptors of its own: %w", unix.EPERM)

// copyFile returns a descriptor of whatever the caller has open under a number. The error is errOwnTable, or EPERM
// where pidfd_getfd(2) is not allowed (Yama, Docker).
func (w *worker) copyFile(th *procThread, fd int32) (copied int, err error) {
	const thread = unix.O_EXCL // PIDFD_THREAD
	pidfd, err := unix.PidfdOpen(int(w.n.tid), thread)
	if err == unix.EINVAL {
		if !sharesFiles(th.id.pid, int(w.n.tid)) {
			return -1, errOwnTable
		}
		pidfd, err = unix.PidfdOpen(th.id.pid, 0)
	}
	if err != nil {
		return -1, w.goneOr(err)
	}
	defer unix.Close(pidfd)
	if err := w.prove(); err != nil {
		return -1, err
	}
	return unix.PidfdGetfd(pidfd, int(fd), 0)
}

// sharesFiles reports whether two threads have the same table of descriptors; true where that is unknown.
func sharesFiles(a, b int) bool {
	if a == b {
		return true
	}
	const files = 2 // KCMP_FILES
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), files, 0, 0, 0)
	return errno != 0 || r == 0
}

// copyDevice returns a descriptor of the device file that the caller has under a number.
func (w *worker) copyDevice(th *procThread, p *process, fd int32, f *openFile) (copied int, err error) {
	if err := p.conn.Control(func(pidfd uintptr) { copied, err = unix.PidfdGetfd(int(pidfd), int(fd), 0) }); err != nil {
		return -1, err
	}
	if err == nil && isFile(copied, f.inode) {
		return copied, nil
	}
	if err == nil {
		unix.Close(copied)
	}
	// pidfd_getfd is not allowed (Yama, Docker), or the main thread has ended or has descriptors of its own. Another
	// description of the file does as well.
	how, open := unix.O_RDWR, reopen.File
	if f.access == unix.O_RDONLY {
		how = unix.O_RDONLY
	}
	if f.cm != nil { // a pipe of the service's
		how, open = unix.O_RDONLY, reopen.Own
	}
	return w.reopen(th, fd, f.inode, func(path int) (int, error) { return open(path, how) })
}

// reopen opens the file that a thread has under a number, if it is the given one: EBADF for any other. The thread may
// replace the file at any moment, and to open a terminal, a FIFO or a device has effects. So the link is followed once,
// by O_PATH, which opens nothing; the comparison and the open are of that descriptor.
func (w *worker) reopen(th *procThread, fd int32, file inode, open func(path int) (int, error)) (int, error) {
	w.pause("follow")
	path, err := unix.Openat(th.dir, fmt.Sprintf("fd/%d", fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errGone
	}
	defer unix.Close(path)
	w.pause("reopen")
	if !isFile(path, file) {
		return -1, syscall.EBADF
	}
	opened, err := open(path)
	for n := 0; n < leaseTries && errors.Is(err, unix.EAGAIN); n++ {
		time.Sleep(leasePause)
		opened, err = open(path)
	}
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d of thread %d: %w", fd, w.n.tid, err)
	}
	return opened, nil
}

// A look for the last close has a lease of a queue file for a moment (shm.File.InUse), in which the file is not opened
// again.
const (
	leaseTries = 100
	leasePause = 100 * time.Microsecond
)

// isFile reports whether a descriptor, also one of O_PATH, is of a file. It does not ask the file system, which may be
// a program of the user's.
func isFile(fd int, file inode) bool {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &st)
	return err == nil && (inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}) == file
}

// duplicateTo answers dup2(2) or dup3(2) to a number of those that device files get. Those are given out here, so that
// two threads of a program do not get the same.
func (w *worker) duplicateTo(c call) verdict {
	through := verdict{fate: letThrough}
	from, to := int32(w.n.args[0]), int32(w.n.args[1])
	flags := uint32(0)
	if c == callDup3 {
		flags = uint32(w.n.args[2])
	}
	if from == to || flags&^unix.O_CLOEXEC != 0 {
		return through // the kernel says what is wrong
	}
	w.begin(callOpen)
	th, err := w.look()
	if err != nil {
		return fails(err)
	}
	defer th.close()
	w.session.forget(uint32(to), uint32(to))
	copied, err := w.copyFile(th, from)
	if err != nil {
		return through // it has none, or that is not allowed (Yama)
	}
	defer unix.Close(copied)
	w.session.opening.Lock()
	defer w.session.opening.Unlock()
	if err := w.installLocked(copied, uint32(to), uint64(flags)); err == unix.EBADF {
		return through // the limit of open files; or one with O_PATH, which is not handed on
	} else if err != nil {
		return fails(err)
	}
	return verdict{val: int64(to)}
}
