package service

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// doorbellValue is the value added to the eventfd.
var doorbellValue uint64 = 1

// writeDoorbell wakes the service with a system call that does not block. The call therefore needs no support from the
// Go scheduler. writeDoorbell fails only if the service has not read the counter for a very large number of rings.
func writeDoorbell(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&doorbellValue)),
		unsafe.Sizeof(doorbellValue))
}
