package service

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserve returns addresses for n bytes, which are whole pages. They cannot be accessed yet.
func reserve(n int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// release gives addresses back that nobody has a slice of.
func release(mem []byte) { _ = unix.MunmapPtr(start(mem), uintptr(len(mem))) }

func start(mem []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(mem)) }

// mapAt maps a part of a file at addresses of reserve.
func mapAt(mem []byte, f *os.File, offset int64) error {
	_, err := unix.MmapPtr(int(f.Fd()), offset, start(mem), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", len(mem), err)
	}
	return nil
}

// forget leaves the addresses readable and writable, with zeros: a slice may have been kept.
func forget(mem []byte) {
	_, _ = unix.MmapPtr(-1, 0, start(mem), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE|unix.MAP_FIXED)
}

// detach makes shared memory this process's own, with what is in it. What others write there meanwhile is lost.
func detach(mem []byte) error {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	copy(unsafe.Slice((*byte)(p), len(mem)), mem)
	if _, err := unix.MremapPtr(p, uintptr(len(mem)), start(mem), uintptr(len(mem)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
		_ = unix.MunmapPtr(p, uintptr(len(mem)))
		return err
	}
	return nil
}
