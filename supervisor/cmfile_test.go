package supervisor

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

// TestEventWakesEdgeTriggeredPoll tests that each new event wakes a program that polls edge-triggered and has seen no
// events, even if the byte of an earlier event is still in the pipe.
func TestEventWakesEdgeTriggeredPoll(t *testing.T) {
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
		user: chargePipe(t, quota.New(quota.Limits{}).User(0))}
	defer p.close()
	p.setReady(true)
	p.updatePipe()
	if !woken() {
		t.Error("poll after a new event: got no wakeup, want one")
	}
	// The program takes the event and polls, and the next event arrives. During all of this, another thread is
	// updating the pipe.
	p.mu.Lock()
	busy := make(chan struct{})
	p.busy = busy
	p.mu.Unlock()
	p.setReady(false)
	p.setReady(true)
	p.mu.Lock()
	p.busy = nil
	p.mu.Unlock()
	close(busy)
	p.updatePipe()
	if !woken() {
		t.Error("poll after another new event: got no wakeup, want one")
	}
	p.setReady(true) // one event remains
	p.updatePipe()
	if woken() {
		t.Error("poll without a new event: got a wakeup, want none")
	}
	p.setReady(false)
	p.updatePipe()
	if n, err := unix.IoctlGetInt(ends[0], unix.TIOCINQ); err != nil || n != 0 {
		t.Errorf("bytes in the pipe without events: got %d and error %v, want 0", n, err)
	}
}

// chargePipe charges a pipe to a user.
func chargePipe(t *testing.T, u *quota.User) *quota.User {
	t.Helper()
	if err := u.Charge(quota.Descriptors, descriptorsPerPipe); err != nil {
		t.Fatal(err)
	}
	return u
}

// TestTakenEventLeavesPipeEmpty takes an event while the thread that wrote the event's byte to the pipe has not
// returned yet. The supervisor must answer the call that takes the event after the byte was removed. Otherwise a
// program that polls meanwhile would wait for an event that does not exist. (rsockets closes a socket in this way.)
func TestTakenEventLeavesPipeEmpty(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	p := &cmPipe{end: os.NewFile(uintptr(ends[1]), "pipe"), fd: ends[1],
		user: chargePipe(t, quota.New(quota.Limits{}).User(0))}
	defer p.close()
	busy := make(chan struct{})
	p.mu.Lock()
	p.want, p.busy = true, busy // the test acts as the updating thread
	p.mu.Unlock()
	setPipe(ends[1], true)
	p.setReady(false)
	updated := make(chan struct{})
	go func() {
		p.updatePipe()
		close(updated)
	}()
	select {
	case <-updated:
		t.Error("update while another thread updates the pipe: got a return, want a wait")
	case <-time.After(pipeTimeout / 5):
	}
	p.mu.Lock()
	p.full, p.busy = true, nil
	p.mu.Unlock()
	close(busy)
	<-updated
	if n, err := unix.IoctlGetInt(ends[0], unix.TIOCINQ); err != nil || n != 0 {
		t.Errorf("bytes in the pipe without events: got %d and error %v, want 0", n, err)
	}
}
