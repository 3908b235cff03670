package umem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery mirrors struct procmap_query (linux/fs.h).
type procmapQuery struct {
	size        uint64
	flags       uint64
	addr        uint64
	vmaStart    uint64
	vmaEnd      uint64
	vmaFlags    uint64
	vmaPageSize uint64
	vmaOffset   uint64
	inode       uint64
	devMajor    uint32
	devMinor    uint32
	nameSize    uint32
	buildIDSize uint32
	nameAddr    uint64
	buildIDAddr uint64
}

const (
	procmapQueryRequest = 0xc0686611 // PROCMAP_QUERY, _IOWR('f', 17, struct procmap_query)

	vmaReadable = 1 // PROCMAP_QUERY_VMA_READABLE
	vmaWritable = 2 // PROCMAP_QUERY_VMA_WRITABLE
)

// The layout is that of the kernel.
var _ = [1]struct{}{}[unsafe.Sizeof(procmapQuery{})-104]

// queryMapping finds the mapping that contains an address. maps is an open /proc/PID/maps file. queryMapping returns
// ENOENT if there is no such mapping, ESRCH if the address space no longer exists, and ENOTTY before Linux 6.11.
func queryMapping(maps int, addr uint64) (m mapping, err error) {
	q := procmapQuery{addr: addr}
	q.size = uint64(unsafe.Sizeof(q))
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(maps), procmapQueryRequest, uintptr(unsafe.Pointer(&q)))
		switch errno {
		case 0:
			return mapping{start: q.vmaStart, end: q.vmaEnd, read: q.vmaFlags&vmaReadable != 0,
				write: q.vmaFlags&vmaWritable != 0}, nil
		case unix.EINTR:
		default:
			return m, errno
		}
	}
}

// transferVectorAt is preadv(2) or pwritev(2). transferVectorAt adds no limit on the number of buffers.
func transferVectorAt(fd int, iov []unix.Iovec, off uint64, write bool) (int, error) {
	nr := uintptr(unix.SYS_PREADV)
	if write {
		nr = unix.SYS_PWRITEV
	}
	// The offset is a single argument on 64-bit machines.
	n, _, errno := unix.Syscall6(nr, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)),
		uintptr(off), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
