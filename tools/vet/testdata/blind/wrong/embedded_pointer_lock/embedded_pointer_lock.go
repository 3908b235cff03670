package embedded_pointer_lock

import (
	"sync"

	"verbena/ib"
)

type base struct {
	*sync.Mutex
	state int
}

type qp struct {
	ib.DriverQP
	base
	ready chan struct{}
}

func newQP() *qp { return &qp{base: base{Mutex: new(sync.Mutex)}} }

func (q *qp) Modify(a *ib.QPAttr, m ib.QPAttrMask, u *ib.Udata) error {
	q.Lock()
	defer q.Unlock()
	<-q.ready
	return nil
}

func (q *qp) State() ib.QPState {
	q.Lock() // want "nosleep: .*may sleep: it locks embedded_pointer_lock.base.Mutex, which is held at"
	defer q.Unlock()
	return ib.QPState(q.state)
}
