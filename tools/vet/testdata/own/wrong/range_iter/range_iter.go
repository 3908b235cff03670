package range_iter

import (
	"maps"

	"verbena/ib"
)

// QP walks over its requests, and waits in the body of the loop.
type QP struct {
	ib.DriverQP
	m map[int]int
	c chan int
}

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	for k := range maps.Keys(q.m) {
		q.c <- k // want "nosleep: .*PostSend.* may sleep: it sends to a channel"
	}
	return len(wrs), nil
}
