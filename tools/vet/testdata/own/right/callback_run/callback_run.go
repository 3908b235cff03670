package callback_run

import (
	"verbena/ib"
)

// QP has its device's callbacks run by who calls Hold.Run.
type QP struct {
	ib.DriverQP
	dev *ib.DeviceHandle
	cq  ib.CQHandle
}

func (q *QP) Doorbell(h *ib.Hold) {
	h.Add(q.dev)
	q.cq.Completed()
}

func (q *QP) Posted() bool { return true }
