// Package keeps_requests has drivers with post methods that keep parts of the caller's work requests.
package keeps_requests

import (
	"sync"
	"time"

	"verbena/ib"
)

// batch keeps the list.
type batch struct {
	ib.DriverQP
	mu    sync.Mutex
	lists [][]ib.SendWR
}

func (q *batch) PostSend(wrs []ib.SendWR) (int, error) {
	q.locked(func() { q.lists = append(q.lists, wrs) }) // want "keep: .*PostSend.* stores its work requests"
	return q.DriverQP.PostSend(wrs)
}

func (q *batch) locked(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

// inline keeps the inline data of a copy.
type inline struct {
	ib.DriverQP
	last map[uint64][]byte
}

func (q *inline) PostSend(wrs []ib.SendWR) (int, error) {
	for _, wr := range wrs {
		if data := payload(&wr); len(data) > 0 {
			q.last[wr.ID] = data // want "keep: .*PostSend.* stores its work requests"
		}
	}
	return q.DriverQP.PostSend(wrs)
}

func payload(wr *ib.SendWR) []byte {
	if wr.Flags&ib.SendInline == 0 {
		return nil
	}
	return wr.Inline
}

// handles keeps the address handle of the last request.
type handles struct {
	ib.DriverQP
	to *ib.AH
}

func (q *handles) PostSend(wrs []ib.SendWR) (int, error) {
	if len(wrs) > 0 {
		q.to = wrs[len(wrs)-1].AH // want "keep: .*PostSend.* stores its work requests"
	}
	return q.DriverQP.PostSend(wrs)
}

// later executes requests after the call.
type later struct {
	ib.DriverQP
	todo chan func()
}

func (q *later) PostSend(wrs []ib.SendWR) (int, error) {
	select {
	case q.todo <- func() { q.DriverQP.PostSend(wrs) }: // want "keep: .*PostSend.* sends its work requests to a channel"
	default:
		return q.DriverQP.PostSend(wrs)
	}
	return len(wrs), nil
}

func (q *later) PostRecv(wrs []ib.RecvWR) (int, error) {
	time.AfterFunc(time.Millisecond, func() { q.DriverQP.PostRecv(wrs) }) // want "keep: .*PostRecv.* starts a goroutine with its work requests"
	return len(wrs), nil
}

// sink is the destination of copies.
type sink interface{ put(wr ib.RecvWR) }

type ring struct{ slots [16]ib.RecvWR }

func (r *ring) put(wr ib.RecvWR) { r.slots[wr.ID%16] = wr } // want "keep: .*PostRecv.* stores its work requests"

type shared struct {
	ib.DriverSRQ
	to sink
}

func newShared(s ib.DriverSRQ) *shared { return &shared{s, &ring{}} }

func (s *shared) PostRecv(wrs []ib.RecvWR) (int, error) {
	for _, wr := range wrs {
		s.to.put(wr)
	}
	return s.DriverSRQ.PostRecv(wrs)
}
