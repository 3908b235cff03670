package range_iter

import (
	"maps"

	"verbena/ib"
)

// QP walks over its requests.
type QP struct {
	ib.DriverQP
	m map[int]int
	n int
}

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	for k := range maps.Keys(q.m) {
		q.n += k
	}
	return len(wrs), nil
}
