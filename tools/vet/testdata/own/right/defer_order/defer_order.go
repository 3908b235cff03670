package defer_order

import (
	"sync"

	"verbena/ib"
)

// QP waits in a deferred call that runs after the lock is given back.
type QP struct {
	ib.DriverQP
	mu   sync.Mutex
	done chan bool
}

func (q *QP) Destroy() error {
	defer q.wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	return nil
}

func (q *QP) wait() { <-q.done }

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(wrs), nil
}
