package limiter

import (
	"time"

	"verbena/ib"
)

type limiter interface{ take(n int) }

type bucket struct{ rate time.Duration }

func (b bucket) take(n int) { time.Sleep(time.Duration(n) * b.rate) } // want "nosleep: .*may sleep: it calls time.Sleep"

type unlimited struct{}

func (unlimited) take(int) {}

type qp struct {
	ib.DriverQP
	l limiter
}

func newQP(rate time.Duration) *qp {
	if rate == 0 {
		return &qp{l: unlimited{}}
	}
	return &qp{l: bucket{rate}}
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.l.take(len(wrs))
	return len(wrs), nil
}
