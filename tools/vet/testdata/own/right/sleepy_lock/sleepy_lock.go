package sleepy_lock

import (
	"sync"

	"verbena/ib"
)

// QP waits for the hardware with nothing held.
type QP struct {
	ib.DriverQP
	mu    sync.Mutex
	ready chan bool
	n     int
}

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n += len(wrs)
	return len(wrs), nil
}

func (q *QP) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	q.mu.Lock()
	q.n = 0
	q.mu.Unlock()
	<-q.ready
	return nil
}
