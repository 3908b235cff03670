package rblk

import (
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
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
	return &file{f, size}, nil
}

func (f *file) Size() int64 { return f.size }

// Memory is a Store in memory.
type Memory struct {
	mu sync.RWMutex
	b  []byte
}

// NewMemory returns a store of n zero bytes.
func NewMemory(n int64) *Memory { return &Memory{b: make([]byte, n)} }

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
