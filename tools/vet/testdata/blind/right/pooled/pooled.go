package pooled

import (
	"sync"

	"verbena/ib"
)

type qp struct {
	ib.DriverQP
	bufs sync.Pool
}

func newQP() *qp {
	return &qp{bufs: sync.Pool{New: func() any { return new([64]byte) }}}
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	b := q.bufs.Get().(*[64]byte)
	defer q.bufs.Put(b)
	return len(wrs), nil
}
