package rights

import (
	"sync"
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

// Queue closes the descriptors of one user, a few at a time. It is safe for concurrent use. The nil Queue closes at once,
// and has no bound: it is for descriptors of trusted senders.
type Queue struct {
	user      *quota.User
	closing   chan struct{}
	receiving chan struct{}
}

// Do calls f, which closes something of the user's, when fewer than maxClosing others do so. It may sleep for as long as
// the user likes.
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
func (q *Queue) Close(fd int) { q.Do(func() { unix.Close(fd) }) }

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
