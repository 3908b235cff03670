// Package transport transmits the commands of package verbs to a device.
//
// A [Transport] is one open device file. The file belongs to the kernel or to a service that traps the calls on it
// ([Open]). The file may also belong to a service at the other end of a socket, or to package uverbs in this process
// (verbs/embed). All commands are those of the Linux user ABI. A provider therefore needs only one implementation.
package transport

import (
	"context"
	"errors"
	"os"
	"sync"
)

// ErrClosed is the error of a call on a closed Transport, or on an event file of a closed Transport.
var ErrClosed = errors.New("verbs: use of a closed device")

// Transport is an open device file. The methods are safe for concurrent use. Close may be called again.
//
// A command, the arguments of a method, and the buffers for their responses must be in memory of [Transport.Scratch].
// The other end accesses no other memory of this process except registered memory.
type Transport interface {
	// Write executes a write(2) of one command, which is the first n bytes of s. mem is the memory that the command
	// registers, or nil. The error is a syscall.Errno or ErrClosed, or wraps one of them. Write may sleep.
	Write(s *Scratch, n int, mem []byte) error
	// Ioctl executes an ioctl(2) with RDMA_VERBS_IOCTL. The argument is at the start of s. Errors are those of Write.
	// Ioctl may sleep.
	Ioctl(s *Scratch) error
	// Scratch returns memory for a command. The caller must free the memory with Scratch.Free.
	Scratch() *Scratch
	// Doorbell rings the doorbell of a queue pair, which is given by its handle. Doorbell is equivalent to a POST_SEND
	// without work requests. Doorbell does not sleep.
	Doorbell(qp uint32) error
	// Map maps a queue at an offset of the device file for reading and writing. Unmap removes the mapping. Map and
	// Unmap may sleep.
	Map(offset uint64, size int) ([]byte, error)
	Unmap([]byte) error
	// Alloc returns memory for registration. The memory is zeroed, page-aligned and outside the heap of the garbage
	// collector. Alloc may sleep.
	Alloc(size int) (Memory, error)
	// Events takes ownership of an event file. fd is the descriptor of the file in a response.
	Events(fd uint32) (*Events, error)
	Close() error
}

// Memory is memory for registration.
type Memory struct {
	// Mem has at least the requested length.
	Mem []byte
	// Free makes the memory available for reuse. The memory remains mapped: a slice of it remains accessible.
	Free func()
}

// Events is a completion channel or the file of asynchronous events. The file is the read end of a pipe, or a file of
// the kernel.
type Events struct {
	f         *os.File
	fd        uint32        // the number of the file in commands
	readToken chan struct{} // contains an element while no goroutine reads
	buf       [64]byte      // used by the reading goroutine

	mu     sync.Mutex
	closed bool
	// watched is the Done channel of the context that can end reads, or nil. The context is watched from its first read
	// on, until a read has another context. A read with the same context therefore does not allocate.
	watched <-chan struct{}
	stop    func() bool
	woken   chan struct{} // closed when the end of the context has set a deadline

	onClose func() // called once after the close; may be nil
}

// OnClose sets a function that is called once after the Events have been closed. OnClose must be called before the
// first use of the Events.
func (e *Events) OnClose(f func()) { e.onClose = sync.OnceFunc(f) }

// newEvents creates Events for a file, and takes ownership of the file. fd is the number of the file in commands.
func newEvents(f *os.File, fd uint32) *Events {
	e := &Events{f: f, fd: fd, readToken: make(chan struct{}, 1)}
	e.readToken <- struct{}{}
	return e
}

// FD returns the number of the file in commands.
func (e *Events) FD() uint32 { return e.fd }

// Read waits for records until ctx ends. If ctx ends, the error is the cause of ctx. Read returns io.EOF if the device
// has been removed, and ErrClosed if the Events have been closed. Read returns whole records of at most 64 bytes in
// total, if they fit in b.
func (e *Events) Read(ctx context.Context, b []byte) (int, error) {
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-e.readToken:
		defer func() { e.readToken <- struct{}{} }()
	}
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	e.watchContext(ctx)
	n, err := e.f.Read(e.buf[:min(len(b), len(e.buf))])
	copy(b, e.buf[:max(n, 0)])
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, os.ErrClosed):
		err = ErrClosed
	}
	return n, err
}

// watchContext makes the end of ctx end the next read, and stops watching the former context.
func (e *Events) watchContext(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Done() == e.watched || e.closed {
		return
	}
	if e.watched != nil && !e.stop() {
		<-e.woken
		_ = e.f.SetReadDeadline(noDeadline)
	}
	if e.watched = ctx.Done(); e.watched == nil {
		return
	}
	woken := make(chan struct{})
	e.woken = woken
	e.stop = context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = e.f.SetReadDeadline(pastDeadline)
	})
}

// Close wakes waiting readers. Close may be called again.
func (e *Events) Close() error {
	e.mu.Lock()
	if e.watched != nil && !e.closed {
		e.stop()
	}
	e.closed = true
	e.mu.Unlock()
	err := e.f.Close()
	if e.onClose != nil {
		e.onClose()
	}
	if !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
