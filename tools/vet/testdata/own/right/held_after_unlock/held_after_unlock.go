package held_after_unlock

import (
	"sync"
)

// Queue tries for the lock.
type Queue struct {
	mu   sync.Mutex
	list []int
}

//verbena:held q.mu
func (q *Queue) push(n int) { q.list = append(q.list, n) }

func (q *Queue) Push(n int) bool {
	if !q.mu.TryLock() {
		return false
	}
	defer q.mu.Unlock()
	q.push(n)
	return true
}
