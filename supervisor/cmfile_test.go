package supervisor

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

// TestEdge tests that a program that polls edge-triggered, and has seen that there are no events, is woken by each new
// event, even if the byte of an earlier event is still in the pipe.
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
		t.Error("a new event: poller not woken")
	}
	// The program takes the event and polls, and the next event arrives, all while another thread updates the pipe.
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
		t.Error("another new event: poller not woken")
	}
	p.ready(true) // one event is left
	p.settle()
	if woken() {
		t.Error("no new event: poller woken")
	}
	p.ready(false)
	p.settle()
	if n, err := unix.IoctlGetInt(ends[0], unix.TIOCINQ); err != nil || n != 0 {
		t.Errorf("bytes in the pipe without events: got %d, %v", n, err)
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

// TestSettleWaits takes an event while the thread that wrote its byte to the pipe has not returned yet. The call that
// takes the event must be answered after the byte was removed. Otherwise a program that polls meanwhile would wait for
// an event that does not exist. (rsockets closes a socket so)
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
	p.want, p.busy = true, busy // the test acts as that thread
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
		t.Error("cmPipe.settle returned while another thread updates the pipe")
	case <-time.After(pipeTimeout / 5):
	}
	p.mu.Lock()
	p.full, p.busy = true, nil
	p.mu.Unlock()
	close(busy)
	<-settled
	if n, err := unix.IoctlGetInt(ends[0], unix.TIOCINQ); err != nil || n != 0 {
		t.Errorf("bytes in the pipe without events: got %d, %v", n, err)
	}
}
