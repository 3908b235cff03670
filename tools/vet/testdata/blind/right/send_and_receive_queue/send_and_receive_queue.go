package send_and_receive_queue

import (
	"sync"

	"verbena/ib"
)

type queue struct {
	sync.Mutex
	wrs []uint64
}

func (q *queue) add(id uint64) {
	q.Lock()
	defer q.Unlock()
	q.wrs = append(q.wrs, id)
}

func (q *queue) flush(out chan<- uint64) {
	q.Lock()
	defer q.Unlock()
	for _, id := range q.wrs {
		out <- id
	}
}

type qp struct {
	ib.DriverQP
	sq, rq, log queue
	out         chan uint64
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	for _, w := range wrs {
		q.sq.add(w.ID)
	}
	return len(wrs), nil
}

func (q *qp) PostRecv(wrs []ib.RecvWR) (int, error) {
	for _, w := range wrs {
		q.rq.add(w.ID)
	}
	return len(wrs), nil
}

func (q *qp) Destroy() error {
	q.log.flush(q.out)
	return nil
}
