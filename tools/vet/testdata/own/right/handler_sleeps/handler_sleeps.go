package handler_sleeps

import (
	"time"

	"verbena/ib"
)

// Open makes a queue whose handler polls, and arms it again later.
func Open(dev *ib.Device) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: poll})
}

func poll(cq *ib.CQ) {
	cq.Poll(make([]ib.WC, 1))
	time.AfterFunc(time.Millisecond, func() {
		time.Sleep(time.Millisecond)
		cq.ReqNotify(ib.NotifyNextComp)
	})
}
