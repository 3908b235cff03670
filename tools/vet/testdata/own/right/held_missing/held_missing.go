package held_missing

import (
	"sync"
)

// Queue calls what wants the lock with it.
type Queue struct {
	mu   sync.Mutex
	list []int
}

// push adds an element.
//
//verbena:held q.mu
func (q *Queue) push(n int) { q.list = append(q.list, n) }

// pushAll adds elements.
//
//verbena:held mu
func (q *Queue) pushAll(list []int) {
	for _, n := range list {
		q.push(n)
	}
}

func (q *Queue) Push(list ...int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pushAll(list)
}
