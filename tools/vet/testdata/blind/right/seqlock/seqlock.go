package seqlock

import (
	"sync/atomic"

	"verbena/ib"
)

type attrs struct {
	seq  atomic.Uint64
	psn  atomic.Uint32
	port atomic.Uint32
}

func (a *attrs) set(psn, port uint32) {
	a.seq.Add(1)
	a.psn.Store(psn)
	a.port.Store(port)
	a.seq.Add(1)
}

func (a *attrs) get() (psn, port uint32) {
	for {
		s := a.seq.Load()
		if s&1 != 0 {
			continue
		}
		psn, port = a.psn.Load(), a.port.Load()
		if a.seq.Load() == s {
			return psn, port
		}
	}
}

type qp struct {
	ib.DriverQP
	a attrs
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.a.set(1, 2)
	return len(wrs), nil
}

func (q *qp) Query(ib.QPAttrMask) (ib.QPAttr, error) {
	q.a.get()
	return ib.QPAttr{}, nil
}
