package rights

import (
	"io"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

const (
	// maxClosing limits the number of descriptors of one user that are being closed at the same time.
	maxClosing = 4
	// maxReceiving limits the number of messages of one user with descriptors that are not closed yet.
	maxReceiving = 2
	// workerPause is the time between two attempts to charge a worker to a user at the limit.
	workerPause = 250 * time.Millisecond
)

// Queues holds the queues of all users. The zero value is ready for use.
type Queues struct {
	mu sync.Mutex
	of map[*quota.User]*Queue
}

// QueueOf returns the queue of a user, which is always the same value.
func (s *Queues) QueueOf(u *quota.User) *Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[*quota.User]*Queue{}
	}
	q := s.of[u]
	if q == nil {
		q = &Queue{user: u, closing: make(chan struct{}, maxClosing), receiving: make(chan struct{}, maxReceiving)}
		s.of[u] = q
	}
	return q
}

// Queue closes the descriptors of one user, a few at a time. Queue is safe for concurrent use. The nil Queue, for
// descriptors of trusted senders, closes at once and without a limit.
type Queue struct {
	user      *quota.User
	closing   chan struct{}
	receiving chan struct{}
}

// RunClose calls f, which closes an object of the user, when fewer than maxClosing other calls are running. RunClose
// can block for a time that the user controls.
func (q *Queue) RunClose(f func()) {
	if q == nil {
		f()
		return
	}
	q.closing <- struct{}{}
	defer func() { <-q.closing }()
	for q.user.Charge(quota.Workers, 1) != nil {
		time.Sleep(workerPause) // only this goroutine waits, not its thread
	}
	defer q.user.Release(quota.Workers, 1)
	f()
}

// Close closes a descriptor. Close may sleep, like RunClose.
//
//verbena:closes
func (q *Queue) Close(fd int) { q.RunClose(func() { closeWithoutLinger(fd) }) }

// closeWithoutLinger closes a descriptor sent by a user. It first disables SO_LINGER, which would delay the close of a
// socket. The close of a file of a FUSE server can still block.
//
//verbena:closes
func closeWithoutLinger(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	unix.Close(fd)
}

// maxDrainedMessages exceeds the number of messages that fit into a Unix socket's queue.
const maxDrainedMessages = 1024

// DrainAndClose closes a socket that a user writes to. End first receives the unread messages and closes the
// descriptors in them. Otherwise the kernel would close these descriptors within close(2), with their SO_LINGER.
// DrainAndClose may sleep, like RunClose.
func (q *Queue) DrainAndClose(c socket) { q.RunClose(func() { drainAndClose(c) }) }

// socket is a *net.UnixConn, or the *os.File of a socket.
type socket interface {
	syscall.Conn
	io.Closer
}

//verbena:closes
func drainAndClose(c socket) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { drainSocket(int(fd)) })
	}
	c.Close()
}

// drainSocket shuts a socket down, which also affects duplicates of its descriptor. Then drain receives the unread
// messages and closes the descriptors in them.
//
//verbena:receives
func drainSocket(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	oob := controlPool.Get().(*[]byte)
	defer controlPool.Put(oob)
	var b [4 << 10]byte
	for range maxDrainedMessages {
		n, control, _, _, err := unix.Recvmsg(fd, b[:], *oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 && control == 0 {
			return
		}
		var m receivedMessage
		_ = m.parseControlData((*oob)[:control]) // after an error, m still holds the descriptors parsed before it
		for _, received := range m.Files {
			closeWithoutLinger(received)
		}
	}
}

// CloseAll closes descriptors, one after another.
func (q *Queue) CloseAll(fds []int) {
	for _, fd := range fds {
		q.Close(fd)
	}
}

// beginReceiving counts a message, and returns false if there are too many messages. endReceiving ends the count.
func (q *Queue) beginReceiving() bool {
	if q == nil {
		return true
	}
	select {
	case q.receiving <- struct{}{}:
		return true
	default:
		return false
	}
}

func (q *Queue) endReceiving() {
	if q != nil {
		<-q.receiving
	}
}
