package lock_released_first

import (
	"sync"

	"verbena/ib"
)

type qp struct {
	ib.DriverQP
	mu   sync.Mutex
	busy int
	idle chan struct{}
}

func (q *qp) Destroy() error {
	q.mu.Lock()
	for q.busy > 0 {
		q.mu.Unlock()
		<-q.idle
		q.mu.Lock()
	}
	q.mu.Unlock()
	return nil
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy++
	return len(wrs), nil
}
