// Package copies_requests has drivers with post methods that copy what they need, or forget it before they return.
package copies_requests

import (
	"bytes"
	"slices"
	"sync"

	"verbena/ib"
)

type entry struct {
	id   uint64
	list []ib.SGE
	data []byte
	text string
	n    int
}

type copied struct {
	ib.DriverQP
	mu      sync.Mutex
	entries []entry
	queued  []ib.SendWR
	current []ib.SendWR
	batch   [8]ib.SendWR
	work    struct{ wr ib.SendWR }
}

func (q *copied) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.current = wrs
	defer q.forget()
	for i := range wrs {
		q.entries = append(q.entries, q.copyOf(&wrs[i]))
	}
	for _, wr := range wrs {
		wr.SGList, wr.Inline, wr.AH = slices.Clone(wr.SGList), nil, nil
		q.queued = append(q.queued, wr)
	}
	return q.DriverQP.PostSend(q.current)
}

func (q *copied) forget() { q.current = nil }

func (q *copied) copyOf(wr *ib.SendWR) entry {
	e := entry{id: wr.ID, data: bytes.Clone(wr.Inline), text: string(wr.Inline), n: len(wr.SGList)}
	e.list = append(e.list, wr.SGList...)
	q.work.wr = *wr
	q.work.wr.SGList, q.work.wr.Inline, q.work.wr.AH = nil, nil, nil
	return e
}

// PostRecv passes a changed copy of the list on.
func (q *copied) PostRecv(wrs []ib.RecvWR) (int, error) {
	list := make([]ib.RecvWR, 0, len(wrs))
	for _, wr := range wrs {
		wr.ID++
		list = append(list, wr)
	}
	each(wrs, func(wr *ib.RecvWR) { q.entries = append(q.entries, entry{id: wr.ID}) })
	return q.DriverQP.PostRecv(list)
}

func each(wrs []ib.RecvWR, f func(*ib.RecvWR)) {
	for i := range wrs {
		f(&wrs[i])
	}
}

// pooled passes a copy from a pool on.
type pooled struct {
	ib.DriverQP
	lists sync.Pool
}

func (q *pooled) PostSend(wrs []ib.SendWR) (int, error) {
	b := q.lists.Get().(*[]ib.SendWR)
	*b = append((*b)[:0], wrs...)
	n, err := q.DriverQP.PostSend(*b)
	clear(*b)
	q.lists.Put(b)
	return n, err
}
