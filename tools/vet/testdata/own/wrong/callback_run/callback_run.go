package callback_run

import (
	"verbena/ib"
)

// QP has its device's callbacks run in PostSend.
type QP struct {
	ib.DriverQP
	dev *ib.DeviceHandle
	cq  ib.CQHandle
}

func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	q.dev.HoldCallbacks()
	q.cq.Completed()
	q.dev.RunCallbacks() // want "callback: .*PostSend"
	return len(wrs), nil
}
