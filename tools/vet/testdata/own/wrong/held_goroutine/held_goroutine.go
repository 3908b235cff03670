package held_goroutine

import (
	"sync"
)

// Queue has a goroutine do what wants the lock.
type Queue struct {
	mu   sync.Mutex
	list []int
}

//verbena:held q.mu
func (q *Queue) drain() { q.list = nil }

func (q *Queue) Drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	go q.drain() // want "held: .*Drain calls .*drain on a goroutine"
}
