package supervisor

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"verbena/internal/sched"
)

// notificationSource receives notifications for one thread until it is stopped.
type notificationSource struct {
	listener int
	direct   *directReceive // nil: poll before each receive
	fds      [2]unix.PollFd
	in       *receiveState
}

// directReceive is a second descriptor of a listener, from which threads receive without polling first. A thread that
// sleeps in the receive wakes when no process is left under the filter (Linux 6.11), or after stop.
type directReceive struct {
	file *os.File
	fd   int
}

// directReceiveSince is the first kernel in which a receive from a listener without processes returns: Linux 6.11.
// Tests change this variable.
var directReceiveSince = 6011

// newDirectReceive returns nil if the kernel requires polling.
func newDirectReceive(listener *os.File) (*directReceive, error) {
	if kernelVersion() < directReceiveSince {
		return nil, nil
	}
	fd, err := unix.FcntlInt(listener.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &directReceive{os.NewFile(uintptr(fd), "seccomp listener"), fd}, nil
}

// stop makes all receives fail, the present ones and later ones. The descriptor then refers to other, which is no
// listener. The signal interrupts the receives in progress, which the kernel then restarts with the new file, because
// Go installs its handlers with SA_RESTART. stop must be called after the stop of all sources.
func (d *directReceive) stop(other *os.File, t *workerTokens) {
	if d == nil {
		return
	}
	conn, err := d.file.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { err = unix.Dup3(int(other.Fd()), int(fd), unix.O_CLOEXEC) })
	}
	if err == nil { // otherwise the session has ended
		t.signalWorkers()
	}
}

//verbena:allow close the file is a listener, or the own one in its place, and no close of these waits
func (d *directReceive) close() {
	if d != nil {
		d.file.Close()
	}
}

// receiveState is the state shared by the sources of one listener. Receiving without a pending notification may sleep
// without bound. Therefore only one source at a time receives, and first checks whether another source has taken
// the notification.
type receiveState struct {
	mu    sched.Mutex
	taken atomic.Uint64 // number of notifications received
}

// newNotificationSource returns a source that ends when stop becomes readable or loses its last writer.
func newNotificationSource(listener, stop *os.File, in *receiveState) *notificationSource {
	s := &notificationSource{listener: int(listener.Fd()), in: in}
	s.fds[0] = unix.PollFd{Fd: int32(s.listener), Events: unix.POLLIN}
	s.fds[1] = unix.PollFd{Fd: int32(stop.Fd()), Events: unix.POLLIN}
	return s
}

// next waits for a notification. It returns false when no process is left under the filter, or after stop.
//
// Without a directReceive, next polls, because before Linux 6.11 receiving from a listener without processes would not
// return.
func (s *notificationSource) next(n *notification) bool {
	for s.direct != nil {
		if receiveNotification(s.direct.fd, n) == nil {
			return true
		}
		if _, ok := s.poll(0); !ok {
			return false
		}
		// The thread of the notification was killed.
	}
	for {
		before := s.in.taken.Load()
		if ready, ok := s.poll(-1); !ok {
			return false
		} else if ready && s.takePendingNotification(before, n) {
			return true
		}
		// A signal arrived, another source took the notification, or the thread was killed.
	}
}

// takePendingNotification takes the notification that the caller saw when before notifications had been taken, if it is
// still pending.
func (s *notificationSource) takePendingNotification(before uint64, n *notification) bool {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	if s.in.taken.Load() != before {
		if ready, _ := s.poll(0); !ready {
			return false
		}
	}
	s.in.taken.Add(1)
	return receiveNotification(s.listener, n) == nil
}

// poll waits for a notification, up to a time in milliseconds; -1 means without limit. ok is false at the end.
func (s *notificationSource) poll(timeout int) (ready, ok bool) {
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
