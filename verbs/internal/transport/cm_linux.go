package transport

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// CM is an open file of the connection manager. The methods of a CM are safe for concurrent use. Commands must be in
// memory of Scratch.
type CM interface {
	// Write executes a write(2) of one command: the first n bytes of s. Errors are those of Transport.Write. Write may
	// sleep.
	Write(s *Scratch, n int) error
	// Await is the equivalent of Write for a command that receives an event. Await sleeps until an event arrives.
	Await(s *Scratch, n int) error
	Scratch() *Scratch
	Close() error
}

// cmFile is a file of the kernel, or of a service that traps the calls on the file.
type cmFile struct {
	f     *os.File
	raw   syscall.RawConn
	arena *Arena
}

// OpenCM opens the connection manager at a path.
func OpenCM(path string) (CM, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	c := &cmFile{f: os.NewFile(uintptr(fd), path), arena: NewArena(Anonymous)}
	if c.raw, err = c.f.SyscallConn(); err != nil {
		c.f.Close()
		return nil, err
	}
	return c, nil
}

func (c *cmFile) Scratch() *Scratch { return c.arena.Get() }

func (c *cmFile) Write(s *Scratch, n int) (err error) {
	if c.raw.Control(func(fd uintptr) { err = writeFD(fd, s.Mem[:n]) }) != nil {
		return ErrClosed
	}
	return err
}

func (c *cmFile) Await(s *Scratch, n int) (err error) {
	if c.raw.Read(func(fd uintptr) bool {
		err = writeFD(fd, s.Mem[:n])
		return err != unix.EAGAIN
	}) != nil {
		return ErrClosed
	}
	return err
}

func writeFD(fd uintptr, b []byte) error {
	_, err := retryEINTR(func() (int, error) { return unix.Write(int(fd), b) })
	return err
}

func (c *cmFile) Close() error {
	err := c.f.Close()
	c.arena.Close()
	return err
}
