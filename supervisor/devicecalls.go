package supervisor

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// A program's descriptor of a device file refers to another kind of file: a memfd, or a pipe. The supervisor
// answers the calls in this file in the same way as the kernel's device file. The supervisor does not trap read(2)
// and similar calls, because a check of each read of each descriptor would cost too much.

// unsupportedCalls maps calls that no device file supports to their errors. (The kernel uses no_llseek, and
// file_operations without the functions.)
var unsupportedCalls = map[call]syscall.Errno{
	callLseek:     syscall.ESPIPE,
	callPread64:   syscall.ESPIPE,
	callPwrite64:  syscall.ESPIPE,
	callFtruncate: syscall.EINVAL,
	callFallocate: syscall.ENODEV,
	callFsync:     syscall.EINVAL,
}

// deviceLacks answers a call that device files do not support.
func (w *worker) deviceLacks(c call) verdict {
	if w.desc = w.descriptor(int32(w.n.args[0])); w.desc == nil {
		return verdict{fate: fateContinued}
	}
	return failWith(unsupportedCalls[c])
}

// These requests of ioctl(2) have the effect of fcntl(2). (asm-generic/ioctls.h)
const (
	fioNonBlock      = 0x5421 // FIONBIO
	fioNoCloseOnExec = 0x5450 // FIONCLEX
	fioCloseOnExec   = 0x5451 // FIOCLEX
)

// otherIoctl answers a request other than RDMA_VERBS_IOCTL. The kernel itself answers requests that all files
// support. (do_vfs_ioctl)
func (w *worker) otherIoctl() verdict {
	switch uint32(w.n.args[1]) {
	case fioNonBlock, fioNoCloseOnExec, fioCloseOnExec:
		return verdict{fate: fateContinued}
	}
	return failWith(syscall.ENOTTY)
}

// fcntl answers fcntl(2).
func (w *worker) fcntl() verdict {
	command := uint32(w.n.args[1])
	if command == unix.F_DUPFD || command == unix.F_DUPFD_CLOEXEC {
		return w.duplicate(callFcntl)
	}
	switch command {
	case unix.F_GETFL, unix.F_GETPIPE_SZ, unix.F_SETPIPE_SZ, unix.F_GET_SEALS, unix.F_ADD_SEALS:
		w.desc = w.descriptor(int32(w.n.args[0]))
	}
	switch {
	case w.desc == nil:
	case command == unix.F_GETFL:
		return w.statusFlags(w.desc.file)
	case command == unix.F_GETPIPE_SZ, command == unix.F_SETPIPE_SZ:
		return failWith(syscall.EBADF)
	default:
		return failWith(syscall.EINVAL)
	}
	return verdict{fate: fateContinued}
}

// largeFile is O_LARGEFILE, which the kernel sets when a 64-bit program opens a file.
const largeFile = 0o100000

// statusFlags answers F_GETFL. The pipe behind rdma_cm is open for reading only, unlike the file that the program
// opened.
func (w *worker) statusFlags(f *openFile) verdict {
	if f.cm == nil {
		return verdict{fate: fateContinued}
	}
	th, err := w.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	copied, err := w.copyFile(th, int32(w.n.args[0]))
	if err != nil {
		return verdict{fate: fateContinued} // access is denied (Yama, Docker)
	}
	defer unix.Close(copied)
	flags, err := unix.FcntlInt(uintptr(copied), unix.F_GETFL, 0)
	if err != nil || !isFile(copied, f.inode) {
		return verdict{fate: fateContinued}
	}
	return verdict{val: int64(flags&^unix.O_ACCMODE | f.access | largeFile)}
}
