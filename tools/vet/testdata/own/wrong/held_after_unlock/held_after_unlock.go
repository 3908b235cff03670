package held_after_unlock

import (
	"sync"
)

// Queue lets go of the lock too early, on one way.
type Queue struct {
	mu   sync.Mutex
	list []int
}

//verbena:held q.mu
func (q *Queue) push(n int) { q.list = append(q.list, n) }

func (q *Queue) Push(n int) {
	q.mu.Lock()
	if n == 0 {
		q.mu.Unlock()
	}
	q.push(n) // want "held: .*Push calls .*push perhaps without held_after_unlock.Queue.mu held"
	if n != 0 {
		q.mu.Unlock()
	}
}
