package transport

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl executes ioctl(2) with a pointer to b.
func ioctl(fd int, request uintptr, b []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request,
		uintptr(unsafe.Pointer(unsafe.SliceData(b)))); e != 0 {
		return e
	}
	return nil
}
