package umem

import (
	"syscall"
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

// The layout is the kernel's.
var _ = [1]struct{}{}[unsafe.Sizeof(procmapQuery{})-104]

// queryMapping finds the mapping that covers an address, by a file /proc/PID/maps. ENOENT if there is none, ESRCH if the
// address space has gone, ENOTTY before Linux 6.11.
func queryMapping(maps syscall.RawConn, addr uint64) (m mapping, err error) {
	q := procmapQuery{addr: addr}
	q.size = uint64(unsafe.Sizeof(q))
	var errno syscall.Errno
	if err := maps.Control(func(fd uintptr) {
		for {
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, procmapQueryRequest, uintptr(unsafe.Pointer(&q)))
			if errno != unix.EINTR {
				break
			}
		}
	}); err != nil {
		return m, err
	}
	if errno != 0 {
		return m, errno
	}
	return mapping{start: q.vmaStart, end: q.vmaEnd, read: q.vmaFlags&vmaReadable != 0, write: q.vmaFlags&vmaWritable != 0}, nil
}
