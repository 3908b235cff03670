package defer_order

import (
	"sync"

	"verbena/ib"
)

// QP waits in a deferred call that runs before the lock is given back.
type QP struct {
	ib.DriverQP
	mu   sync.Mutex
	done chan bool
}

func (q *QP) Destroy() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.wait()
	return nil
}

func (q *QP) wait() { <-q.done }

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock() // want "nosleep: .*PostSend.* may sleep: it locks defer_order.QP.mu"
	defer q.mu.Unlock()
	return len(wrs), nil
}
