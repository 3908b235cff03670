package held_missing

import (
	"sync"
)

// Queue calls what wants the lock without it.
type Queue struct {
	mu   sync.Mutex
	list []int
}

// push adds an element.
//
//verbena:held q.mu
func (q *Queue) push(n int) { q.list = append(q.list, n) }

func (q *Queue) Push(n int) {
	q.push(n) // want "held: .*Push calls .*push without held_missing.Queue.mu held"
}
