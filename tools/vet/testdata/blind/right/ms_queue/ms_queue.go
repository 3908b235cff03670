package ms_queue

import (
	"sync/atomic"

	"verbena/ib"
)

type cell struct {
	next atomic.Pointer[cell]
	id   uint64
}

type queue struct{ head, tail atomic.Pointer[cell] }

func (q *queue) put(id uint64) {
	n := &cell{id: id}
	for {
		t := q.tail.Load()
		next := t.next.Load()
		if t != q.tail.Load() {
			continue
		}
		if next != nil {
			q.tail.CompareAndSwap(t, next)
			continue
		}
		if t.next.CompareAndSwap(nil, n) {
			q.tail.CompareAndSwap(t, n)
			return
		}
	}
}

func (q *queue) get() (uint64, bool) {
	for {
		h, t := q.head.Load(), q.tail.Load()
		next := h.next.Load()
		if h != q.head.Load() {
			continue
		}
		if h == t {
			if next == nil {
				return 0, false
			}
			q.tail.CompareAndSwap(t, next)
			continue
		}
		if q.head.CompareAndSwap(h, next) {
			return next.id, true
		}
	}
}

type cq struct {
	ib.DriverCQ
	q queue
}

func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	for n < len(wc) {
		id, ok := c.q.get()
		if !ok {
			break
		}
		wc[n].ID = id
		n++
	}
	c.q.put(0)
	return n, nil
}
