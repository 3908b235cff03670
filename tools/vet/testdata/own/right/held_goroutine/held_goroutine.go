package held_goroutine

import (
	"sync"
)

// Queue has a goroutine take the lock.
type Queue struct {
	mu   sync.Mutex
	list []int
}

//verbena:held q.mu
func (q *Queue) drain() { q.list = nil }

func (q *Queue) Drain() {
	go func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.drain()
	}()
}
