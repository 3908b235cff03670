package nap_variable

import (
	"time"

	"verbena/ib"
)

var nap = time.Sleep

type qp struct{ ib.DriverQP }

func (q *qp) PostRecv(wrs []ib.RecvWR) (int, error) {
	if len(wrs) == 0 {
		nap(time.Millisecond) // want "nosleep: .*may sleep: it calls time.Sleep"
	}
	return len(wrs), nil
}
