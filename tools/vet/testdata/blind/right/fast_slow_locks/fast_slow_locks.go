package fast_slow_locks

import (
	"sync"

	"verbena/ib"
)

type lock struct {
	mu    sync.Mutex
	owner string
}

func (l *lock) take(who string) { l.mu.Lock(); l.owner = who }
func (l *lock) drop()           { l.owner = ""; l.mu.Unlock() }

type qp struct {
	ib.DriverQP
	fast, slow lock
	ack        chan struct{}
}

func (q *qp) Modify(a *ib.QPAttr, m ib.QPAttrMask, u *ib.Udata) error {
	q.slow.take("modify")
	defer q.slow.drop()
	<-q.ack
	return nil
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.fast.take("post")
	defer q.fast.drop()
	return len(wrs), nil
}
