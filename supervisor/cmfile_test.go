package supervisor

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

// TestEdge: a program that polls edge-triggered, and has seen that there are no events, is woken for each that comes,
// also where the byte of an earlier one is still in the pipe.
func TestEdge(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ep)
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, ends[0],
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET&(1<<32-1)}); err != nil {
		t.Fatal(err)
	}
	woken := func() bool {
		n, err := unix.EpollWait(ep, make([]unix.EpollEvent, 1), 0)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	p := &cmPipe{end: os.NewFile(uintptr(ends[1]), "pipe"), fd: ends[1],
		user: withPipe(t, quota.New(quota.Limits{}).User(0))}
	defer p.close()
	p.ready(true)
	p.settle()
	if !woken() {
		t.Error("an event comes: not woken")
	}
	// The program takes it, looks again, and the next event comes, all while another thread has the pipe.
	p.mu.Lock()
	busy := make(chan struct{})
	p.busy = busy
	p.mu.Unlock()
	p.ready(false)
	p.ready(true)
	p.mu.Lock()
	p.busy = nil
	p.mu.Unlock()
	close(busy)
	p.settle()
	if !woken() {
		t.Error("another event comes: not woken")
	}
	p.ready(true) // one is left
	p.settle()
	if woken() {
		t.Error("no event comes: woken")
	}
	p.ready(false)
	p.settle()
	if n, err := unix.IoctlGetInt(ends[0], unix.TIOCINQ); err != nil || n != 0 {
		t.Errorf("no events: %d bytes in the pipe, %v", n, err)
	}
}

// withPipe charges a pipe to a user.
func withPipe(t *testing.T, u *quota.User) *quota.User {
	t.Helper()
	if err := u.Take(quota.Descriptors, pipeDescriptors); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestSettleWaits: an event is taken while the thread that has put the byte for it into the pipe is not back yet. The
// call that takes it is answered when the byte is out again: a program that polls meanwhile would wait for an event
// that there is not. (rsockets closes a socket so)
func TestSettleWaits(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	p := &cmPipe{end: os.NewFile(uintptr(ends[1]), "pipe"), fd: ends[1],
		user: withPipe(t, quota.New(quota.Limits{}).User(0))}
	defer p.close()
	busy := make(chan struct{})
	p.mu.Lock()
	p.want, p.busy = true, busy // the test is that thread
	p.mu.Unlock()
	setPipe(ends[1], true)
	p.ready(false)
	settled := make(chan struct{})
	go func() {
		p.settle()
		close(settled)
	}()
	select {
	case <-settled:
		t.Error("settled while another thread has the pipe")
	case <-time.After(pipePatience / 5):
	}
	p.mu.Lock()
	p.full, p.busy = true, nil
	p.mu.Unlock()
	close(busy)
	<-settled
	if n, err := unix.IoctlGetInt(ends[0], unix.TIOCINQ); err != nil || n != 0 {
		t.Errorf("no events: %d bytes in the pipe, %v", n, err)
	}
}
