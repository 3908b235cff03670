package sleepy_lock

import (
	"sync"

	"verbena/ib"
)

// QP has one lock for posting and for a modification that waits for the hardware.
type QP struct {
	ib.DriverQP
	mu    sync.Mutex
	ready chan bool
	n     int
}

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock() // want "nosleep: .*PostSend.* may sleep: it locks sleepy_lock.QP.mu, which is held at .*sleepy_lock.go:\d+ across a call that sleeps"
	defer q.mu.Unlock()
	q.n += len(wrs)
	return len(wrs), nil
}

func (q *QP) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	<-q.ready
	return nil
}
