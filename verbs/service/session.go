package service

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/ctl/devfile"
	"verbena/verbs/internal/transport"
)

// session is an open file of a service, of any kind.
type session struct {
	name    string
	buffers *bufferPool
	arena   *transport.Arena // for commands
	signal  *os.File         // the service closes its end when it has ended

	asking sync.Mutex // held during a request and its reply
	c      devfile.Conn

	dead atomic.Bool // the service has ended
}

// dialFile opens a file of the service. dialFile also returns extra descriptors in addition to those of the session.
func dialFile(loc ctl.Location, name string, extra int) (*session, *ctl.OpenResult, []int, error) {
	client, err := ctl.Dial(loc)
	if err != nil {
		return nil, nil, nil, err
	}
	opened, nc, err := client.Open(name)
	if err != nil {
		client.Close()
		return nil, nil, nil, err
	}
	x := &session{name: name, c: devfile.Conn{UnixConn: nc}}
	a, fds, err := x.c.ReceiveAnswer()
	if err == nil {
		err = a.Err()
	}
	if err == nil && len(fds) != devfile.BufferFile+1+extra {
		devfile.CloseAll(fds)
		err = fmt.Errorf("%d descriptors came: %w", len(fds), syscall.EPROTO)
	}
	if err != nil {
		nc.Close()
		return nil, nil, nil, fmt.Errorf("open %s: %w", name, err)
	}
	_ = unix.SetNonblock(fds[devfile.Signal], true)
	x.signal = os.NewFile(uintptr(fds[devfile.Signal]), "signal")
	x.buffers = newBufferPool(os.NewFile(uintptr(fds[devfile.BufferFile]), "buffers"), x.allocPiece)
	x.arena = transport.NewArena(x.allocScratch)
	return x, opened, fds[devfile.BufferFile+1:], nil
}

// endSession ends the session. No method may be running or begin later.
func (x *session) endSession() {
	x.arena.Close()
	x.buffers.endMemorySharing()
	x.c.Close()
	x.signal.Close()
}

// sendRequest sends a request with descriptors. sendRequest returns the reply together with the descriptor of the
// reply, or -1.
func (x *session) sendRequest(r devfile.Request, with ...int) (devfile.Answer, int, error) {
	x.asking.Lock()
	defer x.asking.Unlock()
	err := x.c.SendRequest(r, with...)
	var a devfile.Answer
	var fds []int
	if err == nil {
		a, fds, err = x.c.ReceiveAnswer()
	}
	switch {
	case errors.Is(err, net.ErrClosed):
		return a, -1, transport.ErrClosed
	case err != nil:
		x.dead.Store(true)
		return a, -1, errServiceEnded
	}
	got := -1
	if len(fds) > 0 {
		got = fds[0]
		devfile.CloseAll(fds[1:])
	}
	return a, got, a.Err()
}

// allocPiece requests a piece of the buffer file, and maps it at an address.
func (x *session) allocPiece(addr uint64, n int) (offset uint64, err error) {
	a, _, err := x.sendRequest(devfile.Request{Op: devfile.OpAlloc, Addr: addr, N: uint64(n)})
	return a.N, err
}

// allocScratch returns memory for commands. If no memory is available, because the file is closed or the user's limit
// is reached, allocScratch returns memory that the service cannot access. The command then fails without a wait.
func (x *session) allocScratch(size int) (transport.Memory, error) {
	if m, err := x.buffers.allocMemory(size); err == nil {
		return m, nil
	}
	return transport.Memory{Mem: make([]byte, size), Free: func() {}}, nil
}

// Scratch returns memory for a command. (transport.Transport, transport.CM)
func (x *session) Scratch() *transport.Scratch { return x.arena.Get() }
