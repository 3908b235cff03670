package postsend_send

import (
	"syscall"

	"verbena/ib"
)

// QP queues work in a channel, and refuses what there is no room for.
type QP struct {
	ib.DriverQP
	work chan uint64
}

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	for i, wr := range wrs {
		select {
		case q.work <- wr.ID:
		default:
			return i, syscall.ENOMEM
		}
	}
	return len(wrs), nil
}
