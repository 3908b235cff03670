package service

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func sliceStart(mem []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(mem)) }

// zeroMemory replaces the contents of the memory with zeros. The memory remains readable and writable, because the
// program may have retained a slice.
func zeroMemory(mem []byte) {
	_, _ = unix.MmapPtr(-1, 0, sliceStart(mem), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE|unix.MAP_FIXED)
}

// makePrivate makes shared memory private to this process and preserves its contents. Concurrent writes by other
// processes are lost.
func makePrivate(mem []byte) error {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	copy(unsafe.Slice((*byte)(p), len(mem)), mem)
	if _, err := unix.MremapPtr(p, uintptr(len(mem)), sliceStart(mem), uintptr(len(mem)),
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
		_ = unix.MunmapPtr(p, uintptr(len(mem)))
		return err
	}
	return nil
}
