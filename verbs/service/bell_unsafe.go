package service

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringing is what is added to the doorbell.
var ringing uint64 = 1

// ring wakes the service, by a system call that does not wait, and so needs no help of the Go scheduler. It fails only where so many have rung
// that the service has not seen it for long.
func ring(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&ringing)), unsafe.Sizeof(ringing))
}
