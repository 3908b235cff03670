package privilege

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setCapabilities sets the permitted and effective capabilities of all threads, and clears the inheritable
// capabilities. (capset(2))
func setCapabilities(caps uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{}
	for i := range data {
		half := uint32(caps >> (32 * i))
		data[i] = unix.CapUserData{Effective: half, Permitted: half}
	}
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if e != 0 {
		return e
	}
	return nil
}
