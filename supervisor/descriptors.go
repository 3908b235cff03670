package supervisor

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// cachedFile is a device file as accessed by one thread. The lookup of a device file takes longer than most calls,
// so the result is cached for a while, for doorbells only. Other calls look the file up again (findCaller).
type cachedFile struct {
	tid     uint32
	fd      int32
	file    *openFile
	until   time.Duration           // time since base
	process atomic.Pointer[process] // process of the thread, once known
}

const (
	cacheSize = 64
	// descriptorCacheTime is less than the time in which thread IDs can wrap around. Within that time, a thread ID
	// identifies a thread.
	descriptorCacheTime = 500 * time.Millisecond
)

// clockBase is the origin of until. Reading only the monotonic clock takes half as long as time.Now.
var clockBase = time.Now()

func cacheSlot(tid uint32, fd int32) uint32 { return (tid*31 + uint32(fd)) % cacheSize }

// lookUpFile returns the device file at a number of the caller, or nil for other files.
func (c *caller) lookUpFile(fd int32) *cachedFile {
	t, tid := c.session, c.n.tid
	at := &t.cache[cacheSlot(tid, fd)]
	old := at.Load()
	if old != nil && old.tid == tid && old.fd == fd && !old.file.isClosed() && time.Since(clockBase) < old.until {
		return old
	}
	i, err := inodeOf(tid, fd)
	if err != nil {
		return nil
	}
	f := t.sup.openFileOf(i)
	if f == nil || c.checkTrapped() != nil {
		return nil
	}
	d := &cachedFile{tid: tid, fd: fd, file: f, until: time.Since(clockBase) + descriptorCacheTime}
	if old != nil && old.tid == tid {
		if p := old.process.Load(); p != nil && p.user == f.user && p.hasThread(tid) {
			d.process.Store(p)
		}
	}
	at.Store(d)
	return d
}

// dropCachedFiles removes the cached entries for the numbers from first to last.
func (t *Session) dropCachedFiles(first, last uint32) {
	for i := range t.cache {
		if d := t.cache[i].Load(); d != nil && first <= uint32(d.fd) && uint32(d.fd) <= last {
			t.cache[i].CompareAndSwap(d, nil)
		}
	}
}

// fdLink returns the path of the link for a number in a thread's directory in /proc.
func fdLink(fd int32) string { return "fd/" + strconv.Itoa(int(fd)) }

// inodeOf returns the inode of the file at a number of a thread.
func inodeOf(tid uint32, fd int32) (inode, error) { return inodeAt(tid, fdLink(fd)) }

// inodeAt returns the inode of the file that a link in a thread's directory in /proc refers to. It does not query
// the file system, which may be a program of the user (FUSE).
func inodeAt(tid uint32, link string) (inode, error) {
	var st unix.Statx_t
	path := "/proc/" + strconv.Itoa(int(tid)) + "/" + link
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO,
		&st); err != nil {
		return inode{}, fmt.Errorf("look up %s: %w", path, err)
	}
	return inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, nil
}
