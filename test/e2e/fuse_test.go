//go:build e2e

package e2e

import (
	wire "encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stallFS is a file system of an ordinary user. The file system does not answer requests until the test releases
// them. stallFS implements the kernel's FUSE protocol (linux/fuse.h), and is mounted with the options of
// fusermount3(1). The only file is named "page".
type stallFS struct {
	t    *testing.T
	dir  string
	fd   int
	once sync.Once

	// arrived receives the name of the file of each held request.
	arrived chan string

	mu      sync.Mutex
	holds   map[uint32]bool // operations that wait until release
	content []byte
	free    chan struct{} // closed by release
}

// These constants are operations and sizes from linux/fuse.h.
const (
	fuseLookup      = 1
	fuseForget      = 2
	fuseGetattr     = 3
	fuseOpen        = 14
	fuseRead        = 15
	fuseWrite       = 16
	fuseRelease     = 18
	fuseFlush       = 25
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseBatchForget = 42

	fuseInHeader = 40
	fuseOutSize  = 16
	fuseRoot     = 1
	fuseFile     = 2
)

var fuseOpNames = map[uint32]string{fuseGetattr: "getattr", fuseRead: "read", fuseWrite: "write", fuseFlush: "flush"}

// newStallFS mounts the file system for a user. The file system answers the operations in hold only after release.
func newStallFS(t *testing.T, uid uint32, hold ...uint32) *stallFS {
	t.Helper()
	needRoot(t)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	needCondition(t, err == nil, fmt.Sprintf("/dev/fuse: %v", err))
	dir, err := os.MkdirTemp("", "verbena-fuse-")
	if err != nil {
		t.Fatal(err)
	}
	os.Chown(dir, int(uid), int(uid))
	f := &stallFS{t: t, dir: dir, fd: fd, arrived: make(chan string, 4096), holds: map[uint32]bool{},
		content: make([]byte, 1<<20), free: make(chan struct{})}
	for _, op := range hold {
		f.holds[op] = true
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, uid, uid)
	if err := unix.Mount("verbena-test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		os.Remove(dir)
		needCondition(t, false, fmt.Sprintf("mount a FUSE file system: %v", err))
	}
	t.Cleanup(f.abort)
	go f.serveRequests()
	return f
}

// abort fails every request, including held requests, and ends the file system.
func (f *stallFS) abort() {
	f.once.Do(func() {
		f.releaseHeld(nil)
		_ = unix.Unmount(f.dir, unix.MNT_FORCE)
		_ = unix.Unmount(f.dir, unix.MNT_DETACH)
		os.Remove(f.dir)
	})
}

func (f *stallFS) pagePath() string { return filepath.Join(f.dir, "page") }

// releaseHeld answers the held requests and all later ones. After release, the file begins with content.
func (f *stallFS) releaseHeld(content []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	copy(f.content, content)
	if len(f.holds) > 0 {
		f.holds = nil
		close(f.free)
	}
}

// awaitRequest returns when a held request for the file with this name has arrived.
func (f *stallFS) awaitRequest(name string) {
	f.t.Helper()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case got := <-f.arrived:
			if got == name {
				return
			}
		case <-timeout:
			f.t.Fatalf("request %s of the file: timed out", name)
		}
	}
}

func (f *stallFS) serveRequests() {
	defer unix.Close(f.fd)
	for {
		buf := make([]byte, 1<<17+4096)
		n, err := unix.Read(f.fd, buf)
		switch {
		case err == unix.EINTR || err == unix.ENOENT || err == unix.EAGAIN:
			continue
		case err != nil: // ENODEV: the file system was unmounted
			return
		}
		op := wire.NativeEndian.Uint32(buf[4:])
		f.mu.Lock()
		held := f.holds[op]
		f.mu.Unlock()
		if !held {
			f.answerRequest(op, buf[:n])
			continue
		}
		select {
		case f.arrived <- fuseOpNames[op]:
		default:
		}
		go func() {
			<-f.free
			f.answerRequest(op, buf[:n])
		}()
	}
}

func (f *stallFS) answerRequest(op uint32, in []byte) {
	body := make([]byte, fuseOutSize)
	var errno syscall.Errno
	u32 := func(v ...uint32) {
		for _, x := range v {
			body = wire.NativeEndian.AppendUint32(body, x)
		}
	}
	u64 := func(v ...uint64) {
		for _, x := range v {
			body = wire.NativeEndian.AppendUint64(body, x)
		}
	}
	attr := func(node uint64) { // struct fuse_attr
		mode, size := uint32(unix.S_IFREG|0o666), uint64(len(f.content))
		if node == fuseRoot {
			mode, size = unix.S_IFDIR|0o755, 0
		}
		u64(node, size, 0, 0, 0, 0)
		u32(0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
	}
	node := wire.NativeEndian.Uint64(in[16:])
	arg := in[fuseInHeader:]
	switch op {
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return
	case fuseInit:
		u32(7, 31, 1<<17, 0)
		body = append(body, 0, 0, 0, 0) // max_background, congestion_threshold
		u32(1<<17, 1)
		body = append(body, make([]byte, 36)...)
	case fuseLookup:
		if string(arg[:len(arg)-1]) != "page" {
			errno = syscall.ENOENT
			break
		}
		u64(fuseFile, 0, 3600, 0) // the name is valid for an hour; the kernel requests the attributes each time
		u32(0, 0)
		attr(fuseFile)
	case fuseGetattr:
		u64(0)
		u32(0, 0)
		attr(node)
	case fuseOpen:
		u64(0)
		u32(2, 0) // FOPEN_KEEP_CACHE
	case fuseRead:
		offset, size := wire.NativeEndian.Uint64(arg[8:]), uint64(wire.NativeEndian.Uint32(arg[16:]))
		f.mu.Lock()
		if offset < uint64(len(f.content)) {
			body = append(body, f.content[offset:min(offset+size, uint64(len(f.content)))]...)
		}
		f.mu.Unlock()
	case fuseWrite:
		u32(wire.NativeEndian.Uint32(arg[16:]), 0)
	case fuseRelease, fuseFlush:
	default:
		errno = syscall.ENOSYS
	}
	if errno != 0 {
		body = body[:fuseOutSize]
	}
	wire.NativeEndian.PutUint32(body, uint32(len(body)))
	wire.NativeEndian.PutUint32(body[4:], uint32(-int32(errno)))
	copy(body[8:16], in[8:16])
	_, _ = unix.Write(f.fd, body) // ENOENT: the request was interrupted
}
