package link

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr mirrors struct mmsghdr of sendmmsg(2) on 64-bit machines.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   uint32
}

// The functions below bypass Go's network poller: they run on the thread of the caller. Raw system calls do not inform
// the scheduler that the thread can block, so only calls that do not block are raw.

// sendmsg calls sendmsg(2) with MSG_DONTWAIT.
func sendmsg(fd int, h *unix.Msghdr) syscall.Errno {
	//verbena:allow nosleep MSG_DONTWAIT: a full or empty socket is an error
	_, _, e := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT)
	return e
}

// sendmmsg calls sendmmsg(2) with MSG_DONTWAIT. If n > 0 messages were sent, there is no error.
func sendmmsg(fd int, v []mmsghdr) (n int, e syscall.Errno) {
	//verbena:allow nosleep MSG_DONTWAIT: a full or empty socket is an error
	r, _, e := syscall.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(v))),
		uintptr(len(v)), unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(r), 0
}

// tryRecvmmsg calls recvmmsg(2) with MSG_DONTWAIT.
func tryRecvmmsg(fd int, v []mmsghdr) (n int, e syscall.Errno) {
	//verbena:allow nosleep MSG_DONTWAIT: a full or empty socket is an error
	r, _, e := syscall.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(v))),
		uintptr(len(v)), unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(r), 0
}

// epollWait calls epoll_wait(2) for one event. It reports whether there is an event, and the descriptor that belongs to
// the event. If wait is false, it does not block. An interrupted call reports no event.
func epollWait(fd int, wait bool) (ready int, ok bool) {
	var v unix.EpollEvent
	var n uintptr
	var e syscall.Errno
	if wait {
		n, _, e = syscall.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&v)), 1, ^uintptr(0), 0, 0)
	} else {
		n, _, e = syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&v)), 1, 0, 0, 0)
	}
	return int(v.Fd), e == 0 && n > 0
}

// socketDrops returns the number of packets that did not fit into the receive buffer of a socket (SO_MEMINFO of
// socket(7), SK_MEMINFO_DROPS of linux/sock_diag.h), or 0 if the kernel does not report the number.
func socketDrops(fd int) uint32 {
	const drops = 8
	var info [drops + 1]uint32
	n := uint32(unsafe.Sizeof(info))
	_, _, e := syscall.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 || n < uint32(unsafe.Sizeof(info)) {
		return 0
	}
	return info[drops]
}
