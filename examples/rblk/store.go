package rblk

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Store is what a target exports: bytes at fixed places. Its methods may sleep, and are called by several goroutines
// at once, never for a range that is not within Size.
type Store interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns when all that was written before is safe. A target takes its error for final, and calls it no more:
	// what fsync(2) has failed to write it forgets, and the next one succeeds.
	Sync() error
	// Size is in bytes, and does not change.
	Size() int64
}

// Identifier is a Store that can be told from others. A Disk stays with the one it began with: one of the same name and
// size that has not what was written is none.
type Identifier interface {
	// ID is the same as long as what was written is there, also after a restart; "" if that cannot be told. At most 256
	// bytes.
	ID() string
}

// Cacher is a Store that may lose what was not synced while the target is away.
type Cacher interface {
	// Cache is the same as long as what was written and not synced is there, also after a restart; "" if that cannot be
	// told. At most 256 bytes.
	Cache() string
}

func cacheOf(s Store) string {
	if c, ok := s.(Cacher); ok {
		return c.Cache()
	}
	return ""
}

func idOf(s Store) string {
	if i, ok := s.(Identifier); ok {
		return i.ID()
	}
	return ""
}

// export is a Store whose Sync fails for good when it has failed once: whoever asks next, be it another initiator, or
// the same one again because the response was lost in a reset, must not hear that all is well.
type export struct {
	Store

	mu     sync.Mutex // held through Sync, so that one at the same time learns of it too
	failed error
}

func (e *export) Sync() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil {
		e.failed = e.Store.Sync()
	}
	return e.failed
}

// file is a Store in a file or a block device.
type file struct {
	*os.File
	size int64
	id   string
}

// OpenFile returns the store in a file or block device that exists. Its Close is the caller's, when no target exports
// it any more. It is locked against a second OpenFile as long (flock(2)): two targets on one disk ruin it.
func OpenFile(path string) (interface {
	Store
	io.Closer
}, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == syscall.EWOULDBLOCK {
			err = fmt.Errorf("%s is in use by another target: %w", path, syscall.EBUSY)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &file{f, size, fileID(f)}, nil
}

// fileID tells a file from one that has taken its place, perhaps with its inode number. A block device has none.
func fileID(f *os.File) string {
	const need = unix.STATX_TYPE | unix.STATX_INO | unix.STATX_BTIME
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, need, &st)
	if err != nil || st.Mask&need != need || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ""
	}
	return fmt.Sprintf("inode %d of %d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec)
}

func (f *file) Size() int64 { return f.size }

func (f *file) ID() string { return f.id }

// Cache is the life of the kernel, which has the pages that were not written back. (random(4), boot_id)
func (f *file) Cache() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Memory is a Store in memory.
type Memory struct {
	id string
	mu sync.RWMutex
	b  []byte
}

// NewMemory returns a store of n zero bytes.
func NewMemory(n int64) *Memory { return &Memory{id: rand.Text(), b: make([]byte, n)} }

// ID is another one for each memory.
func (m *Memory) ID() string { return m.id }

// ReadAt is that of io.ReaderAt.
func (m *Memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if off < 0 || off > int64(len(m.b)) {
		return 0, fmt.Errorf("read at %d of %d: %w", off, len(m.b), syscall.EINVAL)
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt is that of io.WriterAt; the memory does not grow.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if off < 0 || off+int64(len(p)) > int64(len(m.b)) {
		return 0, fmt.Errorf("write at %d of %d: %w", off, len(m.b), syscall.ENOSPC)
	}
	return copy(m.b[off:], p), nil
}

// Sync has nothing to do.
func (m *Memory) Sync() error { return nil }

// Size is what NewMemory was told.
func (m *Memory) Size() int64 { return int64(len(m.b)) }
