package transport

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// kernelFile is a device file of the kernel, or of a service that traps the calls on the file.
type kernelFile struct {
	f         *os.File
	fd        int
	arena     *Arena
	doorbells sync.Pool // *doorbell

	mu     sync.RWMutex // read-locked while fd is in use, write-locked to close fd
	closed bool
}

// Open opens a device file, such as /dev/infiniband/uverbs0.
func Open(path string) (Transport, error) {
	// os.OpenFile would set O_NONBLOCK for reads, but a read from a uverbs file is an error.
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	t := &kernelFile{f: os.NewFile(uintptr(fd), path), fd: fd}
	t.doorbells.New = func() any { return newDoorbellCommand() }
	t.arena = NewArena(Anonymous)
	return t, nil
}

// IsKernelFile reports whether a Transport is a device file of the kernel, or one that a service traps. The service of
// such a file polls the doorbells that programs store in memory.
func IsKernelFile(t Transport) bool {
	_, ok := t.(*kernelFile)
	return ok
}

func retryEINTR[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err != unix.EINTR {
			return v, err
		}
	}
}

func (t *kernelFile) Scratch() *Scratch { return t.arena.Get() }

func (t *kernelFile) Write(s *Scratch, n int, _ []byte) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return ErrClosed
	}
	_, err := retryEINTR(func() (int, error) { return unix.Write(t.fd, s.Mem[:n]) })
	return err
}

func (t *kernelFile) Ioctl(s *Scratch) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return ErrClosed
	}
	_, err := retryEINTR(func() (struct{}, error) { return struct{}{}, ioctl(t.fd, uapi.VerbsIoctl, s.Mem) })
	return err
}

// doorbellCommand is a doorbell command together with the buffer for its response.
type doorbellCommand struct {
	cmd  [doorbellCommandSize]byte
	resp [8]byte
}

const doorbellCommandSize = 8 + 24

func newDoorbellCommand() *doorbellCommand {
	b := &doorbellCommand{}
	hdr := uapi.CmdHdr{Command: uint32(uapi.CmdPostSend), InWords: doorbellCommandSize / 4, OutWords: 1}
	uapi.Encode(b.cmd[:], &hdr)
	return b
}

func (t *kernelFile) Doorbell(qp uint32) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return ErrClosed
	}
	b := t.doorbells.Get().(*doorbellCommand)
	defer t.doorbells.Put(b)
	req := uapi.PostSend{Response: AddressOf(b.resp[:]), QPHandle: qp, WQESize: uint32(uapi.SizeOf[uapi.SendWR]())}
	uapi.Encode(b.cmd[8:], &req)
	for {
		_, err := unix.Write(t.fd, b.cmd[:])
		if err != unix.EINTR {
			return err
		}
	}
}

func (t *kernelFile) Map(offset uint64, size int) ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return nil, ErrClosed
	}
	b, err := unix.Mmap(t.fd, int64(offset), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a queue of %d bytes: %w", size, err)
	}
	return b, nil
}

func (t *kernelFile) Unmap(b []byte) error { return unix.Munmap(b) }

func (t *kernelFile) Alloc(size int) (Memory, error) {
	return Anonymous(size)
}

func (t *kernelFile) Events(fd uint32) (*Events, error) { return EventsOf(int(fd), fd) }

// EventsOf takes ownership of descriptor fd. number is the number of the file in commands.
func EventsOf(fd int, number uint32) (*Events, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("event file: %w", err)
	}
	return newEvents(os.NewFile(uintptr(fd), "events"), number), nil
}

func (t *kernelFile) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.arena.Close()
	return t.f.Close()
}
