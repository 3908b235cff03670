package spin_time

import (
	"time"

	"verbena/ib"
)

// QP notes the time of each post.
type QP struct {
	ib.DriverQP
	last time.Time
	wait time.Duration
}

func (q *QP) PostRecv(wrs []ib.RecvWR) (int, error) {
	for range wrs {
		now := time.Now()
		q.wait += now.Sub(q.last)
		q.last = now
	}
	return len(wrs), nil
}
