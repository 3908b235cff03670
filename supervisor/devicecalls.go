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

// answerUnsupportedCall answers a call that device files do not support.
func (w *worker) answerUnsupportedCall(c call) callResult {
	if w.desc = w.lookUpFile(int32(w.n.args[0])); w.desc == nil {
		return callResult{fate: fateContinued}
	}
	return failWith(unsupportedCalls[c])
}

// These requests of ioctl(2) have the effect of fcntl(2). (asm-generic/ioctls.h)
const (
	fioNonBlock      = 0x5421 // FIONBIO
	fioNoCloseOnExec = 0x5450 // FIONCLEX
	fioCloseOnExec   = 0x5451 // FIOCLEX
)

// answerOtherIoctl answers a request other than RDMA_VERBS_IOCTL. The kernel itself answers requests that all files
// support. (do_vfs_ioctl)
func (w *worker) answerOtherIoctl() callResult {
	switch uint32(w.n.args[1]) {
	case fioNonBlock, fioNoCloseOnExec, fioCloseOnExec:
		return callResult{fate: fateContinued}
	}
	return failWith(syscall.ENOTTY)
}

// answerFcntl answers fcntl(2).
func (w *worker) answerFcntl() callResult {
	command := uint32(w.n.args[1])
	if command == unix.F_DUPFD || command == unix.F_DUPFD_CLOEXEC {
		return w.answerDup(callFcntl)
	}
	switch command {
	case unix.F_GETFL, unix.F_GETPIPE_SZ, unix.F_SETPIPE_SZ, unix.F_GET_SEALS, unix.F_ADD_SEALS:
		w.desc = w.lookUpFile(int32(w.n.args[0]))
	}
	switch {
	case w.desc == nil:
	case command == unix.F_GETFL:
		return w.answerStatusFlags(w.desc.file)
	case command == unix.F_GETPIPE_SZ, command == unix.F_SETPIPE_SZ:
		return failWith(syscall.EBADF)
	default:
		return failWith(syscall.EINVAL)
	}
	return callResult{fate: fateContinued}
}

// oLargeFile is O_LARGEFILE, which the kernel sets when a 64-bit program opens a file.
const oLargeFile = 0o100000

// answerStatusFlags answers F_GETFL. The pipe behind rdma_cm is open for reading only, unlike the file that the program
// opened.
func (w *worker) answerStatusFlags(f *openFile) callResult {
	if f.cm == nil {
		return callResult{fate: fateContinued}
	}
	th, err := w.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	copied, err := w.duplicateDescriptor(th, int32(w.n.args[0]))
	if err != nil {
		return callResult{fate: fateContinued} // access is denied (Yama, Docker)
	}
	defer unix.Close(copied)
	flags, err := unix.FcntlInt(uintptr(copied), unix.F_GETFL, 0)
	if err != nil || !refersToInode(copied, f.inode) {
		return callResult{fate: fateContinued}
	}
	return callResult{val: int64(flags&^unix.O_ACCMODE | f.access | oLargeFile)}
}
