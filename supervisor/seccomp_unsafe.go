package supervisor

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is a trapped system call (struct seccomp_notif, with its struct seccomp_data).
type notification struct {
	id    uint64
	tid   uint32 // thread ID in the namespace of the receiver, or 0 if not visible there
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// notificationResponse answers a notification (struct seccomp_notif_resp).
type notificationResponse struct {
	id    uint64
	val   int64
	errno int32 // negative errno
	flags uint32
}

// addFD requests the install of a descriptor in the trapped process (struct seccomp_notif_addfd).
type addFD struct {
	id       uint64
	flags    uint32
	srcFD    uint32
	newFD    uint32
	newFlags uint32 // O_CLOEXEC or 0
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) (uintptr, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch errno {
		case 0:
			return r, nil
		case unix.EINTR:
		default:
			return r, errno
		}
	}
}

// receiveNotification takes the oldest pending notification, and sleeps while there is none. It returns ENOENT if the
// thread of the notification was killed, or if no process is left.
func receiveNotification(listener int, n *notification) error {
	*n = notification{} // the kernel requires a zeroed structure
	_, err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
	return err
}

// sendResponse sends an answer. It returns ENOENT if the thread does not wait for the answer any more.
func sendResponse(listener int, r *notificationResponse) error {
	//verbena:allow nosleep the kernel takes an answer without waiting for the thread that gets it
	_, err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(r))
	return err
}

// checkStillTrapped returns an error if the thread of a notification was killed.
func checkStillTrapped(listener int, id uint64) error {
	_, err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id))
	return err
}

// sendAddFD installs a duplicate of a.srcFD in the trapped process, and returns its number in that process. No
// signal interrupts sendAddFD, including SIGPROF of a CPU profile; see blockSignals.
func sendAddFD(listener int, a *addFD) (n int, err error) {
	merr := withoutSIGPROF(func() {
		var r uintptr
		r, err = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
		n = int(r)
	})
	if merr != nil {
		return 0, merr
	}
	return n, err
}

// setSyncWakeUp sets whether the scheduler should run the trapped thread and the answering thread alternately. It
// returns EINVAL before Linux 6.6.
func setSyncWakeUp(listener int, on bool) error {
	var flags uintptr
	if on {
		flags = unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, flags)
	if errno != 0 {
		return errno
	}
	return nil
}

// setFilter permanently installs a filter on the calling thread, and returns its listener.
func setFilter(filter []unix.SockFilter, flags uintptr) (listener int, err error) {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// bytesOf returns the bytes of *v, whose type has the layout of the kernel's user ABI.
func bytesOf[T unix.Stat_t | unix.Statx_t](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// readMemory reads from the memory of a thread's process. n is less than len(b) if part of the range is not mapped.
func readMemory(tid int, addr uint64, b []byte) (int, error) {
	local := [1]unix.Iovec{{Base: unsafe.SliceData(b)}}
	local[0].SetLen(len(b))
	remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	return unix.ProcessVMReadv(tid, local[:], remote[:], 0)
}

// futexWait sleeps until a thread wakes the word, if the word equals value. It returns false after the timeout.
func futexWait(word *uint32, value uint32, timeout time.Duration) bool {
	ts := unix.NsecToTimespec(int64(timeout))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitPrivate, uintptr(value),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
	return errno != unix.ETIMEDOUT
}

// futexWake wakes up to n threads that sleep on the word.
func futexWake(word *uint32, n int) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakePrivate, uintptr(n), 0, 0, 0)
}

const (
	futexWaitPrivate = 0 | 128 // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	futexWakePrivate = 1 | 128
)
