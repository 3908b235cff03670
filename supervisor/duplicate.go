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

// descriptorCalls answers the calls that duplicate and close descriptors, one at a time.
type descriptorCalls struct {
	caller *caller
	token  *tokenHolder
	dirs   *directoryCalls
}

// isDuplication reports whether a fcntl(2) duplicates a descriptor.
func isDuplication(n *notification) bool {
	command := uint32(n.args[1])
	return command == unix.F_DUPFD || command == unix.F_DUPFD_CLOEXEC
}

// answerDup answers dup(2), or fcntl(2) with F_DUPFD, for a device file. The new number must be one that the filter
// traps. A duplicate at a low number chosen by the program, or a descriptor sent over a socket, supports only
// ioctl(2). The supervisor duplicates other files only if their new number is in the range of device files, as
// described at answerDupTo.
func (fds *descriptorCalls) answerDup(c call) callResult {
	through := callResult{fate: fateContinued}
	t := fds.caller.session
	least, flags := uint32(0), uint64(0)
	if c == callFcntl {
		switch uint32(fds.caller.n.args[1]) {
		case unix.F_DUPFD_CLOEXEC:
			flags = unix.O_CLOEXEC
		case unix.F_DUPFD:
		default:
			return through
		}
		if least = uint32(fds.caller.n.args[2]); least >= math.MaxInt32 {
			return through
		}
	}
	fd := int32(fds.caller.n.args[0])
	d := fds.caller.lookUpFile(fd)
	directory := false
	if d == nil && !t.numbers.contains(least) {
		if _, directory = fds.dirs.directoryOfLink(fdLink(fd)); !directory {
			return through
		}
	}
	if d == nil && !directory && t.numbers.low.contains(least) {
		// The kernel chooses a free number. If the supervisor chose the number, another thread could allocate it
		// before the install.
		t.dropCachedFiles(least, math.MaxInt32)
		return through
	}
	fds.token.beginBusy()
	th, err := fds.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	if d == nil {
		copied, err := fds.caller.duplicateDescriptor(th, fd)
		if err != nil {
			return through // the kernel reports the error, or access is denied (Yama)
		}
		defer unix.Close(copied)
		if directory {
			return fds.dirs.installDirectoryFrom(th, copied, least, flags)
		}
		number, err := fds.caller.installAtLowestFreeFD(th, copied, least, flags)
		if err == unix.EBADF { // the limit of open files is too low
			return through
		}
		return callResult{val: int64(number), err: err}
	}
	p, _, err := fds.caller.findOrOpenProcess(th)
	if err != nil {
		return failWith(err)
	}
	copied, err := fds.caller.duplicateDeviceDescriptor(th, p, fd, d.file)
	if err != nil {
		t.log.Warn("duplicate a descriptor of a device", "pid", p.pid, "name", p.name, "fd", fd, "err", err)
		return failWith(err)
	}
	defer unix.Close(copied)
	number, err := fds.caller.installCommandFile(th, p, copied, least, false, flags)
	if err != nil {
		return failWith(err)
	}
	return callResult{val: int64(number)}
}

// errSeparateTable is the error for a thread that does not share its descriptors with the main thread, before Linux
// 6.9.
var errSeparateTable = fmt.Errorf("the thread has a separate descriptor table: %w", unix.EPERM)

// duplicateDescriptor returns a duplicate of a descriptor of the caller. duplicateDescriptor returns errSeparateTable,
// or EPERM if pidfd_getfd(2) is denied (Yama, Docker).
func (c *caller) duplicateDescriptor(th *procThread, fd int32) (copied int, err error) {
	const thread = unix.O_EXCL // PIDFD_THREAD
	pidfd, err := unix.PidfdOpen(int(c.n.tid), thread)
	if err == unix.EINVAL {
		if !shareDescriptorTable(th.id.pid, int(c.n.tid)) {
			return -1, errSeparateTable
		}
		pidfd, err = unix.PidfdOpen(th.id.pid, 0)
	}
	if err != nil {
		return -1, c.preferErrCallerGone(err)
	}
	defer unix.Close(pidfd)
	if err := c.checkTrapped(); err != nil {
		return -1, err
	}
	return unix.PidfdGetfd(pidfd, int(fd), 0)
}

// shareDescriptorTable reports whether two threads share a table of descriptors. shareDescriptorTable returns true if
// that is unknown.
func shareDescriptorTable(a, b int) bool {
	if a == b {
		return true
	}
	const files = 2 // KCMP_FILES
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), files, 0, 0, 0)
	return errno != 0 || r == 0
}

// duplicateDeviceDescriptor returns a duplicate of the caller's descriptor of a device file.
func (c *caller) duplicateDeviceDescriptor(th *procThread, p *process, fd int32, f *openFile) (copied int, err error) {
	if err := p.conn.Control(func(pidfd uintptr) { copied, err = unix.PidfdGetfd(int(pidfd), int(fd), 0) }); err != nil {
		return -1, err
	}
	if err == nil && refersToInode(copied, f.inode) {
		return copied, nil
	}
	if err == nil {
		unix.Close(copied)
	}
	// Here pidfd_getfd is denied (Yama, Docker), or the main thread has ended or has a separate table of
	// descriptors. Another description of the file serves the same purpose.
	how, open := unix.O_RDWR, reopen.File
	if f.access == unix.O_RDONLY {
		how = unix.O_RDONLY
	}
	if f.cm != nil { // the read end of a pipe of the service, for events of rdma_cm
		how, open = unix.O_RDONLY, reopen.FileOnCallingThread
	}
	return c.reopenFile(th, fd, f.inode, func(path int) (int, error) { return open(path, how) })
}

// reopenFile opens the file under a thread's descriptor if it is the given file; otherwise it returns EBADF. The thread
// may replace the file at any moment, and opening a terminal, a FIFO or a device has side effects. Therefore reopen
// follows the link once with O_PATH, which has no side effect. reopenFile then compares and opens that descriptor.
func (c *caller) reopenFile(th *procThread, fd int32, file inode, open func(path int) (int, error)) (int, error) {
	c.pauseForTest("follow")
	path, err := unix.Openat(th.dir, fmt.Sprintf("fd/%d", fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errCallerGone
	}
	defer unix.Close(path)
	c.pauseForTest("reopen")
	if !refersToInode(path, file) {
		return -1, syscall.EBADF
	}
	opened, err := open(path)
	for n := 0; n < leaseTries && errors.Is(err, unix.EAGAIN); n++ {
		time.Sleep(leasePause)
		opened, err = open(path)
	}
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d of thread %d: %w", fd, c.n.tid, err)
	}
	return opened, nil
}

// A check for the last close briefly holds a lease on a queue file (shm.File.InUse). During the lease, open(2) of
// the file fails.
const (
	leaseTries = 100
	leasePause = 100 * time.Microsecond
)

// refersToInode reports whether a descriptor refers to a file. The descriptor may have been opened with O_PATH.
// refersToInode does not query the file system, which may be a program of the user (FUSE).
func refersToInode(fd int, file inode) bool {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &st)
	return err == nil && (inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}) == file
}

// answerDupTo answers dup2(2) or dup3(2) to a number in the range of device files. The supervisor assigns these
// numbers itself, so two threads of a program cannot get the same number.
func (fds *descriptorCalls) answerDupTo(c call) callResult {
	through := callResult{fate: fateContinued}
	from, to := int32(fds.caller.n.args[0]), int32(fds.caller.n.args[1])
	flags := uint32(0)
	if c == callDup3 {
		flags = uint32(fds.caller.n.args[2])
	}
	if from == to || flags&^unix.O_CLOEXEC != 0 {
		return through // the kernel reports the error
	}
	fds.token.beginBusy()
	th, err := fds.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	fds.caller.session.dropCachedFiles(uint32(to), uint32(to))
	copied, err := fds.caller.duplicateDescriptor(th, from)
	if err != nil {
		return through // the descriptor is not open, or access is denied (Yama)
	}
	defer unix.Close(copied)
	fds.caller.session.opening.Lock()
	defer fds.caller.session.opening.Unlock()
	if err := fds.caller.installAtFDLocked(copied, uint32(to), uint64(flags)); err == unix.EBADF {
		return through // the limit of open files, or a descriptor opened with O_PATH, which the kernel does not install
	} else if err != nil {
		return failWith(err)
	}
	return callResult{val: int64(to)}
}

// answerClose answers close(2) and close_range(2). Each closed number may later refer to another file, on which writes
// are not doorbells.
func (fds *descriptorCalls) answerClose(c call) callResult {
	first := uint32(fds.caller.n.args[0])
	last := first
	if c == callCloseRange {
		last = uint32(fds.caller.n.args[1])
	}
	fds.caller.session.dropCachedFiles(first, last)
	return callResult{fate: fateContinued}
}
