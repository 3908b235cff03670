package guest

import (
	"os"

	"golang.org/x/sys/unix"
)

// source is where one thread receives notifications until it is told to stop.
type source struct {
	listener int
	fds      [2]unix.PollFd
}

// newSource: stop becomes readable, or has no writer any more, when receiving is to end.
func newSource(listener, stop *os.File) *source {
	s := &source{listener: int(listener.Fd())}
	s.fds[0] = unix.PollFd{Fd: int32(s.listener), Events: unix.POLLIN}
	s.fds[1] = unix.PollFd{Fd: int32(stop.Fd()), Events: unix.POLLIN}
	return s
}

// next waits for a notification. It returns false when no process is left under the filter, or on stop.
//
// It polls because before Linux 6.11 to receive from a listener without processes would sleep for ever.
func (s *source) next(n *notification) bool {
	for {
		if ready, ok := s.poll(-1); !ok {
			return false
		} else if ready && receive(s.listener, n) == nil {
			return true
		}
		// A signal, or the thread was killed meanwhile.
	}
}

// poll waits up to a time in milliseconds, -1 for ever, for a notification. ok is false at the end.
func (s *source) poll(timeout int) (ready, ok bool) {
	n, err := unix.Poll(s.fds[:], timeout)
	if err != nil || n == 0 {
		return false, err == nil || err == unix.EINTR
	}
	if s.fds[1].Revents != 0 {
		return false, false
	}
	ready = s.fds[0].Revents&unix.POLLIN != 0
	return ready, ready || s.fds[0].Revents == 0
}
