// Package transport carries the commands of package verbs to a device.
//
// A [Transport] is one open device file, wherever that is: of the kernel, or of a service that traps the calls on it ([Open]); of a
// service at the other end of a socket; of package uverbs in this process (verbs/embed). Commands are those of the Linux user ABI in
// all cases, so that a provider knows one way only.
package transport

import (
	"context"
	"errors"
	"os"
	"sync"
)

// ErrClosed is the error of a call on a Transport, or on an event file of one, that has been closed.
var ErrClosed = errors.New("verbs: use of a closed device")

// Transport is an open device file. Its methods are safe for concurrent use; Close may be called again.
//
// A command, the arguments of a method, and the places for their responses lie in memory of [Transport.Scratch]: the other end reads and
// writes nothing else of this process, but the memory that is registered.
type Transport interface {
	// Write performs a write(2) of one command: the first n bytes of s. mem is the memory that the command registers, nil for none.
	// The error is a syscall.Errno, ErrClosed, or wraps one of them. It may sleep.
	Write(s *Scratch, n int, mem []byte) error
	// Ioctl performs an ioctl(2) with RDMA_VERBS_IOCTL: its argument is at the start of s. Errors as those of Write. It may sleep.
	Ioctl(s *Scratch) error
	// Scratch returns memory for a command, which the caller gives back with Scratch.Free.
	Scratch() *Scratch
	// Doorbell rings for the send queue of a queue pair, by its handle: a POST_SEND of no work requests. It does not sleep.
	Doorbell(qp uint32) error
	// Map maps a queue at an offset of the device file, for reading and writing; Unmap ends that. They may sleep.
	Map(offset uint64, size int) ([]byte, error)
	Unmap([]byte) error
	// Alloc returns memory that can be registered: zeroed, aligned to a page, outside of the collector's heap. It may sleep.
	Alloc(size int) (Memory, error)
	// Events takes over the event file that a response names by a descriptor.
	Events(fd uint32) (*Events, error)
	Close() error
}

// Memory is memory that can be registered.
type Memory struct {
	// Mem is as long as was asked for, or longer.
	Mem []byte
	// Free gives the memory back for others to use. It stays mapped: a slice of it that was kept is harmless.
	Free func()
}

// Events is a completion channel or the file of asynchronous events: the reading end of a pipe, or a file of the kernel.
type Events struct {
	f    *os.File
	fd   uint32        // by which commands name it
	turn chan struct{} // has an element while no goroutine reads
	buf  [64]byte      // of the goroutine that reads

	mu     sync.Mutex
	closed bool
	// watched is the context that ends reads: its Done channel, nil for none. It is watched from the first read on until one has another
	// context, so that a read that has the same allocates nothing.
	watched <-chan struct{}
	stop    func() bool
	woken   chan struct{} // closed when the end of the context has set a deadline

	onClose func() // called once when it has been closed; nil: nothing is
}

// OnClose sets a function that is called once the Events have been closed. It is set before they are used.
func (e *Events) OnClose(f func()) { e.onClose = sync.OnceFunc(f) }

// NewEvents makes Events of a file, which becomes its own. Commands name it by fd.
func NewEvents(f *os.File, fd uint32) *Events {
	e := &Events{f: f, fd: fd, turn: make(chan struct{}, 1)}
	e.turn <- struct{}{}
	return e
}

// FD is the number by which commands name the file.
func (e *Events) FD() uint32 { return e.fd }

// Read waits for records until ctx ends, whose cause is then the error. io.EOF says that the device has gone, ErrClosed that this end was
// closed. It returns whole records if b has room for whole ones, at most 64 bytes.
func (e *Events) Read(ctx context.Context, b []byte) (int, error) {
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-e.turn:
		defer func() { e.turn <- struct{}{} }()
	}
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	e.watch(ctx)
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

// watch makes the end of the context end the read that follows, and that of an earlier one not.
func (e *Events) watch(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Done() == e.watched || e.closed {
		return
	}
	if e.watched != nil && !e.stop() {
		<-e.woken
		_ = e.f.SetReadDeadline(never)
	}
	if e.watched = ctx.Done(); e.watched == nil {
		return
	}
	woken := make(chan struct{})
	e.woken = woken
	e.stop = context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = e.f.SetReadDeadline(past)
	})
}

// Close ends waiting readers. It may be called again.
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
