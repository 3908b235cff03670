package run_callbacks

import (
	"verbena/ib"
)

type qp struct {
	ib.DriverQP
	h *ib.DeviceHandle
	c ib.CQHandle
}

func (q *qp) finish() {
	q.c.Completed()
	q.h.RunCallbacks() // want "callback: .*PostSend"
}

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	q.h.HoldCallbacks()
	q.finish()
	return len(wrs), nil
}
