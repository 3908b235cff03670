package copy_under_lock

import (
	"sync"

	"verbena/ib"
	"verbena/umem"
)

type qp struct {
	ib.DriverQP
	mu  sync.Mutex
	mem umem.Space
	buf []byte
}

func (q *qp) gather(addr uint64) error { return q.mem.ReadV([][]byte{q.buf}, addr) }

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, wr := range wrs {
		for _, s := range wr.SGList {
			if err := q.gather(s.Addr); err != nil { // want "copy: .*PostSend copies .* with copy_under_lock.qp.mu held"
				return i, err
			}
		}
	}
	return len(wrs), nil
}
