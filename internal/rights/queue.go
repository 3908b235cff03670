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
	// maxClosing is the number of descriptors of one user that are being closed at a time.
	maxClosing = 4
	// maxReceiving is the number of messages of one user whose descriptors are held until they have been closed.
	maxReceiving = 2
	// workerPause is the time between two attempts to charge a worker to a user who is at the limit.
	workerPause = 250 * time.Millisecond
)

// Queues are those of all users. The zero value is ready for use.
type Queues struct {
	mu sync.Mutex
	of map[*quota.User]*Queue
}

// Of returns the queue of a user, which is one and the same as long as the Queues exist.
func (s *Queues) Of(u *quota.User) *Queue {
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

// Queue closes the descriptors of one user, a few at a time. It is safe for concurrent use. The nil Queue closes at
// once, and has no bound: it is for descriptors of trusted senders.
type Queue struct {
	user      *quota.User
	closing   chan struct{}
	receiving chan struct{}
}

// Do calls f, which closes something of the user's, when fewer than maxClosing others do so. It may sleep for as long
// as the user likes.
func (q *Queue) Do(f func()) {
	if q == nil {
		f()
		return
	}
	q.closing <- struct{}{}
	defer func() { <-q.closing }()
	for q.user.Take(quota.Workers, 1) != nil {
		time.Sleep(workerPause) // this goroutine, and no thread, waits
	}
	defer q.user.Give(quota.Workers, 1)
	f()
}

// Close closes a descriptor. It may sleep, as Do does.
//
//verbena:closes
func (q *Queue) Close(fd int) { q.Do(func() { closeNow(fd) }) }

// closeNow closes a descriptor that a user has sent. It turns SO_LINGER off, which would delay the close of a socket.
// The close of a file of a FUSE server can still block.
//
//verbena:closes
func closeNow(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	unix.Close(fd)
}

// maxDrained is larger than the number of messages that a Unix socket's queue has room for.
const maxDrained = 1024

// End closes a socket that a user writes to. It first receives the unread messages and closes the descriptors in them:
// the kernel would close these within close(2) and observe their SO_LINGER. It may sleep, as Do does.
func (q *Queue) End(c Socket) { q.Do(func() { end(c) }) }

// A Socket is a *net.UnixConn, or the *os.File of a socket.
type Socket interface {
	syscall.Conn
	io.Closer
}

//verbena:closes
func end(c Socket) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { drain(int(fd)) })
	}
	c.Close()
}

// drain shuts a socket down, also for duplicates of its descriptor, receives its unread messages, and closes the
// descriptors in them.
//
//verbena:receives
func drain(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	oob := controlPool.Get().(*[]byte)
	defer controlPool.Put(oob)
	var b [4 << 10]byte
	for range maxDrained {
		n, control, _, _, err := unix.Recvmsg(fd, b[:], *oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 && control == 0 {
			return
		}
		var m Message
		_ = m.parse((*oob)[:control]) // after an error, m still holds the descriptors that precede it
		for _, received := range m.Files {
			closeNow(received)
		}
	}
}

// CloseAll closes descriptors, one after the other.
func (q *Queue) CloseAll(fds []int) {
	for _, fd := range fds {
		q.Close(fd)
	}
}

// beginReceiving counts a message, false if there are too many; endReceiving ends that.
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
