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

// Store is storage that a target exports. The methods of a Store may sleep. Several goroutines call them
// concurrently, never for a range outside Size.
type Store interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns when all earlier writes are durable. A target treats an error as permanent, and does not call Sync
	// again: after a failed fsync(2) the kernel drops the data, and the next call succeeds.
	Sync() error
	// Size returns the size in bytes, which does not change.
	Size() int64
}

// Identifier is implemented by a Store with an identity. A Disk uses only the store with which it began, and
// rejects another store with the same name and size.
type Identifier interface {
	// ID returns a value that stays the same while the written data exists, also after a restart, or "" if the
	// store has no such value. At most 256 bytes.
	ID() string
}

// CacheIdentifier is implemented by a Store that may lose unsynced data while the target is down.
type CacheIdentifier interface {
	// Cache returns a value that stays the same while unsynced data exists, also after a restart, or "" if the
	// store has no such value. At most 256 bytes.
	Cache() string
}

func cacheIDOf(s Store) string {
	if c, ok := s.(CacheIdentifier); ok {
		return c.Cache()
	}
	return ""
}

func storeIDOf(s Store) string {
	if i, ok := s.(Identifier); ok {
		return i.ID()
	}
	return ""
}

// exportedStore is a Store in which Sync fails permanently after one failure. A later caller must not get success. The
// caller may be another initiator, or the same initiator after a reset has lost the response.
type exportedStore struct {
	Store

	mu     sync.Mutex // held during Sync, so that concurrent callers also get the error
	failed error
}

func (e *exportedStore) Sync() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil {
		e.failed = e.Store.Sync()
	}
	return e.failed
}

// fileStore is a Store in a file or a block device.
type fileStore struct {
	*os.File
	size int64
	id   string
}

// OpenFile returns the store in an existing file or block device. The caller must close it after the last target
// has stopped exporting it. OpenFile locks the file against a second OpenFile (flock(2)), because two targets would
// corrupt the disk.
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
	return &fileStore{f, size, fileID(f)}, nil
}

// fileID returns an ID that distinguishes a file from a later file of the same name, even with the same inode
// number. A block device has no ID, and neither has a file on a file system without birth times.
func fileID(f *os.File) string {
	const need = unix.STATX_TYPE | unix.STATX_INO | unix.STATX_BTIME
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, need, &st)
	if err != nil || st.Mask&need != need || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ""
	}
	return fmt.Sprintf("inode %d of %d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec)
}

func (f *fileStore) Size() int64 { return f.size }

func (f *fileStore) ID() string { return f.id }

// Cache returns the boot ID of the kernel, because the page cache holds the unsynced data. (random(4), boot_id)
func (f *fileStore) Cache() string {
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

// ID returns a value that is unique for each Memory.
func (m *Memory) ID() string { return m.id }

// ReadAt implements io.ReaderAt.
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

// WriteAt implements io.WriterAt. The memory does not grow.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if off < 0 || off+int64(len(p)) > int64(len(m.b)) {
		return 0, fmt.Errorf("write at %d of %d: %w", off, len(m.b), syscall.ENOSPC)
	}
	return copy(m.b[off:], p), nil
}

// Sync does nothing.
func (m *Memory) Sync() error { return nil }

// Size returns the argument of NewMemory.
func (m *Memory) Size() int64 { return int64(len(m.b)) }
